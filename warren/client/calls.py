"""Calls: verbs of a node that are called in its host's process. What is asked and answered goes as field tables.

The client names what the verb is of (a node, a vhost, a queue, …), the verb, and its arguments; the host runs the very
verb that its own handles run. An error comes back as one of the same class and text.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs
from pamqp.base import Frame as Method

from warren.amqp.own_methods import Call, CallError
from warren.client.errors import ServerError
from warren.steps import Steps
from warren.storage.errors import DataError, WarrenError


class NotFromOutsideError(WarrenError):
    """A handle of a shared directory cannot do this from another process than the one that hosts the node."""


class Asker(Protocol):
    """What sends a method and waits for the answer."""

    def ask(self, method: Method) -> Steps[Any]: ...


_BUILTINS: Final = frozenset(("ValueError", "TypeError", "KeyError", "TimeoutError"))


def error_of(name: str, text: str) -> Exception:
    """What a call raised in the host, from the name of its class."""
    from warren import errors  # noqa: PLC0415 - it imports everything that can be raised

    if name in _BUILTINS:
        return getattr(builtins, name)(text)  # type: ignore[no-any-return]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, WarrenError) and not issubclass(kind, DataError):
        try:
            return kind(text)
        except TypeError:
            pass
    return ServerError(f"{name}: {text}")


def plain(value: Any) -> Any:
    """A result as a field table can have it: values of attrs as tables, sets and ranges as lists."""
    if attrs.has(type(value)):
        fields = (field for field in attrs.fields(type(value)) if field.init)
        return {field.alias: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(one) for one in value]
    return value


def call(remote: Asker, verb: str, /, **arguments: Any) -> Steps[Any]:
    """Call a verb in the host's process. Raises what it raises."""
    answer = yield from remote.ask(Call(verb, plain(arguments)))
    if isinstance(answer, CallError):
        raise error_of(answer.type, answer.text)
    return answer.result["result"]
