"""The configuration file: what it may say, its defaults, and one exact message for the first mistake."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from consumers.config import FleetConfig, describe, load, parse
from consumers.config.settings import Settings
from consumers.config.sizes import Size
from consumers.errors import ConfigError

MINIMAL = """
[service]
name = "billing"

[pools.invoices]

[consumers.invoices]
queue = "billing.invoices"
handler = "billing.handlers:invoices"
"""
URLS = {"DATABASE_URL": "postgresql://app:hunter2@db/billing", "AMQP_URL": "amqp://app:hunter2@mq/shop"}


def refusal(text: str, *, file: str = "fleet.toml") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, file=file)
    error = caught.value
    assert error.file == file
    assert str(error).startswith(file)
    assert error.key in str(error)
    assert error.problem
    assert error.allowed
    assert error.__context__ is None or error.__suppress_context__
    return error


def with_consumer(line: str) -> str:
    return MINIMAL + line + "\n"


def test_a_minimal_file_is_enough() -> None:
    config = parse(MINIMAL, file="fleet.toml")
    consumer = config.consumers["invoices"]
    assert (config.service.replicas, config.service.surge) == (1, 1)
    assert (consumer.name, consumer.pool, consumer.key_name) == ("invoices", "invoices", "invoices")
    assert (consumer.lanes, consumer.look_ahead, consumer.prefetch) == (4, 2, 6)
    assert consumer.pacing_s == (0, 5, 30, 300)
    assert (consumer.queue_type, consumer.unknown_types) == ("quorum", "reject")
    assert (config.pools["invoices"].nested, config.pools["invoices"].headroom) == (0, 1)
    assert config.database_url(URLS).reveal() == URLS["DATABASE_URL"]
    assert config.broker_url(URLS).reveal() == URLS["AMQP_URL"]


def test_every_key_can_be_given() -> None:
    config = parse(
        """
        [service]
        name = "billing"
        replicas = 3
        surge = 0
        start_timeout = "1m"
        [database]
        url_file = "/run/secrets/db"
        connection_share = 0.5
        connect_timeout = "3s"
        [database.housekeeping]
        size = 3
        acquire_timeout = 2
        [broker]
        url_env = "RABBIT"
        heartbeat = "5s"
        connect_timeout = "4s"
        operation_timeout = "6s"
        consumer_timeout = "1h"
        [pools.shared]
        nested = 1
        headroom = 0
        size = 20
        acquire_timeout = "1.5s"
        [consumers.invoices]
        queue = "billing.invoices"
        bindings = [
            { exchange = "shop", routing_key = "order.*" },
            { exchange = "h", exchange_type = "headers", arguments = { x-match = "all" } },
        ]
        handler = "billing.handlers:invoices"
        pool = "shared"
        key_name = "bills"
        lanes = 8
        look_ahead = 0
        queue_type = "classic"
        queue_arguments = { x-max-length = 1000, "x-single-active-consumer" = true }
        max_attempts = 3
        max_aborts = 9
        pacing = ["0s", "250ms", 5]
        contention_step = "2s"
        handler_timeout = "20s"
        max_open = 50_000
        max_stored_bytes = "1.5MiB"
        unknown_types = "ignore"
        [consumers.invoices.types."order.placed"]
        max_attempts = 9
        handler_timeout = "35s"
        pacing = ["1m"]
        [breaker]
        first_wait = "100ms"
        longest_wait = "10s"
        hold = "20s"
        [drain]
        cancel_timeout = "1s"
        deadline = "36s"
        settle_timeout = "2s"
        close_timeout = "3s"
        grace_period = "50s"
        [http]
        host = "127.0.0.1"
        port = 0
        [log]
        format = "console"
        level = "debug"
        [receipts]
        retention = "7d"
        [retention]
        every = "5s"
        terminal = "8d"
        exhaustions = "9d"
        history = "10d"
        replays = "11d"
        [members]
        heartbeat = "2s"
        expiry = "7s"
        """,
        file="fleet.toml",
    )
    consumer = config.consumers["invoices"]
    assert consumer.prefetch == 8
    assert consumer.pacing_s == (0, 0.25, 5)
    assert consumer.bindings[1].arguments == {"x-match": "all"}
    assert consumer.types["order.placed"].pacing_s == (60,)
    assert config.receipts.retention_s == 7 * 86_400
    assert config.retention.terminal_s == 8 * 86_400
    assert consumer.max_open == 50_000
    assert consumer.max_stored_bytes == 1_572_864
    assert config.pools["shared"].acquire_timeout_s == 1.5


def test_a_configuration_cannot_be_changed() -> None:
    config = parse(MINIMAL, file="fleet.toml")
    with pytest.raises(AttributeError):
        config.service.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.consumers["other"] = config.consumers["invoices"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("lanes = 0", "consumers.invoices.lanes", "0"),
        ('lanes = "8"', "consumers.invoices.lanes", '"8"'),
        ("lanes = true", "consumers.invoices.lanes", "true"),
        ("lanes = 1.5", "consumers.invoices.lanes", "1.5"),
        ("max_open = 0", "consumers.invoices.max_open", "0"),
        ('max_stored_bytes = "255KiB"', "consumers.invoices.max_stored_bytes", '"255KiB"'),
        ('max_stored_bytes = "1GiB"', "consumers.invoices.max_stored_bytes", '"1GiB"'),
        ("max_stored_bytes = 16", "consumers.invoices.max_stored_bytes", "16"),
        ("max_stored_bytes = 1e7", "consumers.invoices.max_stored_bytes", "10000000.0"),
        ("max_stored_bytes = true", "consumers.invoices.max_stored_bytes", "true"),
        ('max_stored_bytes = "-1MiB"', "consumers.invoices.max_stored_bytes", '"-1MiB"'),
        ('max_stored_bytes = "300000.5B"', "consumers.invoices.max_stored_bytes", '"300000.5B"'),
        ("max_attempts = 0", "consumers.invoices.max_attempts", "0"),
        ("look_ahead = -1", "consumers.invoices.look_ahead", "-1"),
        ('queue_type = "stream"', "consumers.invoices.queue_type", '"stream"'),
        ('handler_timeout = "30"', "consumers.invoices.handler_timeout", '"30"'),
        ("handler_timeout = 0", "consumers.invoices.handler_timeout", "0"),
        ("handler_timeout = -1", "consumers.invoices.handler_timeout", "-1"),
        ("handler_timeout = nan", "consumers.invoices.handler_timeout", "nan"),
        ("handler_timeout = inf", "consumers.invoices.handler_timeout", "inf"),
        ("handler_timeout = false", "consumers.invoices.handler_timeout", "false"),
        ("handler_timeout = 2026-01-01", "consumers.invoices.handler_timeout", "2026-01-01"),
        ('handler_timeout = "9999999999d"', "consumers.invoices.handler_timeout", '"9999999999d"'),
        ('pacing = "5s"', "consumers.invoices.pacing", '"5s"'),
        ('pacing = ["0s", "x"]', "consumers.invoices.pacing[1]", '"x"'),
        ('pacing = ["1ms"]', "consumers.invoices.pacing[0]", '"1ms"'),
        ('pacing = ["100.5ms"]', "consumers.invoices.pacing[0]", '"100.5ms"'),
        ("pacing = []", "consumers.invoices.pacing", None),
        ('contention_step = "0s"', "consumers.invoices.contention_step", '"0s"'),
        ('key_name = ""', "consumers.invoices.key_name", '""'),
        ('key_name = "a\\n"', "consumers.invoices.key_name", "'a\\n'"),
        ('pool = "Invoices"', "consumers.invoices.pool", '"Invoices"'),
        ("bindings = [{}]", "consumers.invoices.bindings[0].exchange", None),
        ("bindings = [1]", "consumers.invoices.bindings[0]", "1"),
        ("bindings = {}", "consumers.invoices.bindings", "a table"),
        ("queue_arguments = { a = [1] }", "consumers.invoices.queue_arguments.a", "a list"),
        ('types = "x"', "consumers.invoices.types", '"x"'),
        ("types = { x = 1 }", "consumers.invoices.types.x", "1"),
        ("[consumers.invoices.types.'a b']\nmax_attempts = 0", 'consumers.invoices.types."a b".max_attempts', "0"),
        ("[http]\nport = 65536", "http.port", "65536"),
        ("[log]\nlevel = 'loud'", "log.level", '"loud"'),
        ("[database]\nconnection_share = 0", "database.connection_share", "0"),
        ("[database]\nconnection_share = 1.1", "database.connection_share", "1.1"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_its_path(line: str, key: str, value: str | None) -> None:
    error = refusal(with_consumer(line))
    assert (error.key, error.value) == (key, value)
    if value is not None:
        assert f"{key} = {value}: " in str(error)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("300000", 300_000),
        ('"300000B"', 300_000),
        ('"256KiB"', 256 * 2**10),
        ('"1.5MiB"', 1_572_864),
        ('" 16 MiB "', 16 * 2**20),
        ('"0.25GiB"', 256 * 2**20),
    ],
)
def test_a_size_is_read_in_bytes_and_described_as_people_write_it(written: str, size: int) -> None:
    config = parse(with_consumer(f"max_stored_bytes = {written}"), file="fleet.toml")
    assert config.consumers["invoices"].max_stored_bytes == size
    described = describe(config, URLS)["consumers"]["invoices"]["max_stored_bytes"]
    assert Size.read(described) == size


@pytest.mark.parametrize(
    ("written", "meant"),
    [("16MB", "16MiB"), ("16 mib", "16MiB"), ("300kB", "300KiB"), ("1G", "1GiB"), ("300000bytes", None), ("5 s", None)],
)
def test_a_unit_that_is_not_known_is_refused_with_the_one_that_was_probably_meant(
    written: str, meant: str | None
) -> None:
    error = refusal(with_consumer(f'max_stored_bytes = "{written}"'))
    assert "unit that is not known" in error.problem
    assert ("did you mean" in error.problem) is (meant is not None)
    if meant is not None:
        assert f'did you mean "{meant}"?' in error.problem


@pytest.mark.parametrize(
    ("text", "key", "suggested"),
    [
        (with_consumer("lane = 3"), "consumers.invoices.lane", "lanes"),
        (with_consumer("max_attempt = 3"), "consumers.invoices.max_attempt", "max_attempts"),
        (with_consumer("handler_timeout_s = 3"), "consumers.invoices.handler_timeout_s", "handler_timeout"),
        (with_consumer("[drian]"), "drian", "drain"),
        (with_consumer("[consumers.invoices.types.x]\npaceing = []"), "consumers.invoices.types.x.paceing", "pacing"),
        (with_consumer('bindings = [{ exchange = "a", key = "b" }]'), "consumers.invoices.bindings[0].key", None),
        (with_consumer('name = "x"'), "consumers.invoices.name", "key_name"),
        ('file = "x"\n' + MINIMAL, "file", None),
        (with_consumer("[zzz]"), "zzz", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_closest_one(text: str, key: str, suggested: str | None) -> None:
    error = refusal(text)
    assert error.key == key
    assert ("did you mean" in error.problem) is (suggested is not None)
    if suggested is not None:
        assert f'"{suggested}"' in error.problem


def test_the_value_of_an_unknown_key_is_never_shown() -> None:
    error = refusal(MINIMAL + '[database]\npassword = "hunter2"')
    assert error.key == "database.password"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "service"),
        ("[service]", "service.name"),
        ('[service]\nname = "a"', "consumers"),
        ('[service]\nname = "a"\n[consumers.b]', "consumers.b.queue"),
        ('[service]\nname = "a"\n[consumers.b]\nqueue = "q"', "consumers.b.handler"),
    ],
)
def test_what_is_required_is_asked_for_by_name(text: str, key: str) -> None:
    assert refusal(text).key == key


def test_tables_must_be_tables() -> None:
    assert refusal("service = 1").key == "service"
    assert refusal('[service]\nname = "a"\n[[pools.b]]').key == "pools.b"
    assert refusal('[service]\nname = "a"\n[[consumers]]').key == "consumers"


@pytest.mark.parametrize("name", ["Big", "a.b", "1a", "", "a b", "a" * 41, "é"])
def test_a_table_whose_name_is_no_name_is_refused(name: str) -> None:
    error = refusal(MINIMAL + f'["consumers"."{name}"]')
    assert error.key == "consumers"
    assert repr(name) in error.problem


def test_text_that_is_not_toml_is_refused_with_its_position() -> None:
    for text in ("[service]\nname = \n", '[service]\nname = "a"\nname = "b"\n[http]'):
        error = refusal(text)
        assert error.key == ""
        assert "(at line " in error.problem


def test_a_deeply_nested_file_is_refused_and_not_a_crash() -> None:
    assert "not TOML" in refusal("a = " + "[" * 100_000).problem


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigError, match=problem) as caught:
            load(path, environ=URLS)
        assert caught.value.file == str(path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.toml", environ=URLS)


def test_urls_are_wanted_only_by_who_needs_them(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(MINIMAL)
    assert load(path, needs=(), environ={}).service.name == "billing"
    assert load(path, needs=("broker",), environ={"AMQP_URL": "amqp://h"}).service.name == "billing"
    with pytest.raises(ConfigError) as caught:
        load(path, environ={"AMQP_URL": "amqp://h"})
    assert (caught.value.key, caught.value.value) == ("database.url_env", "DATABASE_URL")
    with pytest.raises(ConfigError) as caught:
        load(path, environ={"DATABASE_URL": "postgresql://h"})
    assert (caught.value.key, caught.value.value) == ("broker.url_env", "AMQP_URL")


@pytest.mark.parametrize(
    "table",
    [
        '[database]\nurl = "postgresql://app:hunter2@db/x"',
        '[database]\nurl = "hunter2"',
        '[database]\nurl_env = "postgresql://app:hunter2@db/x"',
        '[database]\nurl_file = "postgresql://app:hunter2@db/x"',
        '[database]\nurl = "amqp://app:hunter2@db/x"',
        '[database]\nurl = ["hunter2"]',
        '[database]\nurl_env = { password = "hunter2" }',
        '[database]\nhousekeeping = "postgresql://app:hunter2@db/x"',
        '[broker]\nheartbeat = "amqp://app:hunter2@db/x"',
        '[broker]\nurl = "amqp://app:hunter2@mq/x"',
        '[http]\nport = "amqp://app:hunter2@db/x"',
    ],
)
def test_no_message_shows_a_password(tmp_path: Path, table: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(MINIMAL + table)
    with pytest.raises(ConfigError) as caught:
        load(path, environ=URLS)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.value)


def test_a_description_has_toml_names_defaults_and_no_password() -> None:
    described = describe(parse(MINIMAL, file="fleet.toml"), URLS)
    text = msgspec.json.encode(described).decode()
    assert "hunter2" not in text
    assert described["database"]["url"] == "postgresql://app:***@db/billing"
    assert described["consumers"]["invoices"]["handler_timeout"] == "30s"
    assert described["consumers"]["invoices"]["pacing"] == ["0s", "5s", "30s", "5m"]
    assert describe(parse(MINIMAL, file="fleet.toml"), {})["broker"]["url"] is None


def test_a_description_is_a_configuration_again() -> None:
    config = parse(MINIMAL + '[database]\nurl_env = "A"\n[broker]\nurl_file = "/b"', file="fleet.toml")
    described = describe(config, {})
    assert described.pop("file") == "fleet.toml"
    assert parse(_toml(described), file="fleet.toml") == config


def test_every_setting_is_documented() -> None:
    for kind in (FleetConfig, *Settings.__subclasses__()):
        assert kind.__doc__
        assert kind.__struct_config__.frozen
        assert kind.__struct_config__.forbid_unknown_fields


def _toml(tables: dict[str, object], path: str = "") -> str:
    """Write plain tables of texts, numbers and lists of texts; enough for a description."""
    scalars = {key: value for key, value in tables.items() if not isinstance(value, dict) and value is not None}
    lines = [f"[{path}]"] if path else []
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in scalars.items()]
    for key, value in tables.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{path}.{key}" if path else key))
    return "\n".join(lines)
