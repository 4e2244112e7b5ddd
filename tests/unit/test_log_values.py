"""What stands in a log call becomes something that can be written: no secret, no body, no endless text, no error."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest

from consumers.logs.values import MAX_ITEMS, MAX_SCANNED, MAX_TEXT, fields, plain, text
from inbox.envelope import Attempt, Envelope, Message
from inbox.redaction import without_secrets

SECRET = "s3cr3t-marker"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str today")


class LyingText(str):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def message() -> Message:
    return Message(
        key=UUID(int=1),
        consumer="invoices",
        source="shop",
        message_id="m-1",
        type="order.placed",
        body=SECRET.encode(),
        properties=SECRET.encode(),
        exchange="shop",
        routing_key="order",
    )


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://fleet:{SECRET}@broker:5672/shop",
        f"postgresql://fleet:{SECRET}@db-1:5432,db-2:5432/billing?sslmode=require",
        f"postgres://fleet:pa/{SECRET}@db/billing",
        f"postgres://fleet:p@{SECRET}@db/billing",
        f"amqps://fleet:'{SECRET}'@broker",
        f"amqp://:{SECRET}@broker",
        f"postgresql://db/billing?user=fleet&password={SECRET}",
        f"HTTPS://u:{SECRET}@host/",
        f"redis://:{SECRET}@cache:6379/0",
        f"https://{SECRET}@git.example/shop.git",
        f"mongodb+srv://u:{SECRET}@a,b/shop?w=majority",
        f"https://u:p@hooks.example/{SECRET}",
        f"https://blob.example/x?sig={SECRET}",
        f"a-scheme-that-nobody-has+tls://u:{SECRET}@host",
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda url: url,
        lambda url: f"cannot connect to {url}: refused",
        lambda url: f"first line\n{url}\nthird line",
        lambda url: f"({url})",
        lambda url: f"ValueError({url!r}, ['{url}'])",
        lambda url: [url],
        lambda url: {"where": {"is": (1, url)}},
        lambda url: ValueError(f"bad URL {url}"),
        lambda url: f"{'x' * (MAX_TEXT // 2 - 30)} {url} {'y' * MAX_TEXT}",
    ],
    ids=[
        "alone",
        "in words",
        "in lines",
        "in brackets",
        "quoted",
        "in a list",
        "deep",
        "in an error",
        "where long text is cut",
    ],
)
def test_no_url_shows_its_password_wherever_it_stands(url: str, place: Any) -> None:
    assert SECRET not in json.dumps(plain(place(url)))


@pytest.mark.parametrize(
    "words",
    [
        f"host=db password={SECRET} dbname=billing",
        f"ConnectionParameters(user='fleet', password='{SECRET}', database='x')",
        f"{{'password': '{SECRET}'}}",
        f'{{"Password": "{SECRET}"}}',
    ],
)
def test_what_follows_the_word_password_is_hidden(words: str) -> None:
    assert SECRET not in without_secrets(words)


def test_a_value_named_like_a_secret_is_hidden_at_any_depth() -> None:
    assert fields({"token": SECRET, "broker": {"Password": SECRET}}) == {"token": "***", "broker": {"Password": "***"}}


@pytest.mark.parametrize(
    "harmless",
    [
        "http://grafana.example:3000/d/abc?var=1",
        "see https://www.rabbitmq.com/docs/dlx, then retry",
        "amqp://broker:5672/",
        "https://medium.example/@fleet/inbox",
        "('postgresql://fleet@db/billing?sslmode=require&sslrootcert=/ca.pem')",
        "a@b.example at 10:30",
        'password authentication failed for user "fleet"',
    ],
)
def test_text_without_secrets_stays_as_it_is(harmless: str) -> None:
    assert text(harmless) == harmless


def test_user_host_and_database_of_a_url_stay_readable() -> None:
    shown = text(f"cannot reach amqp://fleet:{SECRET}@broker:5672/shop")

    assert "fleet:***@broker:5672/shop" in shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("'amqp://u:{}@h'", "'amqp://u:***@h'"),
        ('("amqp://u:{}@h:5672/v",)', '("amqp://u:***@h:5672/v",)'),
        ("['amqp://u:{}@[::1]']", "['amqp://u:***@[::1]']"),
        ("cannot reach amqp://u:{}@h: refused", "cannot reach amqp://u:***@h: refused"),
        ("<amqp://u:{}@h>.", "<amqp://u:***@h>."),
        ("redis://:{}@cache:6379/0", "redis://***@cache:6379/***"),
        ("postgresql://u:{}@h/d?sslmode=require", "postgresql://u:***@h/d?sslmode=require"),
    ],
)
def test_what_stands_around_a_url_stays(written: str, shown: str) -> None:
    assert text(written.format(SECRET)) == shown


def test_bytes_are_counted_and_never_shown() -> None:
    written = plain({"body": SECRET.encode(), "more": [bytearray(3), memoryview(b"1234")]})

    assert written == {"body": f"<{len(SECRET)} bytes>", "more": ["<3 bytes>", "<4 bytes>"]}


def test_a_message_or_envelope_is_written_as_its_identity() -> None:
    envelope = Envelope(
        message=message(),
        data=SECRET.encode(),
        exchange="shop",
        routing_key="order",
        redelivered=False,
        attempt=Attempt(1, 1, UUID(int=2)),
    )

    for value in (message(), envelope):
        assert plain(value) == {"message_id": "m-1", "type": "order.placed", "consumer": "invoices"}
        assert SECRET not in repr(value)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800 lone",
        {"\udfff": "\ud800"},
        float("nan"),
        float("-inf"),
        2**70,
        -(10**6000),
        Unprintable(),
        UnprintableError(),
        LyingText("text"),
        {Unprintable(): Unprintable()},
        {1, (2, 3)},
        object,
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_becomes_one_that_json_can_hold(value: object) -> None:
    written = msgspec.json.decode(msgspec.json.encode(fields({"value": value})))

    assert "value" in written


def test_values_that_contain_themselves_end() -> None:
    circle: list[object] = []
    circle.append(circle)
    ring: dict[str, object] = {}
    ring["ring"] = ring

    assert "<list of 1>" in json.dumps(plain(circle))
    assert "<dict of 1>" in json.dumps(plain(ring))


def test_numbers_and_flags_stay_what_they_are() -> None:
    facts = {"attempt": 2, "delay_s": 0.5, "redelivered": True, "claim_id": UUID(int=7), "nothing": None}

    assert fields(facts) == {**facts, "claim_id": str(UUID(int=7))}


def test_long_text_keeps_its_start_and_its_end() -> None:
    written = text("start " + "x" * 3 * MAX_TEXT + " end")

    assert written.startswith("start ")
    assert written.endswith(" end")
    assert "characters left out" in written
    assert len(written) < MAX_TEXT + 100


def test_text_beyond_all_measure_is_counted() -> None:
    assert text("x" * (MAX_SCANNED + 1)) == f"<{MAX_SCANNED + 1} characters>"


def test_long_collections_are_cut() -> None:
    assert len(plain(list(range(10_000)))) == MAX_ITEMS + 1  # type: ignore[arg-type]
    assert fields({str(number): number for number in range(100)})["left_out"] == 100 - MAX_ITEMS
