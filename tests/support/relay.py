"""What the fixture `relay_before` gives; the relay itself stands with the servers, in `servers.relay`."""

from __future__ import annotations

from typing import Protocol

from servers.relay import Relay


class RelayBefore(Protocol):
    """What the fixture `relay_before` gives: opens a relay before the server of a URL."""

    async def __call__(self, url: str, *, keeps_logs: bool = False) -> Relay: ...
