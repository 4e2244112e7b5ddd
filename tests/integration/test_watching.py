"""What a running process says of itself: one line per attempt, the handler's own lines, and metrics that agree."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.databases import Database
from tests.support.process import FleetProcess, StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost


async def talkative(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    consumers = {"work": {"handler": "tests.support.talkative:work"}}
    service = Service(tmp_path, database, vhost, fleet, consumers=consumers)
    await service.prepare()
    return service


async def metric(process: FleetProcess, sample: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values of the samples of this name, by the values of these labels."""
    status, exposed = await process.get("/metrics")
    assert status == 200
    return {
        tuple(found.labels.get(label, "") for label in labels): found.value
        for family in text_string_to_metric_families(exposed)
        for found in family.samples
        if found.name == sample
    }


async def test_every_attempt_is_one_line_and_one_count(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = await talkative(tmp_path, database, vhost, fleet)
    process = await service.start()
    await service.publish("good-1", "good-2", "twice")
    await service.settled()
    await service.publish("twice", "fails-1")
    await service.publish("odd", kind="test.unknown")
    await service.settled()

    await service.exact(["good-1", "good-2", "twice", "fails-1"], terminal={"odd": "rejected"})
    lines = process.events("attempt.settled")
    outcomes = Counter((line["message_id"], line["outcome"]) for line in lines)
    assert outcomes == Counter(
        {
            ("good-1", "processed"): 1,
            ("good-2", "processed"): 1,
            ("twice", "processed"): 1,
            ("twice", "duplicate"): 1,
            ("fails-1", "waiting"): 1,
            ("fails-1", "processed"): 1,
            ("odd", "rejected"): 1,
        }
    )
    (failed,) = [line for line in lines if line["outcome"] == "waiting"]
    assert (failed["consumer"], failed["attempt"], failed["error_class"]) == ("work", 1, "ValueError")
    counted = await metric(process, "inbox_attempts_total", "consumer", "outcome", "type")
    assert counted == {
        ("work", "processed", "test.work"): 4,
        ("work", "duplicate", "test.work"): 1,
        ("work", "waiting", "test.work"): 1,
        ("work", "rejected", "_OTHER"): 1,
    }
    assert await metric(process, "messaging_client_consumed_messages_total", "consumer") == {("work",): len(lines)}
    assert await metric(process, "inbox_lanes_busy", "consumer") == {("work",): 0}
    assert await metric(process, "inbox_breaker_open", "consumer") == {("work",): 0}
    assert await metric(process, "inbox_telemetry_faults_total", "place") == {}
    used = await metric(process, "db_client_connection_count", "db_client_connection_pool_name")
    assert {("work",), ("housekeeping",)} <= used.keys()
    await service.stopped(process)


async def test_a_handlers_own_lines_carry_its_attempt_and_cannot_fail_it(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = await talkative(tmp_path, database, vhost, fleet)
    process = await service.start()
    await service.publish("good")
    await service.publish("threaded", kind="test.plain")
    await service.settled()

    await service.exact(["good", "threaded"])
    own = [process.events(name) for name in ("handler.spoke", "does not %d fit", "said plainly", "thread.spoke")]
    assert [len(lines) for lines in own] == [1, 2, 1, 1]
    for line in (line for lines in own for line in lines):
        assert line["consumer"] == "work"
        assert line["message_id"] == ("threaded" if line["event"] == "thread.spoke" else "good")
        assert line["attempt"] == 1
        assert line["claim_id"]
    (spoke,) = own[0]
    assert spoke["envelope"] == {"message_id": "good", "type": "test.work", "consumer": "work"}
    assert spoke["broker"] == "amqp://fleet:***@broker.example:5672/"
    await service.stopped(process)


async def test_no_secret_body_or_error_text_is_said(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = await talkative(tmp_path, database, vhost, fleet)
    process = await service.start()
    await service.publish("fails-1", reached=str(service.file("marker-of-a-body")))
    await service.settled()
    _, exposed = await process.get("/metrics")
    await service.stopped(process)

    for marker in ("marker-of-a-password", "marker-of-a-body"):
        assert marker not in process.output
        assert marker not in exposed
    assert "the-text-of-an-error" not in exposed
    for line in process.output.splitlines():
        assert json.loads(line)["timestamp"].endswith("Z")


async def test_a_taken_port_ends_the_start_by_name(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = Service(tmp_path, database, vhost, fleet, tables={"http": {"port": port}})
        await service.prepare()
        process = service.spawn()

        await process.exited(1)

    assert f"cannot listen for probes and metrics on 127.0.0.1:{port}: Address already in use" in process.output
    assert "[http]" in process.output
    assert "Traceback" not in process.output
