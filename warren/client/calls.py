"""Calls: verbs of a node that run in its host's process. Arguments and results are sent as field tables.

The client names the verb's object (a node, a vhost, a queue, …), the verb, and its arguments; the host runs the same
verb as its own handles. An error comes back with the same class and text.

A field table has only strings as keys, and only UTF-8 strings. A mapping with other keys is sent as pairs, a name
that is not UTF-8 as its bytes (:func:`plain`, :func:`restored`). Many byte strings are sent as one (:func:`packed`,
:func:`unpacked`), which is much quicker.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import numpy as np
from pamqp.base import Frame as Method

from warren.amqp.own_methods import Call, CallError, CallOk, Refused
from warren.client.errors import ServerError
from warren.queue_index.message.amqp_tables import write_table
from warren.storage.errors import DataError, MessageError, WarrenError
from warren.verbs.operation import Operation
from warren.verbs.steps import Steps


class Asker(Protocol):
    """Sends a method and waits for the answer."""

    def ask(self, method: Method) -> Steps[Any]: ...


_BUILTINS: Final = frozenset(("ValueError", "TypeError", "KeyError", "LookupError", "TimeoutError"))
_PLAIN: Final = frozenset((bool, int, float, bytes, type(None)))
_PAIRS: Final = "\0pairs"
_NAME: Final = "\0name"
_SIZE: Final = np.dtype(">u4")
_PACKED: Final = struct.Struct(">II")
_DIFFERENT: Final = (1 << 32) - 1
"""More bytes than fit into a frame."""


def refusal_of(error: Exception) -> CallError:
    """Return the method that tells a client that its call has raised this error."""
    return CallError(*_described(error))


def refused(error: Exception) -> Refused:
    """Return the method that gives a client the reason for the next refusal on the channel."""
    return Refused(*_described(error))


def _described(error: Exception) -> tuple[str, str, dict[str, Any]]:
    details: dict[str, Any] = {}
    if isinstance(error, DataError):
        details = {"path": error.path, "offset": error.offset, "reason": error.reason}
    elif (problems := getattr(error, "problems", None)) is not None:  # of definitions
        details = {"problems": list(problems)}
    return _public_name(type(error)), str(error), details


def _public_name(kind: type[BaseException]) -> str:
    """Return the name of an error's class, or of its nearest public base."""
    from warren import errors

    names = (base.__name__ for base in kind.__mro__ if getattr(errors, base.__name__, None) is base)
    return next(names, kind.__name__)


def error_of(call_error: CallError) -> Exception:
    """Return the error that was raised in the host."""
    from warren import errors

    name, text = call_error.type, call_error.text
    if "problems" in call_error.details:
        return errors.DefinitionsError(call_error.details["problems"])
    if call_error.details:
        return DataError(**call_error.details)
    if name in _BUILTINS:
        error: Exception = getattr(builtins, name)(text)
        return error
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, WarrenError) and not issubclass(kind, DataError):
        try:
            return kind(text)
        except TypeError:
            pass
    return ServerError(f"{name}: {text}")


def plain(value: Any) -> Any:
    """Convert a result for a field table: attrs objects to tables."""
    if type(value) in _PLAIN:
        return value
    if attrs.has(type(value)):
        fields = (field for field in attrs.fields(type(value)) if field.init)
        return {field.alias: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        if all(isinstance(name, str) and _is_utf8(name) for name in value):
            return {name: plain(element) for name, element in value.items()}
        return {_PAIRS: [[plain(name), plain(element)] for name, element in value.items()]}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    return value if not isinstance(value, str) or _is_utf8(value) else {_NAME: value.encode(errors="surrogateescape")}


def _is_utf8(text: str) -> bool:
    """Whether a text can be sent as it is; one with half of a surrogate pair cannot be sent at all."""
    return text.isascii() or not any("\udc80" <= character <= "\udcff" for character in text)


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a call's arguments for a field table. Raises :class:`MessageError`."""
    try:
        return {name: plain(value) for name, value in arguments.items()}
    except RecursionError:
        raise MessageError("it cannot be sent to the process that hosts the node: it is nested too deep") from None


def check_fits(arguments: Mapping[str, Any]) -> None:
    """Raise :class:`MessageError` if they do not fit into a field table: an error when they are sent would get lost."""
    try:
        write_table(plain_arguments(arguments))
    except (TypeError, ValueError) as error:
        raise MessageError(f"it cannot be sent to the process that hosts the node: {error}") from None


def restored(value: Any) -> Any:
    """Undo :func:`plain` after a field table: restore the keys of mappings."""
    if isinstance(value, dict):
        if _PAIRS in value:
            return {restored(name): restored(element) for name, element in value[_PAIRS]}
        if _NAME in value:
            return value[_NAME].decode(errors="surrogateescape")
        return {name: restored(element) for name, element in value.items()}
    return [restored(element) for element in value] if isinstance(value, list) else value


def packed(strings: Sequence[bytes]) -> bytes:
    """Join byte strings: their number, size, and contents. If sizes differ, :data:`_DIFFERENT` stands in for
    the size, followed by all sizes."""
    sizes = set(map(len, strings))
    if len(sizes) == 1:
        return b"".join((_PACKED.pack(len(strings), *sizes), *strings))
    each = np.fromiter(map(len, strings), _SIZE, len(strings))
    return b"".join((_PACKED.pack(len(strings), _DIFFERENT), each.tobytes(), *strings))


def unpacked(data: bytes) -> list[bytes]:
    """Undo :func:`packed`."""
    count, size = _PACKED.unpack_from(data)
    start = _PACKED.size
    if not size:
        return [b""] * count
    if size != _DIFFERENT:
        alike: list[bytes] = np.frombuffer(data, f"V{size}", count, start).tolist()
        return alike
    bodies_at = start + _SIZE.itemsize * count
    ends = (np.frombuffer(data, _SIZE, count, start).astype(np.int64).cumsum() + bodies_at).tolist()
    return [data[start:end] for start, end in zip([bodies_at, *ends], ends, strict=False)]


def result_of(answer: Method) -> Any:
    """Return what a call returned; raise what it raised."""
    if isinstance(answer, CallError):
        raise error_of(answer)
    if not isinstance(answer, CallOk):
        raise TypeError(f"{answer.name} answers no call")
    return restored(answer.result["result"])


def call_of(operation: Operation[Any], of: str) -> Call:
    """Return the method that asks for an operation on what has the name ``of``."""
    return Call(operation.definition.name, plain_arguments({"of": of, "arguments": operation.arguments}))


def call(remote: Asker, verb: str, /, **arguments: Any) -> Steps[Any]:
    """Call a verb in the host's process. Raises what it raises."""
    return result_of((yield from remote.ask(Call(verb, plain_arguments(arguments)))))
