"""What a queue is declared as: its name, its kind, and its ``x-`` arguments, checked.

A declaration is a value. Arguments are those of RabbitMQ's classic queues, under their names; what is known is checked
when the declaration is made (:class:`~warren.actors.engines.errors.ArgumentsError`), what belongs to other kinds of
queue is refused, and what nobody knows is kept and means nothing. What an engine has to know of them
:class:`~warren.actors.engines.queue_arguments.QueueArguments` say.

Two declarations of one queue are *equivalent* where durable, auto_delete, exclusive and every argument that a classic
queue knows are the same; arguments that nobody knows do not count.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue_arguments import MAX_PERIOD_MS, QueueArguments
from warren.actors.engines.texts import MAX_SHORT_STRING_BYTES, check_short_string, check_texts

MAX_PRIORITY: Final = 255
"""Levels are one byte in the name under which they are stored."""

_FOREIGN: Final = frozenset(
    {
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-initial-cluster-size",
        "x-max-age",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-queue-leader-locator",
        "x-quorum-initial-group-size",
        "x-stream-max-segment-size-bytes",
    }
)
"""Arguments of quorum queues and of streams: a classic queue that took them would not do what they ask for."""

_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})

# ── what an argument may be: each says what is wrong, or None ────────────────────────────────────────────────────────


def _count(value: Any) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return "an integer is expected"
    return "a negative number" if value < 0 else None


def _period(value: Any) -> str | None:
    return _count(value) or (f"more than {MAX_PERIOD_MS} ms" if value > MAX_PERIOD_MS else None)


def _expires(value: Any) -> str | None:
    return _period(value) or ("0 would delete the queue at once" if value == 0 else None)


def _priority(value: Any) -> str | None:
    return _count(value) or (f"more than {MAX_PRIORITY}" if value > MAX_PRIORITY else None)


def _string(value: Any) -> str | None:
    if not isinstance(value, str):
        return "a string is expected"
    return (
        f"more than {MAX_SHORT_STRING_BYTES} bytes"
        if len(value.encode("utf-8", "surrogateescape")) > MAX_SHORT_STRING_BYTES
        else None
    )


def _truth(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false is expected"


def _one_of(*known: Any) -> Callable[[Any], str | None]:
    said = " or ".join(map(repr, known))
    return lambda value: None if any(type(value) is type(one) and value == one for one in known) else f"{said} expected"


_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "x-expires": _expires,
    "x-message-ttl": _period,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _string,
    "x-max-length": _count,
    "x-max-length-bytes": _count,
    "x-max-priority": _priority,
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": _one_of("default", "lazy"),
    "x-queue-version": _one_of(1, 2),
    "x-single-active-consumer": _truth,
    "x-queue-type": _one_of("classic"),
    "x-queue-master-locator": lambda _: None,
}
"""What a classic queue knows, in the order in which a second declaration is compared."""


def _frozen(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(copy.deepcopy(dict(arguments))) if arguments else _NO_ARGUMENTS


@attrs.frozen
class QueueDeclaration(QueueArguments):
    """One queue as it was declared. Raises :class:`ArgumentsError` where an argument cannot be."""

    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    """Of one owner, and gone with it; never in a file of definitions."""
    auto_delete: bool = False
    """Gone with its last consumer, if it ever had one."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen, hash=False)
    """A copy that nobody can change."""

    def __attrs_post_init__(self) -> None:
        check_short_string("a queue's name", self.name)
        check_texts("an argument", dict(self.arguments))
        for name, value in self.arguments.items():
            if name in _FOREIGN:
                raise ArgumentsError(f"invalid arg '{name}' for {self}: it is for quorum queues or streams")
            check = _CHECKS.get(name)
            if check is not None and (wrong := check(value)):
                raise ArgumentsError(f"invalid arg '{name}' for {self}: {value!r:.100}: {wrong}")
        if "x-dead-letter-routing-key" in self.arguments and "x-dead-letter-exchange" not in self.arguments:
            raise ArgumentsError(
                f"invalid arg 'x-dead-letter-routing-key' for {self}: there is no x-dead-letter-exchange"
            )

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    # ── again, and in files ─────────────────────────────────────────────────────────────────────────────────────

    def equivalent(self, other: QueueDeclaration) -> str | None:
        """Why ``other``, declared now, is not what this one (the queue that is there) was declared as; or ``None``."""
        if self.exclusive != other.exclusive:
            return f"{self} is locked: it was {'' if self.exclusive else 'not '}declared exclusive"
        for name in ("durable", "auto_delete"):
            if getattr(self, name) != getattr(other, name):
                return self._differs(name, _quoted(getattr(other, name)), _quoted(getattr(self, name)))
        for name in _CHECKS:
            current, received = self.arguments.get(name), other.arguments.get(name)
            if (_type_class(current), current) == (_type_class(received), received):
                continue
            if name == "x-queue-type" and {current, received} == {None, "classic"}:
                continue
            if current is None or received is None:
                return self._differs(name, _typed(received), _typed(current))
            return self._differs(name, _quoted(received), _quoted(current))
        return None

    def _differs(self, name: str, received: str, current: str) -> str:
        return f"inequivalent arg '{name}' for {self}: received {received} but current is {current}"

    def to_json(self) -> dict[str, Any]:
        """As a broker's file of definitions has it."""
        return {
            "name": self.name,
            "vhost": self.vhost,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "arguments": copy.deepcopy(dict(self.arguments)),
        }

    @classmethod
    def from_json(cls, definition: Mapping[str, Any]) -> QueueDeclaration:
        """What :meth:`to_json` wrote, or a broker; raises :class:`ArgumentsError` for anything else."""
        types = {"name": str, "vhost": str, "durable": bool, "auto_delete": bool, "arguments": Mapping}
        if not isinstance(definition, Mapping):
            raise ArgumentsError(f"a queue's definition cannot be {definition!r:.100}")
        for key, kind in types.items():
            if not isinstance(definition.get(key), kind):
                raise ArgumentsError(f"a queue's definition whose {key} is {definition.get(key)!r:.100}")
        return cls(**{key: definition[key] for key in types})


def _type_class(value: Any) -> str:
    """Which values are of one kind: numbers of any width are, a truth value is no number."""
    match value:
        case bool():
            return "bool"
        case int() | Decimal():
            return "int"
        case float():
            return "float"
        case _:
            return type(value).__name__


def _quoted(value: Any) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _typed(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            kind = "bool"
        case int():
            kind = "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
        case str():
            kind = "longstr"
        case _:
            kind = type(value).__name__
    return f"the value {_quoted(value)} of type '{kind}'"
