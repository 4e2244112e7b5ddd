"""Log lines: every event is written, with the facts of its attempt; no log call ever raises."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from consumers.logs import Format, attempt_settled, bind_attempt, configure
from consumers.logs.lines import Lines
from consumers.logs.output import Output
from consumers.logs.standard import LIBRARIES, NOISE_LINES, NOISE_WINDOW_S, LineHandler, Noise


class Stream(io.StringIO):
    """A stream without a file descriptor, whose lines can be read."""

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (only,) = self.lines
        return only


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a test configures ends with it."""
    root = logging.getLogger()
    config, level = structlog.get_config(), root.level
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    yield
    structlog.configure(**config)
    structlog.contextvars.clear_contextvars()
    for handler in [one for one in root.handlers if isinstance(one, LineHandler)]:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    configure(format=Format.JSON, stream=stream, service="billing", build="1.2.3")
    return stream


def test_a_line_says_when_how_loud_what_and_where(stream: Stream) -> None:
    structlog.get_logger().info("topology.applied", queues=3)

    line = stream.line
    when = datetime.fromisoformat(line.pop("timestamp"))
    assert when.utcoffset() == timedelta(0)
    assert abs(datetime.now(when.tzinfo) - when) < timedelta(minutes=1)
    assert line == {
        "level": "info",
        "event": "topology.applied",
        "service": "billing",
        "build": "1.2.3",
        "queues": 3,
    }


def test_lines_below_the_level_are_not_written() -> None:
    stream = Stream()
    configure(format=Format.JSON, level="warning", stream=stream)

    structlog.get_logger().info("too.quiet")
    structlog.get_logger().warning("loud.enough")

    assert [line["event"] for line in stream.lines] == ["loud.enough"]


@pytest.mark.parametrize("method", ["debug", "info", "warning", "error", "critical", "exception"])
def test_an_event_with_unwritable_facts_is_written(method: str) -> None:
    stream = Stream()
    configure(format=Format.JSON, level="debug", stream=stream)

    getattr(structlog.get_logger(), method)("order.\ud800", value=Unprintable(), more={"x": Unprintable()})

    line = stream.line
    assert line["event"] == "order.\\ud800"
    assert line["value"] == "<unwritable Unprintable: RuntimeError>"
    assert "log_fault" not in line


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.info("counted %d", "words", at=1),
        lambda log: log.info("counted", event="twice", at=1),
        lambda log: log.log(20, "counted", level=1, at=1),
        lambda log: log.info(at=1),
        lambda log: log.info("counted %(a)s", {"b": 1}, at=1),
        lambda log: log.log("info", "counted", at=1),
    ],
    ids=["format", "event twice", "level twice", "no event", "missing name", "no number"],
)
def test_a_call_whose_arguments_clash_is_written_and_says_so(
    stream: Stream, call: Callable[[structlog.typing.FilteringBoundLogger], Any]
) -> None:
    call(structlog.get_logger())

    line = stream.line
    assert line["at"] == 1
    assert "Error" in line["log_fault"]


async def test_awaited_log_calls_do_not_raise_either(stream: Stream) -> None:
    await structlog.get_logger().ainfo("counted %d", "words", at=1)
    await structlog.get_logger().ainfo("order.seen", at=2)

    assert [line["at"] for line in stream.lines] == [1, 2]


def test_an_event_is_written_even_if_a_step_of_the_chain_breaks() -> None:
    rendered: list[dict[str, Any]] = []

    def fails_once(line: dict[str, Any]) -> str:
        rendered.append(line)
        if len(rendered) == 1:
            raise RecursionError
        return "written"

    assert Lines(fails_once, {})(None, "info", {"event": "order.seen", "message_id": "m-1"}) == "written"
    assert rendered[1]["event"] == "order.seen"
    assert rendered[1]["message_id"] == "m-1"
    assert rendered[1]["log_fault"].startswith("RecursionError")


def test_facts_cannot_take_the_place_of_what_every_line_has(stream: Stream) -> None:
    structlog.get_logger().info("order.seen", timestamp="yesterday", level="deep")

    assert (stream.line["level"], stream.line["level_"], stream.line["timestamp_"]) == ("info", "deep", "yesterday")


