"""The small tools that other tests lean on."""

from __future__ import annotations

import tomllib
from itertools import count
from pathlib import Path

import pytest

from consumers.config import load
from tests.support.configs import write_config
from tests.support.eventually import eventually

QUEUE = 'odd "name" \\ with\ttab'


async def test_eventually_returns_the_first_true_answer() -> None:
    numbers = count()
    assert await eventually(lambda: next(numbers) > 2 and "there", 5, every_s=0) == "there"


async def test_eventually_fails_with_the_last_value_and_the_question() -> None:
    with pytest.raises(AssertionError, match=r"sum\(\[1, 1\]\) == 3.*did not hold within 0 s; it was last False"):
        await eventually(lambda: sum([1, 1]) == 3, 0)


async def test_eventually_waits_through_failed_assertions_and_tells_the_last() -> None:
    async def never() -> bool:
        raise AssertionError("two rows missing")

    with pytest.raises(AssertionError, match="a row did not hold within 0 s; it last failed with: two rows missing"):
        await eventually(never, 0, what="a row")


async def test_eventually_lets_other_errors_through_at_once() -> None:
    asked = []

    def broken() -> bool:
        asked.append(1)
        raise KeyError("typo")

    with pytest.raises(KeyError):
        await eventually(broken, 60)
    assert len(asked) == 1


def test_a_written_configuration_is_accepted_by_the_product(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        consumers={
            "orders": {
                "queue": 'odd "name" \\ with\ttab',
                "handler": "a.b:orders",
                "types": {"a.b": {"max_attempts": 1}},
            }
        },
        tables={"service": {"replicas": 2}, "pools": {"orders": {"nested": 1}}},
    )

    config = load(path, environ={"DATABASE_URL": "postgresql://u@h/d", "AMQP_URL": "amqp://h"})

    assert config.consumers["orders"].queue == QUEUE
    assert config.consumers["orders"].types["a.b"].max_attempts == 1
    assert (config.service.name, config.service.replicas) == ("tests", 2)
    assert config.pools["orders"].nested == 1
    assert tomllib.loads(path.read_text())["http"]["port"] == 0
