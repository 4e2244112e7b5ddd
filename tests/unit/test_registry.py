"""Registering handlers: what is accepted, and each mistake named at import, with the handler and its place."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar, runtime_checkable

import pytest

from consumers.errors import ConsumerNotFound, RegistrationError, ResourceMissing, UnexpectedAnswer
from consumers.registry import Consumer, load_consumer
from consumers.resources import Resources
from inbox import Reject, Retry

if TYPE_CHECKING:
    from inbox import Envelope, ExhaustionRecord

    Tx = Any

T = TypeVar("T")


class Client:
    """A resource."""


class OtherClient(Client):
    """A resource of a subclass."""


class Box(Generic[T]):
    """A resource of a generic class."""


@runtime_checkable
class Fetches(Protocol):
    def fetch(self) -> str: ...


class Unrecognisable(Protocol):
    def fetch(self) -> str: ...


class Fetcher:
    def fetch(self) -> str:
        return "x"


async def plain(envelope: Envelope, tx: Tx) -> None: ...


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.fixture
def invoices() -> Consumer:
    return Consumer("invoices")


def test_a_handler_is_found_by_its_type(invoices: Consumer) -> None:
    assert invoices.on("order.placed")(plain) is plain
    handler = invoices.handler_for("order.placed")
    assert handler is not None
    assert handler.name == f"{__name__}:plain"
    assert handler.where == f"{Path(__file__).relative_to(Path.cwd())}:{plain.__code__.co_firstlineno}"
    assert (handler.function, handler.is_sync, dict(handler.resources)) == (plain, False, {})
    assert invoices.handler_for("order.cancelled") is None
    assert invoices.handler_for("") is None


def test_one_function_may_serve_several_types(invoices: Consumer) -> None:
    invoices.on("d", max_attempts=9)(invoices.on(("a", "b"))(invoices.on("c")(plain)))
    assert sorted(invoices.handlers) == ["a", "b", "c", "d"]
    assert invoices.handlers["a"].max_attempts is None
    assert invoices.handlers["d"].max_attempts == 9


def test_the_catch_all_serves_what_nobody_else_does(invoices: Consumer) -> None:
    async def rest(envelope: Envelope, tx: Tx) -> None: ...

    invoices.on("a")(plain)
    invoices.on("*")(rest)
    for message_type, expected in (("a", plain), ("b", rest), ("", rest)):
        handler = invoices.handler_for(message_type)
        assert handler is not None
        assert handler.function is expected


def test_options_are_read_as_in_the_file(invoices: Consumer) -> None:
    invoices.on("a", max_attempts=3, timeout="2m", pacing=["0s", "5s", 30])(plain)
    handler = invoices.handlers["a"]
    assert (handler.max_attempts, handler.timeout_s, handler.pacing_s) == (3, 120, (0, 5, 30))


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": "3"},
        {"timeout": 0},
        {"timeout": "soon"},
        {"timeout": True},
        {"pacing": ()},
        {"pacing": "5s"},
        {"pacing": ["5x"]},
        {"pacing": ["1ms"]},
        {"pacing": [1] * 17},
    ],
)
def test_an_option_that_is_not_allowed_is_named(invoices: Consumer, options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match=next(iter(options))) as caught:
        invoices.on("a", **options)(plain)
    assert caught.value.allowed
    assert not invoices.handlers


async def no_parameters() -> None: ...


async def one_parameter(envelope: Envelope) -> None: ...


async def swapped(tx: Tx, envelope: Envelope) -> None: ...


async def swapped_by_one(tx: Envelope, envelope: Envelope) -> None: ...


async def body(body: dict[str, Any], tx: Tx) -> None: ...


async def connection(envelope: Envelope, connection: str) -> None: ...


async def keyword_only(envelope: Envelope, *, tx: Tx) -> None: ...


async def anything(*args: Any, **kwargs: Any) -> None: ...


async def not_annotated(envelope: Envelope, tx: Tx, client) -> None: ...  # type: ignore[no-untyped-def]


async def positional(envelope: Envelope, tx: Tx, client: Client, /) -> None: ...


async def union(envelope: Envelope, tx: Tx, client: Client | None) -> None: ...


async def any_object(envelope: Envelope, tx: Tx, client: object) -> None: ...


async def protocol(envelope: Envelope, tx: Tx, client: Unrecognisable) -> None: ...


async def unknown_name(envelope: Envelope, tx: Tx, client: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def async_generator(envelope: Envelope, tx: Tx) -> AsyncIterator[None]:
    yield


def generator(envelope: Envelope, tx: Tx) -> Iterator[None]:
    yield


class InClass:
    async def handle(self, envelope: Envelope, tx: Tx) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_parameters, "no positional parameters"),
        (one_parameter, "1 positional parameter instead"),
        (swapped, "envelope comes first"),
        (swapped_by_one, "envelope comes first"),
        (body, "annotated dict"),
        (connection, "annotated str"),
        (keyword_only, "1 positional parameter"),
        (anything, "functools.wraps"),
        (not_annotated, "parameter client: it has no annotation"),
        (positional, "positional-only"),
        (union, "parameter client"),
        (any_object, "everything is an object"),
        (protocol, "@runtime_checkable"),
        (unknown_name, "TYPE_CHECKING"),
        (async_generator, "yield"),
        (generator, "yield"),
        (functools.partial(generator), "yield"),
        (InClass.handle, "self"),
        (InClass, "class"),
        ("plain", "not a function"),
        (None, "not a function"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused_with_its_place(
    invoices: Consumer, function: Any, problem: str
) -> None:
    with pytest.raises(RegistrationError) as caught:
        invoices.on("a")(function)
    error = caught.value
    assert problem in error.problem
    assert "Envelope" in error.allowed
    assert "consumer invoices" in str(error)
    code = getattr(getattr(function, "func", function), "__code__", None)
    if code is not None:
        assert error.where.endswith(f"test_registry.py:{code.co_firstlineno}")
        assert code.co_qualname.rpartition(".")[2] in error.subject
    assert not invoices.handlers


@pytest.mark.parametrize("types", ["", "order.*", "#", "a\n", "x" * 256, 3, b"a", (), ("a", "a"), ("a", "")])
def test_a_type_that_cannot_be_one_is_refused(invoices: Consumer, types: Any) -> None:
    with pytest.raises(RegistrationError) as caught:
        invoices.on(types)(plain)
    assert caught.value.subject == f"{__name__}:plain"
    assert not invoices.handlers


def test_a_type_has_one_handler(invoices: Consumer) -> None:
    async def second(envelope: Envelope, tx: Tx) -> None: ...

    invoices.on("a")(plain)
    with pytest.raises(RegistrationError, match="already handled by") as caught:
        invoices.on(("b", "a"))(second)
    assert f":{plain.__code__.co_firstlineno}" in caught.value.problem
    assert list(invoices.handlers) == ["a"]


def test_a_decorator_without_a_type_is_refused(invoices: Consumer) -> None:
    with pytest.raises(RegistrationError, match="without a message type"):
        invoices.on(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Invoices", "a b", "a.b", 3, None, "x" * 41])
def test_a_consumer_has_a_name(name: Any) -> None:
    with pytest.raises(RegistrationError, match="not a name"):
        Consumer(name)


def test_what_wraps_a_function_is_looked_through(invoices: Consumer) -> None:
    async def handle(envelope: Envelope, tx: Tx, client: Client, factor: int) -> None: ...

    class Called:
        async def __call__(self, envelope: Envelope, tx: Tx) -> None: ...

        def blocking(self, envelope: Envelope, tx: Tx) -> None: ...

    invoices.on("partial")(functools.partial(handle, factor=2))
    invoices.on("object")(Called())
    invoices.on("method")(Called().blocking)
    invoices.on("wrapped")(passed_on(functools.partial(handle, factor=2)))
    invoices.on("lambda")(lambda envelope, tx: None)
    assert {name: handler.is_sync for name, handler in invoices.handlers.items()} == {
        "partial": False,
        "object": False,
        "method": True,
        "wrapped": False,
        "lambda": True,
    }
    assert dict(invoices.handlers["partial"].resources) == {"client": Client}
    assert dict(invoices.handlers["wrapped"].resources) == {"client": Client}
    assert invoices.handlers["partial"].name.endswith("handle")
    assert invoices.handlers["object"].name.endswith("Called.__call__")
    assert invoices.handlers["wrapped"].name.endswith("handle")


def test_resources_are_chosen_by_annotation(invoices: Consumer) -> None:
    async def handle(
        envelope: Envelope,
        tx: Tx,
        client: Client,
        box: Box[int],
        *,
        fetcher: Annotated[Fetches, "the one"],
        other: OtherClient | None = None,
        limit: int = 3,
        late: Box[str] = None,  # type: ignore[assignment]
    ) -> None: ...

    invoices.on("a")(handle)
    handler = invoices.handlers["a"]
    assert dict(handler.resources) == {"client": Client, "box": Box, "fetcher": Fetches, "limit": int, "late": Box} | {
        "other": OtherClient
    }
    assert handler.optional == {"other", "limit", "late"}
    client, box, fetcher = Client(), Box[int](), Fetcher()
    bound = handler.bind(Resources("invoices", [box, client, fetcher]))
    assert dict(bound.arguments) == {"client": client, "box": box, "fetcher": fetcher, "late": box}


def test_a_resource_of_the_very_class_goes_before_one_of_a_subclass(invoices: Consumer) -> None:
    async def handle(envelope: Envelope, tx: Tx, client: Client) -> None: ...

    invoices.on("a")(handle)
    exact, sub = Client(), OtherClient()
    assert invoices.handlers["a"].bind(Resources("invoices", [sub, exact])).arguments == {"client": exact}
    assert invoices.handlers["a"].bind(Resources("invoices", [sub])).arguments == {"client": sub}
    with pytest.raises(ResourceMissing, match="2 resources fit Client: OtherClient, OtherClient"):
        invoices.resolve(Resources("invoices", [sub, OtherClient()]))


def test_a_resource_that_nobody_provides_is_named_with_its_handler(invoices: Consumer) -> None:
    async def handle(envelope: Envelope, tx: Tx, client: Client) -> None: ...

    invoices.on("a")(handle)
    with pytest.raises(ResourceMissing) as caught:
        invoices.resolve(Resources("invoices", [Fetcher()]))
    assert "parameter client of" in caught.value.wanted_by
    assert f":{handle.__code__.co_firstlineno}" in caught.value.wanted_by
    assert "provided: Fetcher" in caught.value.problem


async def test_routes_lead_to_the_handler_with_its_resources(invoices: Consumer) -> None:
    calls: list[tuple[Any, ...]] = []
    client = Client()

    async def handle(envelope: Any, tx: Any, client: Client) -> None:
        calls.append((envelope, tx, client))

    def rest(envelope: Any, tx: Any) -> None:
        calls.append((envelope, tx))

    invoices.on("a")(handle)
    invoices.on("*")(rest)
    routes = invoices.resolve(Resources("invoices", [client]))
    own, other = routes.find("a"), routes.find("z")
    assert own is not None
    assert other is not None
    await own("envelope", "tx")  # type: ignore[arg-type]
    other("envelope", "tx")  # type: ignore[arg-type]
    assert calls == [("envelope", "tx", client), ("envelope", "tx")]


async def test_an_answer_that_hides_undone_work_is_refused(invoices: Consumer) -> None:
    async def work() -> None: ...

    def some() -> Iterator[int]:
        yield 1

    invoices.on("a")(plain)
    bound = invoices.resolve(Resources("invoices")).find("a")
    assert bound is not None
    for answer in (None, 3, "INSERT 0 1", False, [1]):
        bound.accept(answer)
    for answer in (Retry(), Retry, Reject("no"), ValueError(), work(), some()):
        with pytest.raises(UnexpectedAnswer, match="plain"):
            bound.accept(answer)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write the module `shop_handlers`, importable in this test only."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (tmp_path / "shop_handlers.py").write_text(text)

    yield write
    sys.modules.pop("shop_handlers", None)


REGISTERED = """
from consumers.registry import Consumer
invoices = Consumer("invoices")
class group:
    inner = Consumer("inner")
