"""A database URL that does not lead where it should: one message, which says what and where, and never the password."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from consumers.cli.exits import Exit
from consumers.database import reaching_database
from consumers.errors import DatabaseUnavailable, UrlRefused
from consumers.secrets import Secret
from tests.support.command import inbox_fleet
from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.vhosts import Vhost

CONSUMERS = {"work": {"queue": "work", "handler": "tests.support.behaviours:work"}}
COMMANDS = pytest.mark.parametrize("command", ["migrate", "check", "run"])


async def reach(url: str) -> None:
    with reaching_database(Secret(url, origin="the test")):
        connection = await asyncpg.connect(url, timeout=5.0)
        connection.terminate()


def password(url: str) -> str:
    found = urlsplit(url).password
    assert found
    return found


@pytest.mark.parametrize(
    ("parameter", "named"),
    [
        ("sslmod=require", 'unrecognized configuration parameter "sslmod"'),
        ("connect_timeout=3", '"connect_timeout"'),
        ("options=-c%20nonsense%3D1", '"nonsense"'),
        ("sslmode=sometimes", "verify-full"),
        ("target_session_attrs=any-at-all", "got 'any-at-all'"),
        ("statement_timeout=soon", '"statement_timeout": "soon"'),
        ("max_connections=3", "cannot be changed without restarting"),
    ],
)
async def test_a_parameter_that_nobody_knows_is_named(database: Database, parameter: str, named: str) -> None:
    url = f"{database.url}?{parameter}"
    with pytest.raises(UrlRefused, match="the URL from the test is refused") as refused:
        await reach(url)
    assert named in refused.value.problem
    assert password(url) not in str(refused.value)
    assert " at 0x" not in str(refused.value)


async def test_a_host_that_no_name_service_could_know_is_named() -> None:
    with pytest.raises(UrlRefused, match="no host name"):
        await reach("postgresql://app:hunter2@db..example/billing")


async def test_a_setting_that_the_role_may_not_make_is_waited_for(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match='permission denied to set parameter "log_statement"'):
        await reach(f"{database.url}?log_statement=all")


async def test_a_file_that_is_not_there_is_no_server_that_is_down(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match="No such file or directory; is the socket, or the file of a cert"):
        await reach(f"{database.url}?sslmode=require&sslcert=/nowhere.pem")


@pytest.mark.parametrize("mode", ["prefer", "disable", "require"])
async def test_a_broker_is_said_to_be_no_database(vhost: Vhost, mode: str) -> None:
    url = vhost.url.replace("amqp://", "postgresql://") + f"?sslmode={mode}"
    with pytest.raises(DatabaseUnavailable, match="PostgreSQL") as refused:
        await reach(url)
    said = str(refused.value)
    assert "does not answer as PostgreSQL does; is it another server's port" in said or "is no PostgreSQL" in said
    assert password(url) not in said


@pytest.mark.parametrize("between", [True, False], ids=["between two statements", "in a statement"])
async def test_a_session_that_ends_while_it_is_in_use_is_waited_for(database: Database, between: bool) -> None:
    connection, other = await database.connect(), await database.connect()
    pid = connection.get_server_pid()
    try:
        with pytest.raises(DatabaseUnavailable), reaching_database(Secret(database.url, origin="the test")):
            if between:
                await other.execute("select pg_terminate_backend($1)", pid)
                await eventually(connection.is_closed, what="the end of the session")
                await connection.fetch("select 1")
            else:
                await connection.fetch("select pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
    finally:
        connection.terminate()
        await other.close()


async def test_a_session_that_the_driver_has_lost_track_of_is_waited_for() -> None:
    # What it raises where a line ends between the two halves of a statement.
    confused = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    url = "postgresql://app:hunter2@db.example/billing"
    with (
        pytest.raises(DatabaseUnavailable, match="the session was lost"),
        reaching_database(Secret(url, origin="the test")),
    ):
        raise confused


async def test_an_error_of_a_statement_is_not_taken_for_one_of_the_url(database: Database) -> None:
    connection = await database.connect()
    for statement, error in (
        ("set nonsense = 1", asyncpg.UndefinedObjectError),
        ("set statement_timeout = 'soon'", asyncpg.InvalidParameterValueError),
        ("set log_statement = 'all'", asyncpg.InsufficientPrivilegeError),
    ):
        with pytest.raises(error), reaching_database(Secret(database.url, origin="the test")):
            await connection.execute(statement)


@COMMANDS
async def test_a_misspelt_parameter_ends_every_command_by_its_name(
    tmp_path: Path, database: Database, vhost: Vhost, command: str
) -> None:
    write_config(tmp_path, consumers=CONSUMERS)
    environ = {"DATABASE_URL": f"{database.url}?sslmod=require", "AMQP_URL": vhost.url}
    ended = await inbox_fleet(command, folder=tmp_path, environ=environ)
    assert ended.code == Exit.USAGE
    assert "environment variable DATABASE_URL" in ended.stderr
    assert '"sslmod"' in ended.stderr
    assert "Traceback" not in ended.stderr
    assert password(database.url) not in ended.stderr + ended.stdout
    assert len([line for line in ended.stderr.splitlines() if line.startswith("Error: ")]) == 1


@COMMANDS
async def test_a_port_that_is_no_number_ends_every_command(tmp_path: Path, command: str) -> None:
    write_config(tmp_path, consumers=CONSUMERS)
    environ = {"DATABASE_URL": "postgresql://app:hunter2@/billing?host=db&port=abc", "AMQP_URL": "amqp://127.0.0.1:1"}
    ended = await inbox_fleet(command, folder=tmp_path, environ=environ)
    assert ended.code == Exit.USAGE
    assert "its parameter port is not a number" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr
