"""QueueDeclaration: a queue's name, kind and ``x-`` arguments, checked.

A declaration is a value, of a classic queue, a quorum queue or a stream
(:mod:`warren.actors.engines.declared.stream_arguments`). A quorum queue is stored as a classic queue is; it differs in
what it may be declared with, and in what clients see of it. Arguments have RabbitMQ's names. Known arguments are
checked when the declaration is created (:class:`~warren.actors.engines.errors.ArgumentsError`), arguments of other
kinds of queue are refused, and unknown ones are stored without effect.
:class:`~warren.actors.engines.declared.queue_arguments.QueueArguments` is the part that an engine uses.

Two declarations of one queue are *equivalent* if durable, auto_delete, exclusive and all known arguments are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import attrs

from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS, QUORUM, QueueArguments
from warren.actors.engines.declared.stream_arguments import (
    LEADER_LOCATORS,
    STREAM,
    STREAM_CHECKS,
    check_count,
    check_new,
    check_positive,
    check_properties,
    check_values,
)
from warren.actors.engines.declared.texts import (
    MAX_SHORT_STRING_BYTES,
    VOID,
    argument,
    check_depth,
    check_names,
    check_short_string,
    check_texts,
    inequivalent,
)
from warren.actors.engines.errors import ArgumentsError
from warren.queue_index.message.amqp_tables import type_name
from warren.storage.errors import did_you_mean, shown

MAX_PRIORITY: Final = 255
"""Levels are one byte in the name under which they are stored."""

_FOREIGN: Final = frozenset(
    {
        "x-dead-letter-strategy",
        "x-initial-cluster-size",
        "x-max-age",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-queue-leader-locator",
        "x-quorum-initial-group-size",
        "x-stream-max-segment-size-bytes",
    }
)
"""Arguments of quorum queues and of streams, which a classic queue refuses because it cannot fulfil them."""

_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})

# ── what an argument may be: each says what is wrong as the broker does, or None ──────────────────────────────────────


def _period(value: Any) -> str | None:
    return check_count(value) or (f"{{value_too_large,{value}}}" if value > MAX_PERIOD_MS else None)


def _expires(value: Any) -> str | None:
    return _period(value) or ("{value_zero,0}" if value == 0 else None)


def _priority(value: Any) -> str | None:
    return check_count(value) or (f"{{max_value_exceeded,{value}}}" if value > MAX_PRIORITY else None)


def _version(value: Any) -> str | None:
    return check_count(value) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _percent(value: Any) -> str | None:
    return check_count(value) or (f"{{max_value_exceeded,{value}}}" if value > 100 else None)


def _of_type(kind: type, value: Any) -> str | None:
    return None if isinstance(value, kind) else f"{{unacceptable_type,{type_name(value)}}}"


def _string(value: Any) -> str | None:
    return _of_type(str, value) or (
        f"more than {MAX_SHORT_STRING_BYTES} bytes"
        if len(value.encode("utf-8", "surrogateescape")) > MAX_SHORT_STRING_BYTES
        else None
    )


def _truth(value: Any) -> str | None:
    return _of_type(bool, value)


def _one_of(*allowed: str, otherwise: str) -> Callable[[Any], str | None]:
    return lambda value: _of_type(str, value) or (None if value in allowed else otherwise.format(value))


_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "x-expires": _expires,
    "x-message-ttl": _period,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _string,
    "x-max-length": check_count,
    "x-max-length-bytes": check_count,
    "x-max-priority": _priority,
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx", otherwise="invalid_overflow"),
    "x-queue-mode": _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
    "x-queue-version": _version,
    "x-single-active-consumer": _truth,
    "x-queue-type": _one_of("classic", QUORUM, otherwise="\"unsupported queue type '{}'\""),
    "x-queue-master-locator": lambda _: None,
    "x-consumer-timeout": _expires,
    "x-delivery-limit": check_count,
    "x-delayed-retry-type": _one_of("disabled", "all", "failed", "returned", otherwise="invalid_delayed_retry_type"),
    "x-delayed-retry-min": _expires,
    "x-delayed-retry-max": _expires,
    "x-delayed-retry-multiplier": check_positive,
    "x-delayed-retry-jitter": _percent,
    "x-message-deduplication": _truth,
    "x-cache-ttl": _expires,
}
"""The arguments of a classic queue, in the order in which a redeclaration is compared. The last eight are not
RabbitMQ's for classic queues: they come from its other queues, from later versions, or from LavinMQ."""

_OWN: Final = ("x-consumer-timeout", *(name for name in _CHECKS if name.startswith("x-delayed-retry-")),
               "x-message-deduplication", "x-cache-ttl")  # fmt: skip
_QUORUM_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    **{name: _CHECKS[name] for name in ("x-dead-letter-exchange", "x-dead-letter-routing-key")},
    "x-dead-letter-strategy": _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
    **{name: _CHECKS[name] for name in ("x-expires", "x-max-length", "x-max-length-bytes")},
    "x-max-in-memory-length": check_count,
    "x-max-in-memory-bytes": check_count,
    **{name: _CHECKS[name] for name in ("x-overflow", "x-single-active-consumer", "x-queue-type")},
    "x-quorum-initial-group-size": check_positive,
    "x-delivery-limit": lambda _: None,
    "x-message-ttl": _period,
    "x-queue-leader-locator": _one_of(*LEADER_LOCATORS, otherwise="invalid_queue_locator_arg"),
    **{name: _CHECKS[name] for name in _OWN},
}
"""The arguments of a quorum queue, in the order in which a redeclaration is compared. A delivery limit may be anything,
as for RabbitMQ 3.10; only a number limits."""
_NOT_OF_QUORUM: Final = frozenset((*_CHECKS, *_FOREIGN)) - _QUORUM_CHECKS.keys()
_WITHOUT_EFFECT: Final = ("x-quorum-target-group-size",)
"""Arguments of RabbitMQ 4 that mean nothing on one machine."""


def _frozen(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not arguments:
        return _NO_ARGUMENTS
    check_depth("an argument", arguments)
    return MappingProxyType(copy.deepcopy(dict(arguments)))


@attrs.frozen
class QueueDeclaration(QueueArguments):
    """One queue as it was declared. Raises :class:`ArgumentsError` if an argument is invalid."""

    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    """Whether it belongs to one owner and is deleted with it. Never in a file of definitions."""
    auto_delete: bool = False
    """Whether it is deleted after its last consumer."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen, hash=False)
    """A read-only copy."""
    topic: str = ""
    """For a stream: the topic that holds its messages, once it is chosen."""

    def __attrs_post_init__(self) -> None:
        check_short_string("a queue's name", self.name)
        if self.arguments:
            check_names("an argument's name", self.arguments)
            check_texts("an argument", dict(self.arguments))
            self._check_arguments()

    def _check_arguments(self) -> None:
        """Check in a broker's order; the first wrong argument is reported."""
        if self.is_stream:
            check_values(self, self.arguments)
            return
        exchange = self.arguments.get("x-dead-letter-exchange", "")
        if not isinstance(exchange, str):
            raise ArgumentsError(f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {self}")
        checks = self._checks
        for name in dict.fromkeys(("x-queue-type", "x-expires", "x-message-ttl", *checks)):
            if name not in self.arguments:
                continue
            wrong = checks[name](self.arguments[name])
            if wrong is None and name == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in self.arguments:
                wrong = "routing_key_but_no_dlx_defined"
            if wrong is not None:
                raise ArgumentsError(f"invalid arg '{name}' for {self}: {wrong}")
        foreign = _NOT_OF_QUORUM if self.is_quorum else _FOREIGN
        for name in self.arguments:
            if name in foreign:
                raise ArgumentsError(f"invalid arg '{name}' for {self} of queue type rabbit_{self.queue_type}_queue")

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    @property
    def unknown_arguments(self) -> list[str]:
        """The unknown arguments, each with a similar known name, if there is one."""
        names = (*_CHECKS, *_FOREIGN, *STREAM_CHECKS, *_WITHOUT_EFFECT)
        return [f"{shown(name)}{did_you_mean(name, names)}" for name in self.arguments if name not in names]

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream (:mod:`warren.actors.engines.declared.stream_arguments`) and no classic queue."""
        return self.arguments.get("x-queue-type") == STREAM

    @property
    def queue_type(self) -> str:
        return STREAM if self.is_stream else QUORUM if self.is_quorum else "classic"

    @property
    def _checks(self) -> Mapping[str, Callable[[Any], str | None]]:
        return STREAM_CHECKS if self.is_stream else _QUORUM_CHECKS if self.is_quorum else _CHECKS

    def columns(self) -> dict[str, Any]:
        """What is shown of it, under RabbitMQ's names."""
        return {
            "name": self.name,
            "vhost": self.vhost,
            "durable": self.durable,
            "exclusive": self.exclusive,
            "auto_delete": self.auto_delete,
            "arguments": dict(self.arguments),
        }

    def check_new(self) -> None:
        """Raise :class:`ArgumentsError` if only an existing queue may have these arguments and properties."""
        properties = {"durable": self.durable, "exclusive": self.exclusive, "auto_delete": self.auto_delete}
        if self.is_stream:
            check_new(self, self.arguments, **properties)
        elif self.is_quorum:
            check_properties(self, **properties)

    # ── again, and in files ─────────────────────────────────────────────────────────────────────────────────────

    def equivalent(self, other: QueueDeclaration) -> str | None:
        """How the redeclaration ``other`` differs from this existing queue; ``None`` if they are equivalent."""
        if self.exclusive != other.exclusive:
            return locked(self)
        return self.differs(durable=other.durable, auto_delete=other.auto_delete, arguments=other.arguments)

    def differs(self, *, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]) -> str | None:
        """How these properties and (unchecked) arguments differ from this existing queue; ``None`` if they do not."""
        for name, current, received in self._differences(durable, auto_delete, arguments):
            return inequivalent(name, self, received, current)
        return None

    def all_differences(self, other: QueueDeclaration) -> list[str]:
        """A phrase for each property and argument in which ``other`` differs from this existing queue."""
        return [
            f"{name} is {_shown(current)} (asked for: {_shown(received)})"
            for name, current, received in self._differences(other.durable, other.auto_delete, other.arguments)
        ]

    def _differences(
        self, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Each property and argument that differs: its name, its current and its received value."""
        for name, flag in (("durable", durable), ("auto_delete", auto_delete)):
            if flag != getattr(self, name):
                yield name, getattr(self, name), flag
        for name in self._checks:
            if name not in self.arguments and name not in arguments:
                continue
            current, received = argument(self.arguments, name), argument(arguments, name)
            if (_type_class(current), current) == (_type_class(received), received):
                continue
            if name == "x-queue-type" and {current, received} == {None, "classic"}:
                continue
            yield name, current, received

    def to_json(self) -> dict[str, Any]:
        """The queue in RabbitMQ's definitions JSON."""
        return {
            "name": self.name,
            "vhost": self.vhost,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "arguments": copy.deepcopy(dict(self.arguments)),
            **({"topic": self.topic} if self.topic else {}),
        }

    @classmethod
    def from_json(cls, definition: Mapping[str, Any]) -> QueueDeclaration:
        """Parse what :meth:`to_json` or a broker wrote; raises :class:`ArgumentsError` for anything else."""
        types = {"name": str, "vhost": str, "durable": bool, "auto_delete": bool, "arguments": Mapping}
        if not isinstance(definition, Mapping):
            raise ArgumentsError(f"a queue's definition cannot be {definition!r:.100}")
        for key, kind in types.items():
            if not isinstance(definition.get(key), kind):
                raise ArgumentsError(f"a queue's definition whose {key} is {definition.get(key)!r:.100}")
        return cls(**{key: definition[key] for key in types}, topic=str(definition.get("topic", "")))


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(None if value is VOID else value)


def _type_class(value: Any) -> str:
    """The type to compare values by: numbers of any width have the same one, truth values another one."""
    match value:
        case bool():
            return "bool"
        case int() | Decimal():
            return "int"
        case float():
            return "float"
        case _:
            return type(value).__name__


def locked(queue: QueueDeclaration) -> str:
    """The error text for an exclusive queue of another owner, or one that was declared differently."""
    return (
        f"cannot obtain exclusive access to locked {queue}. It could be originally declared on another connection or "
        "the exclusive property value does not match that of the original declaration."
    )
