"""Which statements a handler may not send, whatever stands in front of their first word."""

from __future__ import annotations

from itertools import product

import pytest

from inbox.errors import TxRefused
from inbox.transaction_control import check

REFUSED = (
    "begin",
    "start transaction",
    "commit",
    "commit and chain",
    "end",
    "rollback",
    "rollback to savepoint s",
    "abort",
    "savepoint s",
    "release s",
    "prepare transaction 'x'",
    "prepare p as select 1",
    "deallocate all",
    "discard all",
    "reset all",
    "reset role",
    "listen channel",
    "unlisten *",
    "set search_path = other",
    "set session authorization other",
    "set session characteristics as transaction isolation level serializable",
    "set transaction isolation level serializable",
    "set local transaction read only",
    "set session transaction read only",
    "set role other",
)
DISGUISES = (
    "{}",
    "  \t\n {}",
    ";{}",
    " ; ;; {}",
    "-- a comment\n{}",
    "-- a comment\r{}",
    "--\n--\n{}",
    "/* a */{}",
    "/* a /* nested */ still a comment */{}",
    "/**/{}",
    ";/* a /* b */ */ --c\n {}",
    "{};",
)


@pytest.mark.parametrize("statement", REFUSED)
def test_transaction_and_session_control_is_refused_in_every_disguise(statement: str) -> None:
    for written, disguise in product((statement, statement.upper(), statement.title()), DISGUISES):
        with pytest.raises(TxRefused) as refused:
            check(disguise.format(written))
        assert refused.value.keyword.split()[0] == statement.split()[0].upper()


@pytest.mark.parametrize(
    "statement",
    [
        "select 1",
        "insert into t values (1)",
        "update t set a = 1",
        "with x as (select 1) select * from x",
        "(select 1)",
        "values (1)",
        "call p()",
        "do $$ begin perform 1; end $$",
        "notify channel",
        "set local statement_timeout = '1s'",
        "SET LOCAL lock_timeout = 5",
        "set /* only here */ local search_path = other",
        "set -- only here\n local search_path = other",
        "set constraints all deferred",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "select 'commit'",
        "-- commit\nselect 1",
        "/* commit */ select 1",
        "/* /* */ commit */ select 1",
        "explain select 1",
        "lock table t",
        "endpoint",
        "",
        "   ",
        "-- only a comment",
        "/* never closed",
    ],
)
def test_everything_else_may_pass(statement: str) -> None:
    check(statement)


def test_set_without_local_is_refused_although_a_later_word_says_local() -> None:
    with pytest.raises(TxRefused):
        check("set search_path = local")


def test_a_refusal_names_the_keyword_and_the_way_to_do_it() -> None:
    with pytest.raises(TxRefused, match=r"tx refuses COMMIT: .*tx\.savepoint\(\)"):
        check("commit")
    with pytest.raises(TxRefused, match=r"tx refuses SET: .*SET LOCAL"):
        check("set search_path = other")


@pytest.mark.parametrize(
    "written", ["set transaction", "SET LOCAL /* only here */ TRANSACTION", "set session transaction"]
)
def test_the_refusal_of_another_isolation_says_that_the_transaction_runs_already(written: str) -> None:
    with pytest.raises(TxRefused, match=r"tx refuses SET TRANSACTION: .* runs already, read committed") as refused:
        check(f"{written} isolation level serializable")
    assert "SET LOCAL" not in str(refused.value)
    check("set local transaction_timeout = '1s'")


@pytest.mark.parametrize(
    "statement", ["copy t from stdin", "COPY t (a, b) FROM STDIN (format csv)", "copy t to stdout"]
)
def test_a_copy_that_would_wait_for_a_client_is_refused_with_the_way_to_do_it(statement: str) -> None:
    with pytest.raises(TxRefused, match=r"tx refuses COPY: .*tx\.copy\(\)"):
        check(statement)
    check("copy t from '/srv/data.csv'")


@pytest.mark.parametrize("text", ["select '\ud800'", "\udfff", "select 1 -- \udc80"])
def test_a_lone_surrogate_is_refused_before_it_can_close_the_connection(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        check(text)


@pytest.mark.parametrize("text", ["select '\x00'", "\x00commit", "select 1 -- \x00"])
def test_nul_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="pass the value as an argument"):
        check(text)


def test_a_refused_statement_is_refused_every_time() -> None:
    for _ in range(3):
        with pytest.raises(TxRefused):
            check("commit -- again")


def test_a_text_too_long_to_be_remembered_is_judged_like_any_other() -> None:
    check("select 1 -- " + "x" * 100_000)
    with pytest.raises(TxRefused):
        check("/*" + "x" * 100_000 + "*/ commit")
