"""Mistakes in a configuration, through the real command: one block with file, key, value, what is allowed; exit 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.cli.exits import Exit
from tests.support.command import Finished, inbox_fleet

FLEET = """
[service]
name = "billing"
replicas = 2

[pools.invoices]

[consumers.invoices]
queue = "billing.invoices"
handler = "config_handlers:invoices"
lanes = 4
handler_timeout = "30s"
"""
HANDLERS = """
from consumers import Consumer

invoices = Consumer("invoices")

@invoices.on("order.placed")
async def invoice(envelope, tx): ...
"""
NOWHERE = {
    "DATABASE_URL": "postgresql://app:hunter2@127.0.0.1:1/billing",
    "AMQP_URL": "amqp://app:hunter2@127.0.0.1:1/shop",
}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "config_handlers.py").write_text(HANDLERS)
    return tmp_path


def facts_of(done: Finished) -> dict[str, str]:
    """Return the facts of the one block on stderr, by name."""
    assert done.code == Exit.USAGE, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
    first, *rest = done.stderr.splitlines()
    assert first.startswith("Error: the configuration is refused"), done.stderr
    facts = {}
    for line in rest:
        assert line.startswith("  "), f"more than one block:\n{done.stderr}"
        name, _, value = line.strip().partition(" ")
        assert name not in facts, f"{name} is said twice:\n{done.stderr}"
        facts[name] = value.strip()
    return facts


MISTAKES = {
    "a key with a typo": ("lanes = 4", "lane = 4", "consumers.invoices.lane", None, "lanes"),
    "a table with a typo": ("[service]", "[servce]", "servce", None, "service"),
    "a duration without its unit": ('"30s"', '"30"', "consumers.invoices.handler_timeout", '"30"', "30s"),
    "a number as text": ("lanes = 4", 'lanes = "4"', "consumers.invoices.lanes", '"4"', "number"),
    "no lanes": ("lanes = 4", "lanes = 0", "consumers.invoices.lanes", "0", "1"),
    "a handler that is no reference": (
        '"config_handlers:invoices"',
        '"config_handlers.invoices"',
        "consumers.invoices.handler",
        '"config_handlers.invoices"',
        "module:",
    ),
    "a pool that is not declared": (
        "[pools.invoices]",
        "[pools.invoice]",
        "consumers.invoices.pool",
        '"invoices"',
        "invoice",
    ),
    "a handler that may outlive a stop": (
        '"30s"',
        '"2m"',
        "consumers.invoices.handler_timeout",
        '"2m"',
        "drain.deadline",
    ),
    "no queue": ('queue = "billing.invoices"\n', "", "consumers.invoices.queue", None, "text"),
    "a choice about no error": (
        "lanes = 4",
        'faults = { "unique violation" = "charge" }',
        'consumers.invoices.faults."unique violation"',
        '"charge"',
        "SQLSTATE",
    ),
    "a choice about an error that nobody knows": (
        "lanes = 4",
        'faults = { "config_handlers.Outage" = "pause" }',
        'consumers.invoices.faults."config_handlers.Outage"',
        '"pause"',
        "exception type",
    ),
    "a choice that there is not": (
        "lanes = 4",
        'faults = { P0001 = "ignore" }',
        "consumers.invoices.faults.P0001",
        '"ignore"',
        "abort",
    ),
    "no TOML": ("[service]", "[service", None, None, "TOML"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_mistake_is_said_once_with_its_place_and_what_is_allowed(
    fleet: Path, mistake: tuple[str, str, str | None, str | None, str]
) -> None:
    right, wrong, key, value, allowed = mistake
    assert FLEET.count(right) == 1
    (fleet / "fleet.toml").write_text(FLEET.replace(right, wrong))
    done = await inbox_fleet("run", folder=fleet, environ=NOWHERE)
    facts = facts_of(done)
    assert facts["file"] == "fleet.toml"
    assert facts.get("key") == key
    assert facts.get("value") == value
    assert allowed in facts["allowed"]


@pytest.mark.parametrize("command", [("run",), ("check",), ("migrate",), ("topology", "show")])
async def test_every_command_refuses_a_mistake_in_the_same_words(fleet: Path, command: tuple[str, ...]) -> None:
    (fleet / "fleet.toml").write_text(FLEET.replace("lanes = 4", "lanes = -4"))
    facts = facts_of(await inbox_fleet(*command, folder=fleet, environ=NOWHERE))
    assert (facts["file"], facts["key"], facts["value"]) == ("fleet.toml", "consumers.invoices.lanes", "-4")


async def test_a_url_that_is_missing_is_said_before_anything_is_asked(fleet: Path) -> None:
    facts = facts_of(await inbox_fleet("run", folder=fleet, environ={"AMQP_URL": NOWHERE["AMQP_URL"]}))
    assert "DATABASE_URL" in " ".join(facts.values())


@pytest.mark.parametrize("command", ["run", "check", "topology show", "topology verify"])
async def test_a_handler_that_asks_for_what_no_lifespan_provides_is_refused_by_every_command(
    fleet: Path, command: str
) -> None:
    (fleet / "config_handlers.py").write_text(f"from pathlib import Path\n{HANDLERS.replace('tx)', 'tx, path: Path)')}")
    done = await inbox_fleet(*command.split(), folder=fleet, environ=NOWHERE)
    assert (done.code, done.stdout) == (Exit.USAGE, "")
    (line,) = done.stderr.splitlines()
    assert "parameter path of config_handlers:invoice (config_handlers.py:" in line
    assert "no lifespan provides pathlib.Path; by their annotations: nothing" in line


@pytest.mark.parametrize("command", ["run", "check", "topology verify"])
@pytest.mark.parametrize(
    ("end", "problem"),
    [("?heartbeat=99", "broker.heartbeat"), (":0/shop", "its port is 0"), ("/sh%op", "two hexadecimal digits")],
)
async def test_a_broker_url_that_no_client_could_use_ends_every_command_at_once(
    fleet: Path, command: str, end: str, problem: str
) -> None:
    environ = {**NOWHERE, "AMQP_URL": f"amqp://app:hunter2@127.0.0.1{end}"}
    done = await inbox_fleet(*command.split(), folder=fleet, environ=environ)
    facts = facts_of(done)
    assert (facts["key"], facts["value"]) == ("broker.url_env", "AMQP_URL")
    assert problem in done.stderr


async def test_a_secret_under_a_wrong_key_is_not_shown(fleet: Path) -> None:
    (fleet / "fleet.toml").write_text(FLEET + '\n[database]\nulr = "postgresql://app:hunter2@db/billing"\n')
    facts = facts_of(await inbox_fleet("check", folder=fleet, environ=NOWHERE))
    assert facts["key"] == "database.ulr"
    assert "url" in facts["allowed"]


LOSING = {
    "a delivery limit": (
        "x-delivery-limit = 5",
        "queue_arguments.x-delivery-limit",
        "5",
        "before they are used up",
    ),
    "an expiry": ("x-message-ttl = 1000", "queue_arguments.x-message-ttl", "1000", "before they are processed"),
    "a circle": ('x-dead-letter-exchange = ""', "queue_arguments.x-dead-letter-routing-key", None, "such cycles"),
}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        *((command, "a delivery limit") for command in ("run", "topology show", "topology apply", "topology verify")),
        *(("check", named) for named in LOSING),
    ],
)
async def test_queue_arguments_that_lose_messages_are_refused_by_every_command_before_a_server_is_asked(
    fleet: Path, command: str, named: str
) -> None:
    line, key, value, problem = LOSING[named]
    (fleet / "fleet.toml").write_text(f"{FLEET}\n[consumers.invoices.queue_arguments]\n{line}\n")
    done = await inbox_fleet(*command.split(), folder=fleet, environ=NOWHERE)
    facts = facts_of(done)
    assert (facts["key"], facts.get("value")) == (f"consumers.invoices.{key}", value)
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        ('"billing.invoices"', '"billing[invoices]"', "consumers.invoices.queue"),
        ("lanes = 4", 'bindings = [{ exchange = "shop!" }]', "consumers.invoices.bindings"),
    ],
)
async def test_names_that_the_broker_would_not_take_are_refused_where_they_stand(
    fleet: Path, right: str, wrong: str, key: str
) -> None:
    (fleet / "fleet.toml").write_text(FLEET.replace(right, wrong))
    assert facts_of(await inbox_fleet("check", folder=fleet, environ=NOWHERE))["key"] == key