@invoices.on("a")
@group.inner.on("a")
async def handle(envelope, tx): pass
"""


def test_a_consumer_is_loaded_by_its_reference(package: Callable[[str], None]) -> None:
    package(REGISTERED)
    assert load_consumer("shop_handlers:invoices", name="invoices").handlers
    assert load_consumer("shop_handlers:group.inner", name="inner").name == "inner"


@pytest.mark.parametrize(
    ("text", "reference", "problem"),
    [
        ("", "nowhere_at_all:x", "no module nowhere_at_all"),
        ("", "nowhere_at_all.handlers:x", "no module nowhere_at_all"),
        ("", "shop_handlers.sub:x", "no module|importing it failed"),
        ("", "shop_handlers:invoices", "no attribute invoices; consumers there: none"),
        (REGISTERED, "shop_handlers:invoice", "did you mean invoices"),
        (REGISTERED, "shop_handlers:handle", "it is a function"),
        (REGISTERED, "shop_handlers:invoices", r"configured as \[consumers.bills\]"),
        ("import nowhere_at_all", "shop_handlers:x", "shop_handlers.py:1: ModuleNotFoundError"),
        ("\n1/0", "shop_handlers:x", "shop_handlers.py:2: ZeroDivisionError: division by zero"),
        ("def", "shop_handlers:x", "SyntaxError"),
        (
            'from consumers.registry import Consumer\nbills = Consumer("bills")',
            "shop_handlers:bills",
            r"no handler is registered.*@bills.on",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_says_where_it_ended(
    package: Callable[[str], None], text: str, reference: str, problem: str
) -> None:
    package(text)
    with pytest.raises(ConsumerNotFound, match=problem) as caught:
        load_consumer(reference, name="bills")
    assert caught.value.reference == reference


def test_a_mistake_inside_the_module_keeps_its_own_error(package: Callable[[str], None]) -> None:
    package("from consumers.registry import Consumer\nx = Consumer('x')\n@x.on('a')\nasync def f(): pass\n")
    with pytest.raises(RegistrationError, match=r"shop_handlers.py:3"):
        load_consumer("shop_handlers:x", name="x")


def test_a_module_that_ends_the_process_while_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConsumerNotFound, match="SystemExit"):
        load_consumer("leaves_at_once:work", name="work")


# Exhausted messages.


async def report(record: ExhaustionRecord, tx: Tx) -> None: ...


def test_exhausted_messages_are_reported_to_one_function(invoices: Consumer) -> None:
    assert invoices.exhausted_handler is None
    assert invoices.on_exhausted(report) is report
    handler = invoices.exhausted_handler
    assert handler is not None
    assert (handler.name, handler.types, handler.is_sync) == (f"{__name__}:report", (), False)
    assert not invoices.handlers

    async def second(record: ExhaustionRecord, tx: Tx) -> None: ...

    with pytest.raises(RegistrationError, match="already reported to") as caught:
        invoices.on_exhausted(second)
    assert f":{report.__code__.co_firstlineno}" in caught.value.problem
    assert invoices.exhausted_handler is handler


def test_a_report_gets_resources_and_may_be_a_plain_function(invoices: Consumer) -> None:
    client = Client()

    def note(record: ExhaustionRecord, tx: Tx, to: Client) -> str:
        return f"{record} {tx} {to is client}"

    invoices.on_exhausted(note)
    invoices.on("a")(plain)
    assert invoices.exhausted_handler is not None
    assert invoices.exhausted_handler.is_sync
    with pytest.raises(ResourceMissing, match="note"):
        invoices.resolve(Resources("invoices"))
    bound = invoices.resolve(Resources("invoices", [client])).exhausted
    assert bound is not None
    assert bound("record", "tx") == "record tx True"  # type: ignore[arg-type]


def test_without_one_nothing_is_reported(invoices: Consumer) -> None:
    invoices.on("a")(plain)
    assert invoices.resolve(Resources("invoices")).exhausted is None


async def _one(record: ExhaustionRecord) -> None: ...
async def _swapped(tx: Tx, record: ExhaustionRecord) -> None: ...
async def _envelope(envelope: Envelope, tx: Tx) -> None: ...
async def _text(record: str, tx: Tx) -> None: ...
async def _yields(record: ExhaustionRecord, tx: Tx) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_one, "1 positional parameter instead of two"),
        (_swapped, "the record comes first"),
        (_envelope, "parameter envelope is annotated Envelope, and gets the ExhaustionRecord"),
        (_text, "parameter record is annotated str, and gets the ExhaustionRecord"),
        (_yields, "yield"),
        ("report", "not a function"),
    ],
)
def test_a_function_that_cannot_be_told_of_exhausted_messages_is_refused(
    invoices: Consumer, function: Any, problem: str
) -> None:
    with pytest.raises(RegistrationError) as caught:
        invoices.on_exhausted(function)
    assert problem in caught.value.problem
    assert "record: ExhaustionRecord" in caught.value.allowed
    assert invoices.exhausted_handler is None


def test_a_handler_of_messages_does_not_take_a_record(invoices: Consumer) -> None:
    with pytest.raises(RegistrationError, match="gets the Envelope"):
        invoices.on("a")(report)
