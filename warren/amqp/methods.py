"""Methods as objects and as bytes.

The objects are pamqp's (:mod:`pamqp.commands`), which know their arguments and types. Their bytes are read and written
here: pamqp refuses names that RabbitMQ accepts, and its tables recurse without limit. Strings are ``str``; bytes that
are not UTF-8 are surrogate escapes in them, so that they go out as they came in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pamqp import commands
from pamqp.base import Frame as Method

from warren.amqp.errors import FRAME_ERROR, ProtocolError, UnknownMethodError, UntoldError
from warren.amqp.framing import METHOD, frame
from warren.amqp.own_methods import ACCESS_METHODS, OWN_METHODS
from warren.queue_index.message.amqp_tables import read_table, write_table
from warren.storage.errors import MessageError

M = TypeVar("M", bound=Method)

_INDEX: Final = struct.Struct(">I")
_NUMBERS: Final = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_OCTET: Final = _NUMBERS["octet"]
_LENGTHS: Final = {"shortstr": _OCTET, "longstr": _NUMBERS["long"]}


KINDS: Final[dict[int, type[Method]]] = {**commands.INDEX_MAPPING, **ACCESS_METHODS, **OWN_METHODS}
"""All methods, by class id and method id, 16 bits each."""
_ARGUMENTS: Final = {kind: tuple((name, kind.amqp_type(name)) for name in kind.attributes()) for kind in KINDS.values()}
"""The names and types of each method's arguments."""
_DEFAULTS: Final[dict[type[Method], dict[str, Any]]] = {}
"""Cache of pamqp's defaults of methods' arguments, without tables: each method needs its own."""


def text_of(data: bytes) -> str:
    """Decode a name's bytes for a method."""
    return data.decode(errors="surrogateescape")


def method_of(kind: type[M], **arguments: Any) -> M:
    """Return a method with these arguments, bypassing pamqp's checks; the others have pamqp's defaults."""
    defaults = _DEFAULTS.get(kind)
    if defaults is None or len(defaults) < len(_ARGUMENTS[kind]):
        method = kind()
        _DEFAULTS[kind] = {name: getattr(method, name) for name, domain in _ARGUMENTS[kind] if domain != "table"}
    else:
        method = object.__new__(kind)
        arguments = defaults | arguments
    for name, value in arguments.items():
        setattr(method, name, value)
    return method


def method_index(payload: bytes) -> int:
    """Return the class id and method id, 16 bits each, of a method frame of at least 4 bytes."""
    index: int = _INDEX.unpack_from(payload)[0]
    return index


def decode_method(payload: bytes) -> Method:
    """Return the method in a method frame of at least 4 bytes. Raises as :func:`decode_arguments`."""
    return decode_arguments(method_index(payload), payload, _INDEX.size)


def decode_arguments(index: int, data: bytes, at: int = 0) -> Method:
    """Decode the method with this index (class id and method id, 16 bits each) from its arguments in ``data[at:]``.

    Raises :class:`UnknownMethodError`, and :class:`ProtocolError` for one that is malformed.
    """
    kind = KINDS.get(index)
    if kind is None:
        raise UnknownMethodError(index)
    method: Method = object.__new__(kind)  # every argument is read, so no defaults are needed
    try:
        for name, value in _read(kind, data, at):
            setattr(method, name, value)
    except (struct.error, IndexError):
        raise ProtocolError(FRAME_ERROR, f"cannot decode <<{','.join(map(str, data[at:]))}>>", index) from None
    return method


def check_utf8(method: Method, method_index: int = 0) -> None:
    """Raise :class:`ProtocolError`, with this index, if a short string of a method is not UTF-8. RabbitMQ requires it
    of all methods but those with content."""
    for name, domain in _ARGUMENTS[type(method)]:
        if domain == "shortstr" and not _is_utf8(getattr(method, name)):
            raise ProtocolError(FRAME_ERROR, "Malformed UTF-8 in shortstr", method_index)


def _is_utf8(text: str) -> bool:
    """Whether a string that was read is UTF-8, without surrogates for other bytes."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _read(kind: type[Method], data: bytes, at: int) -> Iterator[tuple[str, Any]]:
    bit = 8
    for name, domain in _ARGUMENTS[kind]:
        if domain == "bit":
            if bit == 8:
                at, bit = at + 1, 0
            yield name, bool(data[at - 1] >> bit & 1)
            bit += 1
            continue
        bit = 8
        if domain == "table":
            end = at + _LENGTHS["longstr"].size
            if end + int.from_bytes(data[at:end], "big") > len(data):
                raise IndexError(f"{name} ends after the frame")
            try:
                value, at = read_table(data, at, len(data))
            except MessageError as error:
                raise UntoldError(FRAME_ERROR, f"{name}: {error}") from None
            yield name, value
        elif (number := _NUMBERS.get(domain)) is not None:
            yield name, number.unpack_from(data, at)[0]
            at += number.size
        else:
            length = _LENGTHS[domain]
            start = at + length.size
            at = start + length.unpack_from(data, at)[0]
            if at > len(data):
                raise IndexError(f"{name} ends after the frame")
            yield name, text_of(data[start:at])
    if at < len(data):
        raise IndexError("bytes are left over")


def encode_arguments(method: Method) -> bytes:
    """Return the bytes after the method's index. Raises :class:`MessageError` if a value does not fit its type."""
    parts: list[bytes] = []
    bits, bit = 0, 0
    for name, domain in _ARGUMENTS[type(method)]:
        value = getattr(method, name)
        if domain == "bit":
            bits |= bool(value) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes((bits,)))
            bits, bit = 0, 0
        try:
            parts.append(_written(domain, value))
        except struct.error:
            raise MessageError(f"{dotted_name(method)}: {name} does not fit") from None
        except (TypeError, ValueError) as error:  # an invalid table or text; not shown: it may be a password
            raise MessageError(f"{dotted_name(method)}: {name} does not fit: {error}") from None
    if bit:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _written(domain: str, value: Any) -> bytes:
    if domain == "shortstr":
        data = value if isinstance(value, bytes) else (value or "").encode("utf-8", "surrogateescape")
        return _OCTET.pack(len(data)) + data
    if (number := _NUMBERS.get(domain)) is not None:
        return number.pack(value or 0)
    if domain == "table":
        return write_table(value or {})
    data = value if isinstance(value, bytes) else (value or "").encode("utf-8", "surrogateescape")
    return _LENGTHS[domain].pack(len(data)) + data


def settlement_flags(method: commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject) -> int:
    """Return the octet after the delivery tag."""
    if isinstance(method, commands.Basic.Reject):
        return int(bool(method.requeue))
    requeue = isinstance(method, commands.Basic.Nack) and bool(method.requeue)
    return bool(method.multiple) | requeue << 1


def encode_payload(method: Method) -> bytes:
    """Return the payload of the method's frame."""
    return _INDEX.pack(method.index) + encode_arguments(method)


def encode_method(channel: int, method: Method) -> bytes:
    """Return the method's frame."""
    return frame(METHOD, channel, _INDEX.pack(method.index), encode_arguments(method))


def dotted_name(method: Method | type[Method]) -> str:
    """Return the name as RabbitMQ writes it: ``queue.declare_ok``."""
    dotted = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method.name)
    return dotted.replace("._", ".").removeprefix("_")
