"""Queues that somebody deletes and makes anew: what waits or is worked on is held, comes back, or has its effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from servers import RabbitServer
from tests.support.databases import Database
from tests.support.eventually import eventually, throughout
from tests.support.outcomes import alive, not_ready, nothing_charged
from tests.support.process import StartFleet
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost


async def _delete(service: Service, queue: str) -> None:
    await (await service.vhost.channel()).queue_delete(queue)


async def test_a_parking_queue_that_was_deleted_holds_its_messages_up_and_loses_none(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"pacing": ["200ms"], "lanes": 4}})
    await service.prepare()
    process = await service.start()
    parking = f"{QUEUE}.park.200ms"
    await _delete(service, parking)
    ids = [f"failing-{number}" for number in range(3)]
    await service.publish(*ids, fail_in=[1])
    await not_ready(process, within_s=15)
    assert all(parking in event["problem"] for event in process.events("message.not_parked"))

    async def held() -> bool:
        counts = await vhost.counts(QUEUE)
        return counts.total == len(ids) and service.starts() == dict.fromkeys(ids, 1)

    await eventually(held, what="all of them being held after their first failure")
    await throughout(held, 1.0, what="all of them being held", every_s=0.1)
    await alive(process)

    await service.apply_topology()
    await service.settled()
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, 2)
    await process.ready()
    await service.stopped(process)
    await service.at_rest()


async def test_a_work_queue_that_is_gone_for_a_while_is_consumed_from_again_and_running_handlers_commit_once(
    service: Service,
) -> None:
    process = await service.start()
    go_on = service.file("go-on")
    ids = [f"message-{number}" for number in range(8)]
    await service.publish(*ids, wait_for=str(go_on))
    await eventually(lambda: len(service.calls()) == 4, 20, what="every lane being at work")
    await _delete(service, QUEUE)
    await eventually(lambda: process.events("subscription.queue_missing"), 20, what="the loss being noticed")
    await service.apply_topology()
    # Whoever sent them sends them once more: the first ones are still being worked on.
    await service.publish(*ids, "another", wait_for=str(go_on))
    await process.ready()
    go_on.touch()
    await service.settled()
    await service.exact([*ids, "another"])
    nothing_charged(process)
    assert "unknown delivery tag" not in process.output
    await service.stopped(process)
    await service.at_rest()


async def test_what_is_parked_outlives_its_work_queue_and_comes_back_when_that_is_made_anew(
    tmp_path: Path, database: Database, own_vhost: Vhost, own_broker: RabbitServer, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, own_vhost, fleet, consumers={"work": {"pacing": ["1s"]}})
    async with _quick_to_try_again(own_broker):
        await service.prepare()
        process = await service.start()
        ids = [f"failing-{number}" for number in range(5)]
        await service.publish(*ids, fail_in=[1])

        async def parked() -> bool:
            queues = await own_vhost.queues()
            return queues[f"{QUEUE}.park.1s"].total == len(ids) and (QUEUE not in queues or not queues[QUEUE].total)

        await eventually(parked, what="all of them being parked")
        await _delete(service, QUEUE)
        # Their step is over, and there is nothing that they could come back to.
        await throughout(parked, 2.0, what="all of them being in the parking queue", every_s=0.1)
        await service.apply_topology()
        await service.settled(60)
        await service.exact(ids)
        assert service.starts() == dict.fromkeys(ids, 2)
        await service.stopped(process)


@asynccontextmanager
async def _quick_to_try_again(broker: RabbitServer) -> AsyncIterator[None]:
    """Let the broker try again after one second, not after 180, to bring back what had nowhere to go."""
    name = "dead_letter_worker_publisher_confirm_timeout"
    before = await asyncio.to_thread(broker.eval, f"{{ok, Value}} = application:get_env(rabbit, {name}), Value.")
    await asyncio.to_thread(broker.eval, f"application:set_env(rabbit, {name}, 1000).")
    try:
        yield
    finally:
        # Without a value the broker cannot start another worker, and so declare no queue that needs one.
        await asyncio.to_thread(broker.eval, f"application:set_env(rabbit, {name}, {before}).")