def test_an_exception_is_written_with_its_trace_and_without_secrets(stream: Stream) -> None:
    try:
        raise ConnectionError("cannot reach amqp://fleet:hidden-word@broker")
    except ConnectionError:
        structlog.get_logger().exception("broker.lost")

    line = stream.line
    assert line["level"] == "error"
    assert "Traceback" in line["exception"]
    assert "fleet:***@broker" in line["exception"]
    assert "hidden-word" not in stream.getvalue()


def test_the_local_values_of_a_trace_are_not_written(stream: Stream) -> None:
    body = "-".join(("the", "body", "of", "a", "message"))
    try:
        raise ValueError(len(body))
    except ValueError:
        structlog.get_logger().exception("handler.failed")

    assert "Traceback" in stream.line["exception"]
    assert body not in stream.getvalue()


def test_a_bound_attempt_is_on_every_line_until_its_block_ends(stream: Stream) -> None:
    log = structlog.get_logger()
    with bind_attempt(consumer="invoices", message_id="m-1", type="order.placed"):
        log.info("message.read")
        with bind_attempt(consumer="invoices", message_id="m-1", attempt=2, claim_id=UUID(int=5)):
            log.info("handler.called")
        log.info("message.settled")
    log.info("lane.idle")

    read, called, settled, idle = stream.lines
    assert (read["consumer"], read["message_id"], read["message_type"]) == ("invoices", "m-1", "order.placed")
    assert (called["attempt"], called["claim_id"], called["message_type"]) == (2, str(UUID(int=5)), "order.placed")
    assert "attempt" not in settled
    assert "message_id" not in idle


async def test_a_bound_attempt_reaches_tasks_threads_and_the_standard_library(stream: Stream) -> None:
    def in_thread() -> None:
        logging.getLogger("billing.handlers").info("thread.worked")

    async def in_task() -> None:
        structlog.get_logger().info("task.worked")

    with bind_attempt(consumer="invoices", message_id="m-1", attempt=1):
        await asyncio.to_thread(in_thread)
        await asyncio.create_task(in_task())

    assert [(line["event"], line["message_id"], line["attempt"]) for line in stream.lines] == [
        ("thread.worked", "m-1", 1),
        ("task.worked", "m-1", 1),
    ]


async def test_a_task_of_its_own_binds_without_a_block_and_leaves_nothing_behind(stream: Stream) -> None:
    async def attempt(message_id: str) -> None:
        bind_attempt(consumer="invoices", message_id=message_id)
        await asyncio.sleep(0)
        structlog.get_logger().info("handler.called")

    await asyncio.gather(attempt("m-1"), attempt("m-2"))
    structlog.get_logger().info("lane.idle")

    first, second, idle = stream.lines
    assert (first["message_id"], second["message_id"]) == ("m-1", "m-2")
    assert "message_id" not in idle


async def test_a_binding_left_in_another_context_harms_nobody(stream: Stream) -> None:
    binding = bind_attempt(consumer="invoices", message_id="m-1")

    async def leave() -> None:
        binding.__exit__(None, None, None)

    await asyncio.create_task(leave())
    binding.__exit__(None, None, None)
    binding.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        ("processed", "info"),
        ("duplicate", "info"),
        ("waiting", "warning"),
        ("unknown", "warning"),
        ("exhausted", "error"),
    ],
)
def test_one_line_sums_an_attempt_up(stream: Stream, outcome: str, level: str) -> None:
    attempt_settled(
        structlog.get_logger(),
        consumer="invoices",
        message_id="m-1",
        type="order.placed",
        attempt=3,
        outcome=outcome,
        error_class="UniqueViolationError (23505)",
        duration_s=0.0123456789,
        delay_s=30.0,
        redelivered=True,
        queue="billing.invoices",
    )

    line = stream.line
    assert line.pop("timestamp")
    assert line == {
        "level": level,
        "event": "attempt.settled",
        "service": "billing",
        "build": "1.2.3",
        "consumer": "invoices",
        "message_id": "m-1",
        "message_type": "order.placed",
        "attempt": 3,
        "outcome": outcome,
        "error_class": "UniqueViolationError (23505)",
        "duration_s": 0.012346,
        "delay_s": 30.0,
        "redelivered": True,
        "queue": "billing.invoices",
    }


