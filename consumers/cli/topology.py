"""`inbox-fleet topology`: the queues and bindings that configuration and handlers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumers.cli.exits import Exit
from consumers.cli.options import app_dir_option, config_option, output_option
from consumers.cli.output import logs_withheld, write_json, write_table

if TYPE_CHECKING:
    from consumers.plan import FleetPlan
    from consumers.topology import Finding, Topology


@click.group()
def topology() -> None:
    """Show, declare or verify queues and bindings: work queues, parking queues, dead-letter queues.

    A running fleet declares nothing: it verifies, and names what differs. Nothing here deletes or changes a queue.
    """


@topology.command()
@config_option
@app_dir_option
@output_option
def show(config_file: Path, output: str) -> None:
    """Show what is needed, without asking a broker.

    On RabbitMQ 4.0 and later work queues and dead-letter queues are declared with x-delivery-limit = -1 besides, since
    these versions drop a message after 20 requeues otherwise.

    \b
    Example:  inbox-fleet topology show --output json
    """
    from consumers.config import load
    from consumers.plan import plan
    from consumers.topology import topologies

    needed = topologies(plan(load(config_file, needs=())))
    if output == "json":
        write_json({"consumers": [_described(each) for each in needed]})
    else:
        rows = [row for each in needed for row in _rows(each)]
        write_table(("consumer", "kind", "name", "type", "arguments"), rows)


@topology.command()
@config_option
@app_dir_option
@output_option
@click.pass_context
def apply(ctx: click.Context, config_file: Path, output: str) -> None:
    """Declare what is missing, and bind.

    What exists and differs is named and left alone, and so is everything else of that consumer: exit 4, or 3 if other
    consumers' queues are in place by now.

    \b
    Example:  inbox-fleet topology apply --config fleet.toml
    """
    ctx.exit(_on_broker(config_file, output, applying=True))


@topology.command()
@config_option
@app_dir_option
@output_option
@click.pass_context
def verify(ctx: click.Context, config_file: Path, output: str) -> None:
    """Compare what the broker has with what is needed; change nothing. Exit 4 if anything is missing or differs.

    Neither bindings nor what policies change can be seen over AMQP.

    \b
    Example:  inbox-fleet topology verify --config fleet.toml
    """
    ctx.exit(_on_broker(config_file, output, applying=False))


def _on_broker(config_file: Path, output: str, *, applying: bool) -> Exit:
    from consumers.config import load
    from consumers.loop import run_until_done
    from consumers.plan import plan

    planned = plan(load(config_file, needs=("broker",)))
    with logs_withheld():
        findings, refusals = run_until_done(_asked(planned, applying=applying))
    if output == "json":
        things = [
            {
                "consumer": finding.consumer,
                "kind": finding.kind,
                "name": finding.name,
                "status": finding.status.value,
                "detail": finding.detail,
                "fits": not finding.is_mismatch,
            }
            for finding in findings
        ]
        refused = [{"consumer": name, "problem": problem} for name, problem in refusals]
        write_json({"findings": things, "refused": refused})
    else:
        rows = [
            (finding.consumer, finding.kind, finding.name, finding.status.value, finding.detail) for finding in findings
        ]
        write_table(("consumer", "kind", "name", "status", "detail"), rows)
        for name, problem in refusals:
            click.echo(f"Error: consumer {name}: {problem}", err=True)
    if refusals:
        return Exit.PARTIAL if findings else Exit.PRECONDITION
    return Exit.PRECONDITION if any(finding.is_mismatch for finding in findings) else Exit.OK


async def _asked(plan: FleetPlan, *, applying: bool) -> tuple[list[Finding], list[tuple[str, str]]]:
    """Return what was found or done, and for each consumer that was left alone why."""
    from consumers.connection import connect
    from consumers.errors import TopologyMismatch
    from consumers.startup import broker_endpoint
    from consumers.topology import apply, topologies, verify

    needed = topologies(plan)
    findings: list[Finding] = []
    refusals: list[tuple[str, str]] = []
    connection = await connect(broker_endpoint(plan, plan.config.broker_url(), "topology"))
    try:
        for each in needed:
            try:
                findings += await (apply if applying else verify)(connection, each)
            except TopologyMismatch as mismatch:
                refusals += [(each.consumer, difference) for difference in mismatch.differences]
    finally:
        await connection.close()
    return findings, refusals


def _described(needed: Topology) -> dict[str, Any]:
    return {
        "consumer": needed.consumer,
        "queues": [
            {"name": queue.name, "type": queue.type, "purpose": queue.purpose, "arguments": dict(queue.arguments)}
            for queue in needed.queues
        ],
        "exchanges": [{"name": exchange.name, "type": exchange.type} for exchange in needed.exchanges],
        "bindings": [
            {
                "exchange": binding.exchange,
                "queue": needed.work.name,
                "routing_key": binding.routing_key,
                "arguments": dict(binding.arguments),
            }
            for binding in needed.bindings
        ],
    }


def _rows(needed: Topology) -> list[tuple[str, ...]]:
    name = needed.consumer
    rows: list[tuple[str, ...]] = [
        (name, f"{queue.purpose} queue", queue.name, queue.type, _arguments(queue.arguments)) for queue in needed.queues
    ]
    rows += [(name, "exchange", exchange.name, exchange.type or "(not ours)", "") for exchange in needed.exchanges]
    rows += [
        (
            name,
            "binding",
            f"{binding.exchange} --{binding.routing_key}--> {needed.work.name}",
            "",
            _arguments(binding.arguments),
        )
        for binding in needed.bindings
    ]
    return rows


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in arguments.items())
