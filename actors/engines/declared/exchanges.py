"""Exchanges and bindings as they are declared: values, checked, and their JSON.

An *exchange* passes messages on to queues and other exchanges. A *binding* leads from an exchange, its *source*, to a
queue or an exchange, its *destination*; the source's type defines the meaning of the binding's routing key and
arguments (:mod:`warren.actors.engines.declared.routing`). Two bindings with the same source, destination, routing key
and arguments are the same binding.

Every vhost has the default exchange, which has an empty name and accepts no bindings, and those of
:data:`BUILTIN_EXCHANGES`. Names that begin with ``amq.`` are reserved.

Arguments are converted to *plain* JSON values, so that a file of definitions can store them completely. Bytes become
text, timestamps become seconds: for the broker, too, these are the same value.

For the exchange type ``x-delayed-message``, the header ``x-delay`` is parsed as by RabbitMQ's plugin. It is a whole
number of milliseconds, also as a text or a float. The message waits for this time and is then routed by the exchange's
``x-delayed-type``. Without the header, or with 0 or less, it is routed at once. Once the message has waited, its header
is negative.
"""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Hashable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, cast

import attrs

from warren.actors.engines.declared.texts import argument, check_short_string, check_texts, inequivalent
from warren.actors.engines.errors import ArgumentsError
from warren.queue_index.message.amqp_tables import is_integer, type_name
from warren.storage.erlang_text import binary_text
from warren.storage.errors import did_you_mean, shown

DEFAULT_EXCHANGE: Final = ""
RESERVED_PREFIX: Final = "amq."
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
X_MATCH: Final = "x-match"

ExchangeType = Literal[
    "direct",
    "fanout",
    "headers",
    "topic",
    "x-consistent-hash",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
    "x-delayed-message",
]
DestinationType = Literal["queue", "exchange"]
ROUTING_TYPES: Final[tuple[ExchangeType, ...]] = (
    "direct", "fanout", "headers", "topic", "x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history",
)  # fmt: skip
HASH_HEADER: Final = "hash-header"
"""The argument that says which header an ``x-consistent-hash`` exchange routes by."""
HASH_PROPERTY: Final = "hash-property"
"""The argument that says by which property."""
_HASHED_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
HISTORY: Final = "x-recent-history"
HISTORY_LENGTH: Final = "x-recent-history-length"
DELAYED: Final = "x-delayed-message"
"""The type of exchanges that let messages wait (:mod:`warren.actors.engines.declared.exchanges`)."""
_DELAYED_TYPES: Final = ("direct", "fanout", "headers", "topic")
DELAYED_TYPE: Final = "x-delayed-type"
"""The argument that says how such an exchange routes."""
EXCHANGE_TYPES: Final[tuple[ExchangeType, ...]] = (*ROUTING_TYPES, DELAYED)
X_MATCH_MODES: Final = ("all", "any", "all-with-x", "any-with-x")

TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
"""Internal; RabbitMQ publishes traced messages to it. It exists because programs expect it; nothing is traced."""
BUILTIN_EXCHANGES: Final[Mapping[str, ExchangeType]] = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    TRACE_EXCHANGE: "topic",
    "amq.topic": "topic",
}
"""The exchanges of every vhost besides the default exchange, by name; durable, and never deleted."""