def test_a_line_inside_a_span_names_it(stream: Stream) -> None:
    span = NonRecordingSpan(SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False))
    with trace.use_span(span):
        structlog.get_logger().info("handler.called")

    assert (stream.line["trace_id"], stream.line["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")


def test_libraries_are_heard_from_warning_on_and_handlers_from_the_level_on(stream: Stream) -> None:
    logging.getLogger("aiormq.connection").info("quiet")
    logging.getLogger("aiormq.connection").warning("lost %s", "amqp://u:hidden-word@h")
    logging.getLogger("billing").info("loud", extra={"order": 7})

    lost, loud = stream.lines
    assert (lost["event"], lost["logger"], lost["level"]) == ("lost amqp://u:***@h", "aiormq.connection", "warning")
    assert (loud["event"], loud["logger"], loud["order"]) == ("loud", "billing", 7)


def test_a_record_whose_arguments_clash_is_written(stream: Stream) -> None:
    (handler,) = [one for one in logging.getLogger().handlers if isinstance(one, LineHandler)]
    logger = logging.Logger("billing")  # not below the root, where pytest listens and would raise
    logger.addHandler(handler)

    logger.error("counted %d", Unprintable())

    line = stream.line
    assert (line["event"], line["level"], line["logger"]) == ("counted %d", "error", "billing")
    assert "log_fault" in line


def test_an_exception_of_the_standard_library_is_written_once(stream: Stream) -> None:
    try:
        raise ValueError("text")
    except ValueError:
        logging.getLogger("billing").exception("failed")

    assert stream.line["exception"].count("ValueError: text") == 1


def test_what_a_library_repeats_is_held_back_and_told(stream: Stream) -> None:
    for number in range(50):
        logging.getLogger("aio_pika.robust").warning("connection %d failed", number)
    for _ in range(50):
        logging.getLogger("billing").warning("mine")

    events = [line["event"] for line in stream.lines]
    assert events == [f"connection {number} failed" for number in range(NOISE_LINES)] + ["mine"] * 50


def test_held_back_lines_are_told_by_the_first_of_the_next_window() -> None:
    now = 100.0
    noise = Noise(lambda: now)

    admitted = [noise.admit("a") for _ in range(NOISE_LINES + 3)]
    assert admitted == [0] * NOISE_LINES + [None] * 3
    assert noise.admit("b") == 0

    now += NOISE_WINDOW_S
    assert noise.admit("a") == 3
    assert noise.admit("a") == 0


def test_kinds_of_noise_that_never_repeat_do_not_fill_the_memory() -> None:
    noise = Noise(lambda: 0.0)

    for number in range(10_000):
        assert noise.admit(str(number)) == 0

    assert len(noise._windows) <= 256


def test_warnings_become_lines(stream: Stream) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)

    assert "old thing" in stream.line["event"]


def test_configuring_again_replaces_the_routing() -> None:
    first, second = Stream(), Stream()
    configure(format=Format.JSON, stream=first)
    configure(format=Format.JSON, stream=second)

    logging.getLogger("billing").warning("once")

    assert (len(first.lines), len(second.lines)) == (0, 1)


def test_a_terminal_gets_colours_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()

    configure(stream=terminal)
    structlog.get_logger().info("order.seen")
    configure(format=Format.CONSOLE, stream=pipe)
    structlog.get_logger().info("order.seen")

    assert "\x1b[" in terminal.getvalue()
    assert "\x1b[" not in pipe.getvalue()
    assert "order.seen" in pipe.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()

    configure(stream=terminal)
    structlog.get_logger().info("order.seen")

    assert "\x1b[" not in terminal.getvalue()
    assert "order.seen" in terminal.getvalue()


def test_a_pipe_gets_json_unless_told_otherwise() -> None:
    pipe = Stream()

    configure(stream=pipe)
    structlog.get_logger().info("order.seen")

    assert pipe.line["event"] == "order.seen"


def test_control_characters_from_outside_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    configure(stream=terminal)

    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        structlog.get_logger().exception("order.\x1b[2J", message_id="m\x1b[31m\r\nforged line")

    assert "\x1b" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()
    assert "\nforged" not in terminal.getvalue()


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        configure(level="loud", stream=Stream())


def test_a_stream_that_fails_costs_lines_and_counts_them() -> None:
    stream = Stream()
    output = Output(stream)
    stream.close()

    output.write("lost")
    output.write(b"lost too")

    assert output.lost == 2
