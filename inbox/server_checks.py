"""What a database must be like before a fleet works on it: a commit survives a crash, and every text can be stored.

An operator's command asks for less: the schema that it knows, and what its role does there.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from inbox.errors import PrivilegesMissing, SchemaDenied, UnsafeServer
from inbox.migrate import check_schema
from inbox.partitions import runway_s
from inbox.queries import query


async def check_server(connection: asyncpg.Connection[Any]) -> None:
    """Refuse a server whose COMMIT promises too little, a schema that does not fit, a role that may not do everything
    that a fleet does, and missing partitions.

    :raises UnsafeServer: names the setting, its value, and what is allowed.
    :raises SchemaError: run `inbox-fleet migrate`, or deploy the fitting build.
    :raises PrivilegesMissing: names the statements that grant them.
    """
    facts = await connection.fetchrow(query("session_facts"))
    assert facts is not None
    for setting, allowed, why in (
        (
            "synchronous_commit",
            ("on", "remote_write", "remote_apply"),
            "a crash would lose commits whose messages are acked",
        ),
        ("fsync", ("on",), "a crash could lose or corrupt what was committed"),
        ("full_page_writes", ("on",), "a crash could corrupt what was committed"),
        ("encoding", ("UTF8",), "messages hold text that this encoding cannot"),
    ):
        if facts[setting] not in allowed:
            raise UnsafeServer(setting=setting, value=facts[setting], allowed=" or ".join(allowed), why=why)
    try:
        await check_schema(connection)
    except SchemaDenied:
        await _check_privileges(connection)  # says more: all that is missing
        raise
    await _check_privileges(connection)
    if await runway_s(connection) <= 0:
        raise UnsafeServer(
            setting="inbox.receipt and inbox.event",
            value="no partition for now",
            allowed="a partition of each that covers now",
            why="no message can be stamped, or no event staged; run `inbox-fleet migrate`",
        )


async def _check_privileges(connection: asyncpg.Connection[Any]) -> None:
    rows = await connection.fetch(query("missing_grants"))
    if rows:
        raise PrivilegesMissing(
            role=await connection.fetchval(query("current_role")),
            grants=[row["statement"] for row in rows],
            who={row["who"] for row in rows},
        )


async def check_operator(connection: asyncpg.Connection[Any], *, changes: bool) -> None:
    """Refuse a schema that does not fit, and a role that may not do what operators do.

    :param changes: whether messages are going to be replayed, discarded or acknowledged, or looked at alone.
    :raises SchemaError: run `inbox-fleet migrate`, or use the fitting build.
    :raises PrivilegesMissing: names the statements that grant them.
    """
    try:
        await check_schema(connection)
    except SchemaDenied:
        await _check_operators_privileges(connection, changes)
        raise
    await _check_operators_privileges(connection, changes)


async def _check_operators_privileges(connection: asyncpg.Connection[Any], changes: bool) -> None:
    rows = await connection.fetch(query("missing_operator_grants"), changes)
    if rows:
        raise PrivilegesMissing(
            role=await connection.fetchval(query("current_role")),
            grants=[row["statement"] for row in rows],
            work="what an operator does" if changes else "what it takes to look at messages",
        )