_WEIGHT: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MAX_DEPTH: Final = 64
_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain_arguments(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a read-only copy of ``arguments`` with JSON values only. Raises :class:`ArgumentsError`."""
    if not arguments:
        return _NO_ARGUMENTS
    plain = _plain_table(arguments, _MAX_DEPTH)
    check_texts("an argument", plain)
    return MappingProxyType(plain)


def _plain_table(table: Mapping[str, Any], depth_left: int) -> dict[str, Any]:
    for name in table:
        check_short_string("an argument's name", name)
    return {name: _plain(value, depth_left - 1) for name, value in table.items()}


def _plain(value: Any, depth_left: int) -> Any:
    if depth_left <= 0:
        raise ArgumentsError(f"arguments nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)  # a timestamp is an int, too
        case float() if math.isfinite(value):
            return float(value)
        case datetime():
            return calendar.timegm(value.utctimetuple())
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case Mapping():
            return _plain_table(value, depth_left)
        case list() | tuple():
            return [_plain(item, depth_left - 1) for item in value]
        case _:
            raise ArgumentsError(f"an argument cannot be {value!r:.100}")


def unfrozen(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mutable copy for the caller."""
    return _plain_table(arguments, _MAX_DEPTH + 1)


def _identity(value: Any) -> Hashable:
    """Equal for equal values only: 1, 1.0 and true are different."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, _identity(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("array", *map(_identity, value))
    return (type(value).__name__, value)


def _erlang(value: Any) -> str:
    """A value as the broker's replies show it."""
    match value:
        case None:
            return "undefined"
        case bool():
            return str(value).lower()
        case str():
            return binary_text(value.encode("utf-8", "surrogateescape"))
        case Mapping():
            typed = (f"{{{_erlang(name)},{type_name(item)},{_erlang(item)}}}" for name, item in value.items())
            return f"[{','.join(typed)}]"
        case list():
            return f"[{','.join(f'{{{type_name(item)},{_erlang(item)}}}' for item in value)}]"
        case _:
            return str(value)


def from_definition(what: str, definition: Any, **types: type) -> dict[str, Any]:
    """The required keys of a JSON definition, and its arguments; raises :class:`ArgumentsError`."""
    if not isinstance(definition, Mapping):
        raise ArgumentsError(f"{what}'s definition cannot be {definition!r:.100}")
    for key, kind in types.items():
        if not isinstance(definition.get(key), kind):
            raise ArgumentsError(f"{what}'s definition whose {key} is {definition.get(key)!r:.100}")
    arguments = definition.get("arguments") or {}  # a broker may write [] for none
    if not isinstance(arguments, Mapping):
        raise ArgumentsError(f"{what}'s definition whose arguments are {arguments!r:.100}")
    return {key: definition[key] for key in types} | {"arguments": cast("Mapping[str, Any]", arguments)}


# ── declarations ──────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class ExchangeDeclaration:
    """One exchange as it was declared. Raises :class:`ArgumentsError` for an invalid type or argument."""

    vhost: str
    name: str
    type: ExchangeType = "direct"
    durable: bool = True
    auto_delete: bool = False
    """Whether it is deleted after the last binding that it is the source of."""
    internal: bool = False
    """Whether it accepts only messages of other exchanges, and dead letters."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=plain_arguments, hash=False)

    def __attrs_post_init__(self) -> None:
        check_short_string("an exchange's name", self.name)
        if self.type not in EXCHANGE_TYPES:
            raise ArgumentsError(f"{self}: unknown exchange type {self.type!r:.100}; {', '.join(EXCHANGE_TYPES)} exist")
        for field in ("durable", "auto_delete", "internal"):
            if not isinstance(getattr(self, field), bool):
                raise ArgumentsError(f"{self}: {field} cannot be {getattr(self, field)!r:.100}")
        alternate = self.arguments.get(ALTERNATE_EXCHANGE)
        if ALTERNATE_EXCHANGE in self.arguments and not isinstance(alternate, str):
            raise ArgumentsError(f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE_EXCHANGE}' in {self}")

        if self.type == DELAYED:
            self._check_delayed_type()
        if self.routing_type == "x-consistent-hash":
            self._check_hashed()
        elif self.routing_type == HISTORY and HISTORY_LENGTH in self.arguments:
            length = self.arguments[HISTORY_LENGTH]
            if not is_integer(length) or length < 1:
                raise ArgumentsError(
                    f"Invalid argument {_erlang(length)}, '{HISTORY_LENGTH}' must be a positive integer"
                )

    def _check_hashed(self) -> None:
        for name in (HASH_HEADER, HASH_PROPERTY):
            if name in self.arguments and not isinstance(self.arguments[name], str):
                raise ArgumentsError(f"invalid type '{type_name(self.arguments[name])}' for arg '{name}' in {self}")
        if HASH_HEADER in self.arguments and HASH_PROPERTY in self.arguments:
            raise ArgumentsError(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
        if self.arguments.get(HASH_PROPERTY, _HASHED_PROPERTIES[0]) not in _HASHED_PROPERTIES:
            raise ArgumentsError(f"Unsupported property: {self.arguments[HASH_PROPERTY]}")

    def _check_delayed_type(self) -> None:
        delayed_type = self.arguments.get(DELAYED_TYPE)
        if delayed_type == DELAYED:
            raise ArgumentsError(f"Invalid argument, '{DELAYED}' can't be used for '{DELAYED_TYPE}'")
        if delayed_type not in _DELAYED_TYPES:
            raise ArgumentsError(f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type")

    def __str__(self) -> str:
        return f"exchange '{self.name}' in vhost '{self.vhost}'"

    @property
    def routing_type(self) -> ExchangeType:
        """The type that defines how it routes."""
        routing_type: ExchangeType = self.arguments[DELAYED_TYPE] if self.type == DELAYED else self.type
        return routing_type

    @property
    def alternate_exchange(self) -> str | None:
        """The exchange that gets the messages for which this one has no destination."""
        return self.arguments.get(ALTERNATE_EXCHANGE)

    @property
    def unknown_arguments(self) -> list[str]:
        """The unknown arguments, each with a similar known name, if there is one."""
        names = (ALTERNATE_EXCHANGE, DELAYED_TYPE, HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH)
        return [f"{shown(name)}{did_you_mean(name, names)}" for name in self.arguments if name not in names]

    def equivalent(self, other: ExchangeDeclaration) -> str | None:
        """How the redeclaration ``other`` differs from this exchange; ``None`` if they are equivalent.

        Of the arguments only the alternate exchange counts.
        """
        fields = {name: getattr(other, name) for name in ("type", "durable", "auto_delete", "internal")}
        return self.differs(arguments=other.arguments, **fields)

    def differs(self, *, arguments: Mapping[str, Any], **fields: Any) -> str | None:
        """How these (unchecked) arguments and fields differ from this exchange; ``None`` if they do not."""
        for name, received in fields.items():
            if received != getattr(self, name):
                return inequivalent(name, self, received, getattr(self, name))
        received = argument(arguments, ALTERNATE_EXCHANGE)
        if received != self.alternate_exchange:
            return inequivalent(ALTERNATE_EXCHANGE, self, received, self.alternate_exchange)
        return None

    def to_json(self) -> dict[str, Any]:
        """The object in RabbitMQ's definitions JSON."""
        return attrs.asdict(self, recurse=False) | {"arguments": unfrozen(self.arguments)}

    @classmethod
    def from_json(cls, definition: Any) -> ExchangeDeclaration:
        """Parse what :meth:`to_json` or a broker wrote; raises :class:`ArgumentsError` for anything else."""
        fields = from_definition("an exchange", definition, vhost=str, name=str, type=str, durable=bool)
        return cls(
            vhost=fields["vhost"],
            name=fields["name"],
            type=fields["type"],
            durable=fields["durable"],
            auto_delete=definition.get("auto_delete", False),
            internal=definition.get("internal", False),
            arguments=fields["arguments"],
        )


@attrs.frozen(kw_only=True)
class Binding:
    """From an exchange to a queue or an exchange of the same vhost. Equal if they are the same to a broker."""

    vhost: str = attrs.field(eq=False)
    source: str = attrs.field(eq=False)
    destination: str = attrs.field(eq=False)
    destination_type: DestinationType = attrs.field(default="queue", eq=False)
    routing_key: str = attrs.field(default="", eq=False)
    arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=plain_arguments, eq=False, hash=False)
    identity: Hashable = attrs.field(init=False, repr=False)

    @identity.default
    def _identify(self) -> Hashable:
        check_short_string("a routing key", self.routing_key)
        if self.destination_type not in ("queue", "exchange"):
            raise ArgumentsError(f"a binding leads to a queue or an exchange, not to {self.destination_type!r:.100}")
        ends = (self.vhost, self.source, self.destination_type, self.destination, self.routing_key)
        return (*ends, _identity(self.arguments)) if self.arguments else ends

    def __str__(self) -> str:
        return (
            f"binding '{self.routing_key}' of exchange '{self.source}' to {self.destination_type} "
            f"'{self.destination}' in vhost '{self.vhost}'"
        )

    def check_for(self, source: ExchangeDeclaration) -> None:
        """Raise :class:`ArgumentsError` if an exchange of the source's type cannot have this binding."""
        if source.routing_type == "x-consistent-hash":
            if _WEIGHT.fullmatch(self.routing_key) is None:
                raise ArgumentsError(f"The binding key must be an integer: {_erlang(self.routing_key)}")
            if int(self.routing_key) < 1:
                raise ArgumentsError("The binding key must be greater than 0")
        mode = self.arguments.get(X_MATCH, "all")
        if source.routing_type != "headers" or mode in X_MATCH_MODES:
            return
        if isinstance(mode, str):
            text = _erlang(mode)
            raise ArgumentsError(f"Invalid {X_MATCH} field value {text}; expected all, any, all-with-x, or any-with-x")
        raise ArgumentsError(
            f"Invalid {X_MATCH} field type {type_name(mode)} (value {_erlang(mode)}); expected longstr"
        )

    def to_json(self) -> dict[str, Any]:
        """The object in RabbitMQ's definitions JSON."""
        return {
            "source": self.source,
            "vhost": self.vhost,
            "destination": self.destination,
            "destination_type": self.destination_type,
            "routing_key": self.routing_key,
            "arguments": unfrozen(self.arguments),
        }

    @classmethod
    def from_json(cls, definition: Any) -> Binding:
        """Parse what :meth:`to_json` or a broker wrote; raises :class:`ArgumentsError` for anything else."""
        names = ("vhost", "source", "destination", "destination_type", "routing_key")
        return cls(**from_definition("a binding", definition, **dict.fromkeys(names, str)))


def builtin_exchanges(vhost: str) -> list[ExchangeDeclaration]:
    """The exchanges of a new vhost, the default exchange first."""
    named = [
        ExchangeDeclaration(vhost=vhost, name=name, type=kind, internal=name == TRACE_EXCHANGE)
        for name, kind in BUILTIN_EXCHANGES.items()
    ]
    return [ExchangeDeclaration(vhost=vhost, name=DEFAULT_EXCHANGE), *named]


X_DELAY: Final = "x-delay"


def delay_of(headers: Mapping[str, Any]) -> int:
    """Milliseconds; 0: at once."""
    value = headers.get(X_DELAY)
    match value:
        case bool():
            return 0
        case int():
            return max(int(value), 0)
        case float() if math.isfinite(value):
            return max(int(value), 0)
        case str() | bytes():
            try:
                return max(int(value), 0)
            except ValueError:
                return 0
    return 0


def has_waited(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers of a message after it has waited."""
    delay_ms = delay_of(headers)
    return {**headers, X_DELAY: -delay_ms} if delay_ms else headers
