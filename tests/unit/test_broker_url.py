"""A broker's URL: what the client reads and can use may stand there, and nothing else."""

from __future__ import annotations

from pathlib import Path

import aiormq
import pytest
from yarl import URL

from consumers.broker_url import check_broker_url
from consumers.config import parse
from consumers.errors import ConfigError

FLEET = """
[service]
name = "billing"
[pools.invoices]
[consumers.invoices]
queue = "billing.invoices"
handler = "billing.handlers:invoices"
"""


@pytest.mark.parametrize(
    "url",
    [
        "amqp://h",
        "amqp://guest:guest@127.0.0.1:5672/%2F",
        "amqp://u:p%40ss%C3%A9@mq.example/shop%2Feu",
        "amqp://u@[::1]:5672/v",
        "amqp://u@my_host-1/v?auth=EXTERNAL",
        "amqps://u:p@h:5671/v?cafile=/run/ca.pem&certfile=/run/c.pem&keyfile=/run/k.pem&no_verify_ssl=1",
        "amqps://h?cadata=aGVsbG8=&capath=/etc/ssl&auth=plain",
    ],
)
def test_what_the_client_reads_may_stand_there(url: str) -> None:
    check_broker_url(url)
    URL(url).update_query(heartbeat="10")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("heartbeat", "broker.heartbeat"),
        ("timeout", "broker.connect_timeout"),
        ("connection_timeout", "broker.connect_timeout"),
        ("blocked_connection_timeout", "broker.operation_timeout"),
        ("name", "service.name"),
        ("foo", None),
        ("channel_max", None),
        ("verify", None),
        ("Auth", None),
    ],
)
def test_a_parameter_that_nobody_reads_is_refused_by_name_with_where_it_stands(name: str, instead: str | None) -> None:
    with pytest.raises(ValueError, match=f"its parameter {name} is not one that is read") as refused:
        check_broker_url(f"amqp://u:p@h/v?auth=plain&{name}=hunter2")
    assert ("in the configuration file" in str(refused.value)) == (instead is not None)
    assert instead is None or instead in str(refused.value)
    assert "Parameters that are: auth, and with amqps:// also cafile" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("amqp://h/v?hunter2%3Dx%20y=1", "a parameter of it is not one"),
        ("amqp://h/v?auth=plain&auth=external", "auth is there twice"),
        ("amqp://h/v?auth=hunter2", "neither plain nor external"),
        ("amqp://h/v?cafile=/run/ca.pem", "cafile is read with amqps:// alone"),
        ("amqps://h/v?keyfile=/run/k.pem", "keyfile is read with certfile alone"),
        ("amqps://h/v?no_verify_ssl=false", "neither 0 nor 1"),
        ("amqps://h/v?cadata=hunter2!", "cadata is not Base64"),
        ("amqp://u:hunter2%@h/v", "a % that two hexadecimal digits do not follow"),
        ("amqp://u:hunter2%zz@h/v", "a % that two hexadecimal digits do not follow"),
        ("amqp://u:hunter2%FF@h/v", "is not UTF-8"),
        ("amqp:///v", "names no host"),
        ("amqp://u:hunter2@/v", "no host"),
        ("amqp://h:0/v", "its port is 0"),
        ("amqp://h:99999/v", "host:port"),
        ("amqp://h:port/v", "host:port"),
        ("amqp://h1,h2/v", "several hosts"),
        ("amqp://h%41/v", "its host is no host name"),
        ("amqp://a..b/v", "its host is no host name"),
        (f"amqp://{'a' * 64}/v", "its host is no host name"),
        ("amqp://[1.2.3.4]/v", "host"),
        ("amqp://[::::]/v", "host"),
        ("amqp://u:hunter2@h/v#part", "percent-encoded"),
    ],
)
def test_what_no_client_could_use_or_would_pass_over_is_refused_without_a_value(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        check_broker_url(url)
    assert "hunter2" not in str(refused.value)


async def test_every_parameter_that_may_stand_there_is_one_that_the_client_reads() -> None:
    url = "amqps://h/v?cafile=a&capath=b&cadata=aGVsbG8=&certfile=c&keyfile=k&no_verify_ssl=1&auth=external"
    check_broker_url(url)
    client = aiormq.Connection(url)
    certs = client.ssl_certs
    assert (certs.cafile, certs.capath, certs.cadata, certs.cert, certs.key) == ("a", "b", b"hello", "c", "k")
    assert certs.verify is False
    assert client.url.query["auth"] == "external"


def test_the_configuration_says_which_source_leads_to_such_a_url(tmp_path: Path) -> None:
    config = parse(FLEET, file="fleet.toml")
    with pytest.raises(ConfigError) as refused:
        config.broker_url({"AMQP_URL": "amqp://u:hunter2@h/v?heartbeat=99"})
    assert (refused.value.key, refused.value.value) == ("broker.url_env", "AMQP_URL")
    assert "broker.heartbeat in the configuration file" in refused.value.problem
    assert "hunter2" not in str(refused.value)
