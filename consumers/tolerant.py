"""Frames that the AMQP client cannot decode reach us anyway, instead of taking the connection down.

pamqp decodes a message's properties while it reads the frame. What it cannot decode there, a timestamp in microseconds
or text that is not UTF-8, ends the reader: the connection closes, every neighbour in flight is redelivered, and the
message comes back first. `install` wraps the two methods that all frames from the server pass through. Then a header
frame keeps its property list as received (`raw`) and why it could not be decoded (`fault`), and method frames keep
what is not UTF-8 in their short strings as surrogate escapes, from which the bytes can be had again.

This leans on the client's internals, so `install` decodes frames of each kind through the wrapped client and refuses
to go on if one comes out otherwise than this build needs.
"""

from __future__ import annotations

import struct
from functools import wraps
from importlib.metadata import version
from threading import Lock
from typing import Any

import pamqp.exceptions
import pamqp.frame
from pamqp import base, commands, decode, header

from consumers.errors import ClientUnsupported, MalformedProperties
from consumers.properties import PropertyList

_HEAD = struct.Struct(">HHQ")

_lock = Lock()
_installed = False


def install() -> None:
    """Make the client tolerant, once per process; further calls do nothing.

    :raises ClientUnsupported: the installed client does not decode as expected; it is left as it was.
    """
    global _installed
    with _lock:
        if _installed:
            return
        plain_header, plain_method = header.ContentHeader.unmarshal, base.Frame.unmarshal
        header.ContentHeader.unmarshal = _tolerant_header(plain_header)  # type: ignore[method-assign]
        base.Frame.unmarshal = _tolerant_method(plain_method)  # type: ignore[method-assign]
        try:
            _prove()
        except BaseException:
            header.ContentHeader.unmarshal = plain_header  # type: ignore[method-assign]
            base.Frame.unmarshal = plain_method  # type: ignore[method-assign]
            raise
        _installed = True


def received(frame: header.ContentHeader) -> tuple[bytes, Exception | None]:
    """Return a header frame's property list as received, and why the client could not decode it: None if it could.

    :raises AttributeError: the frame was read before `install`.
    """
    kept: Any = frame
    return kept.raw, kept.fault


def _tolerant_header(plain: Any) -> Any:
    @wraps(plain)
    def unmarshal(self: Any, data: bytes) -> None:
        # Class, weight and body size stand in front of the list. Without them no body could be found: that is a broken
        # connection, not a broken message, and fails as before.
        self.raw = data[_HEAD.size :]
        self.fault = None
        try:
            plain(self, data)
        except Exception as fault:  # whatever it is, it is about one message, and its neighbours must flow
            self.class_id, self.weight, self.body_size = _HEAD.unpack_from(data)
            self.properties = commands.Basic.Properties()
            self.properties.message_id = _message_id(self.raw)
            self.fault = fault

    return unmarshal


def _message_id(raw: bytes) -> str | None:
    # The client finds the publish that a returned message belongs to by this id alone. Without it the return is
    # dropped and the publish counts as sent: a message lost.
    try:
        value = PropertyList(raw).text("message_id")
    except MalformedProperties:
        return None
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _tolerant_method(plain: Any) -> Any:
    @wraps(plain)
    def unmarshal(self: Any, data: bytes) -> None:
        try:
            plain(self, data)
        except UnicodeDecodeError:
            _escaped(self, data)

    return unmarshal


def _escaped(method: Any, data: bytes) -> None:
    """Decode a method's arguments as the client does, but keep what is not UTF-8."""
    bit: int | None = None
    for argument in method.__slots__:
        kind = method.amqp_type(argument)
        if bit is not None and (kind != "bit" or bit == 8):
            data, bit = data[1:], None
        if kind == "bit":
            bit = bit or 0
            setattr(method, argument, decode.bit(data, bit)[1])
            bit += 1
        elif kind == "shortstr":
            end = 1 + data[0]
            setattr(method, argument, data[1:end].decode("utf-8", "surrogateescape"))
            data = data[end:]
        else:
            consumed, value = decode.by_type(data, kind)
            setattr(method, argument, value)
            data = data[consumed:]


def _prove() -> None:
    for class_ in commands.INDEX_MAPPING.values():
        if "unmarshal" in vars(class_):
            raise _unsupported(f"{class_.__qualname__} is decoded by a method of its own")
    # A message id, then a timestamp in microseconds: a client that reads it after all is as good.
    raw = b"\x00\xc0\x02id" + struct.pack(">Q", 1_700_000_000_000_000)
    far = _decoded(_frame(2, _HEAD.pack(60, 0, 7) + raw), header.ContentHeader)
    _expect("a header with a far timestamp", far, raw=raw, body_size=7)
    _expect("the properties of such a header", far.properties, message_id="id")
    cut = _decoded(_frame(2, _HEAD.pack(60, 0, 8) + raw[:-1]), header.ContentHeader)
    _expect("a header that is cut", cut, raw=raw[:-1], body_size=8)
    if not isinstance(cut.fault, Exception):
        raise _unsupported("a header that is cut is decoded without a fault")
    plain = _decoded(_frame(2, _HEAD.pack(60, 0, 9) + raw[:1] + b"\x80\x02id"), header.ContentHeader)
    _expect("a plain header", plain, raw=b"\x00\x80\x02id", body_size=9, fault=None)
    _expect("the properties of a plain header", plain.properties, message_id="id")
    _expect(
        "a delivery whose names are not UTF-8",
        _decoded(
            _method(60, 60, b"\x02t\xff", b"\0\0\0\0\0\0\0\x07", b"\x01", b"\x01\xfe", b"\x03k\xff\x00"),
            commands.Basic.Deliver,
        ),
        consumer_tag="t\udcff",
        delivery_tag=7,
        redelivered=True,
        exchange="\udcfe",
        routing_key="k\udcff\0",
    )
    _expect(
        "a reason that is not UTF-8",
        _decoded(_method(20, 40, b"\x01\x96", b"\x01\xfe", b"\0\x3c", b"\0\x28"), commands.Channel.Close),
        reply_code=406,
        reply_text="\udcfe",
        method_id=40,
    )


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def _method(class_id: int, method_id: int, *arguments: bytes) -> bytes:
    return _frame(1, struct.pack(">HH", class_id, method_id) + b"".join(arguments))


def _decoded(frame: bytes, expected: type) -> Any:
    try:
        decoded = pamqp.frame.unmarshal(frame)[2]
    except (pamqp.exceptions.PAMQPException, ValueError, AttributeError, TypeError, LookupError) as error:
        raise _unsupported(f"{expected.__name__} cannot be decoded: {error}") from error
    if not isinstance(decoded, expected):
        raise _unsupported(f"{expected.__name__} comes out as {type(decoded).__name__}")
    return decoded


def _expect(what: str, decoded: Any, **expected: object) -> None:
    found = {name: getattr(decoded, name, "missing") for name in expected}
    if found != expected:
        raise _unsupported(f"{what} comes out as {found}, not as {expected}")


def _unsupported(problem: str) -> ClientUnsupported:
    return ClientUnsupported(version=version("pamqp"), problem=problem)
