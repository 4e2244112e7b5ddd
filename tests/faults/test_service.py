"""The service under test works when nothing is broken: what the fault tests then break."""

from __future__ import annotations

from tests.support.service import Service


async def test_a_service_processes_duplicates_and_failures_once_each(service: Service) -> None:
    good = [f"good-{number}" for number in range(20)]
    failing = [f"failing-{number}" for number in range(5)]
    await service.publish(*good, copies=2)
    await service.publish(*failing, fail_in=[1])
    await service.publish("poison", fail_in=[-1])
    await service.publish("refused", reject="never")
    processes = [await service.start(), await service.start()]
    await service.settled()
    await service.exact([*good, *failing], terminal={"poison": "exhausted", "refused": "rejected"})
    await service.stopped(*processes)
    await service.at_rest()
    starts = service.starts()
    assert [starts[message_id] for message_id in failing] == [2] * 5
    assert starts["poison"] == 5
