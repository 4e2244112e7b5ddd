"""Secrets: the value only comes out by `reveal`, and a URL is shown only by its harmless parts."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.secrets import Secret, UrlSource, shown
from inbox.redaction import HIDDEN, Unreadable, has_password, host_of, redacted

PASSWORD = "hunter2"
AMQP = ("amqp", "amqps")


def test_a_secret_shows_its_origin_and_never_its_value() -> None:
    secret = Secret(PASSWORD, origin="environment variable DATABASE_URL")
    for text in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", "%s" % secret, repr({"url": secret})):  # noqa: UP031
        assert PASSWORD not in text
        assert "environment variable DATABASE_URL" in text
    assert secret.reveal() == PASSWORD


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy, json.dumps])
def test_a_secret_refuses_to_be_copied_or_serialised(leave: object) -> None:
    with pytest.raises(TypeError):
        leave(Secret(PASSWORD, origin="x"))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://app:hunter2@db.example:5432/billing", f"postgresql://app:{HIDDEN}@db.example:5432/billing"),
        ("postgresql://app@db/billing", "postgresql://app@db/billing"),
        ("postgresql://db/billing?password=hunter2", f"postgresql://db/billing?password={HIDDEN}"),
        ("postgresql:///billing?host=/run/pg&port=5433", "postgresql:///billing?host=/run/pg&port=5433"),
        ("postgresql://a:hunter2@h1:1,h2:2/d?sslmode=require", f"postgresql://a:{HIDDEN}@h1:1,h2:2/d?sslmode=require"),
        ("amqp://guest:hunter2@[::1]:5672/%2F?heartbeat=5", f"amqp://guest:{HIDDEN}@[::1]:5672/%2F?heartbeat=5"),
        ("amqps://:hunter2@broker/v", f"amqps://:{HIDDEN}@broker/v"),
        ("amqp://u:p%40hunter2@h", f"amqp://u:{HIDDEN}@h"),
        ("amqp://u:@h", f"amqp://u:{HIDDEN}@h"),
        ("https://hunter2@git.example:8443/", f"https://{HIDDEN}@git.example:8443/"),
        ("https://u:p@h/hunter2?x=hunter2", f"https://{HIDDEN}@h/{HIDDEN}"),
    ],
)
def test_a_redacted_url_keeps_what_helps_and_drops_the_password(url: str, expected: str) -> None:
    assert redacted(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "amqp://user:hun/ter2@host/v",
        "amqp://user:hun#ter2@host/v",
        "amqp://user:12#ter2@host/v",
        "amqp://user:12?ter2@host/v",
        "amqp://user:hun@ter2@host/v",
        "amqp://user:hun@ter2/x@host/v",
        "amqp://user:ter2",
        "amqp://[user:ter2@host",
        "amqp://u:hun ter2@host",
        "amqp://u\n:ter2@host",
        "amqp://h:99999ter2/",
        "amqp:user:ter2@host",
        "user:ter2@host",
        "ter2",
        "amqp://user:p@host/v?ter2",
        "",
    ],
)
def test_a_url_that_cannot_be_read_with_certainty_is_not_shown(url: str) -> None:
    assert redacted(url) in (HIDDEN, f"amqp://{HIDDEN}")
    with pytest.raises(Unreadable) as caught:
        has_password(url)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["amqp:///:ter2", "amqp://u/:ter2", "amqp://u/x:ter2"])
def test_a_path_that_may_be_a_password_is_not_shown(url: str) -> None:
    assert redacted(url) == f"amqp://{HIDDEN}"


@given(
    user=st.text(max_size=8),
    password=st.text(alphabet="aZ0@/:?#[]%&= \n\x00é", min_size=3, max_size=12).map(lambda text: f"Q{text}Q"),
    rest=st.sampled_from(["@host:5672/v", "@host/v?heartbeat=5", "@[::1]/v", "", "/v", "@"]),
)
def test_no_password_whatever_stands_in_it_is_ever_shown(user: str, password: str, rest: str) -> None:
    assert password not in redacted(f"amqp://{user}:{password}{rest}")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h/d", True),
        ("postgresql://u@h/d?password=x", True),
        ("postgresql://u@h/d?sslpassword=x", True),
        ("postgresql://u@h/d?passfile=/run/pgpass", False),
        ("postgresql://u@h/d", False),
    ],
)
def test_a_password_is_recognised_wherever_a_driver_takes_it_from(url: str, expected: bool) -> None:
    assert has_password(url) is expected


def test_hosts_are_named_for_messages_about_reaching_them() -> None:
    assert host_of("amqp://u:p@broker:5672/v") == "broker:5672"
    assert host_of("postgresql://u@/d?host=/run/pg") == "/run/pg"
    assert host_of("postgresql://u@%2Frun%2Fpg/d") == "/run/pg"


def test_values_in_messages_are_short_and_do_not_open_tables() -> None:
    assert shown({"password": PASSWORD}) == "a table"
    assert shown([PASSWORD]) == "a list"
    assert shown(True) == "true"
    assert shown(f"amqp://u:{PASSWORD}@h") == f'"amqp://u:{HIDDEN}@h"'
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 500)) == 80


def test_a_url_is_read_from_the_environment_each_time_it_is_asked_for() -> None:
    source = UrlSource(schemes=AMQP, env="AMQP_URL")
    environ = {"AMQP_URL": " amqp://a\n"}
    assert source.read(environ).reveal() == "amqp://a"
    environ["AMQP_URL"] = "amqp://b"
    assert source.read(environ).reveal() == "amqp://b"


def test_a_url_is_read_from_a_file_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "amqp"
    path.write_bytes(b"\xef\xbb\xbfamqp://u:p@h/v\r\n")
    secret = UrlSource(schemes=AMQP, file=str(path)).read({})
    assert secret.reveal() == "amqp://u:p@h/v"
    assert repr(secret) == f"Secret(file {path})"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"amqp://u:hunter2@h/v\namqp://u:hunter2@h/w\n", "blanks or control characters"),
        (b"http://u:hunter2@h/v", "amqp://"),
        (b"hunter2", "scheme"),
    ],
)
def test_an_unusable_file_is_refused_without_its_content(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "amqp"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        UrlSource(schemes=AMQP, file=str(path)).read({})
    assert PASSWORD not in str(caught.value)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not set"):
        UrlSource(schemes=AMQP, env="AMQP_URL").read({})
    with pytest.raises(ValueError, match="empty"):
        UrlSource(schemes=AMQP, env="AMQP_URL").read({"AMQP_URL": ""})
    with pytest.raises(ValueError, match="No such file"):
        UrlSource(schemes=AMQP, file=str(tmp_path / "none")).read({})
    with pytest.raises(ValueError, match="Is a directory"):
        UrlSource(schemes=AMQP, file=str(tmp_path)).read({})


def test_a_plain_url_may_not_hold_a_password() -> None:
    assert UrlSource(schemes=AMQP, plain="amqp://u@h/v").read({}).reveal() == "amqp://u@h/v"
    with pytest.raises(ValueError, match="holds a password") as caught:
        UrlSource(schemes=AMQP, plain=f"amqp://u:{PASSWORD}@h/v").read({})
    assert PASSWORD not in str(caught.value)
