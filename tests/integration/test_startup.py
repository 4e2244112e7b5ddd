"""What a start refuses before the first delivery, on a real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers import startup
from consumers.config import load
from consumers.plan import plan
from consumers.secrets import Secret
from inbox import UnsafeServer
from tests.support.configs import write_config
from tests.support.databases import Database


async def test_a_pooler_that_shares_sessions_is_refused_by_name(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, consumers={"work": {"queue": "work", "handler": "tests.support.behaviours:work"}})
    planned = plan(load(config, needs=()))
    url = Secret(database.url, origin="the test")
    assert (await startup.verify_database(planned, url)).wanted > 0

    async def shared(_: str, *, deadline_s: float) -> bool:
        return deadline_s > 0

    # The detection itself is proven where it lives; no pooler can be taken for granted here.
    monkeypatch.setattr(startup, "detect_transaction_pooler", shared)
    with pytest.raises(UnsafeServer, match="shares server sessions"):
        await startup.verify_database(planned, url)
