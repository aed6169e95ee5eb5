"""What a stream may be declared with and consumed with: a queue with ``x-queue-type: stream``.

A stream is durable, is not exclusive, and stays when its last consumer goes. It knows few arguments, and refuses those
of other kinds of queue. :class:`StreamLimits` defines how long its messages stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.queue_index.message.amqp_tables import is_integer, type_name

STREAM: Final = "stream"
MAX_SEGMENT_SIZE_BYTES: Final = 3_000_000_000
"""The largest ``x-stream-max-segment-size-bytes`` that RabbitMQ accepts."""

FILTER_SIZE: Final = "x-stream-filter-size-bytes"
_FILTER_SIZES: Final = range(16, 256)

_PERIOD: Final = re.compile("([0-9]+)([YMDhms])", re.ASCII)
_SECONDS: Final = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}
LEADER_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders")

FOREIGN_ARGUMENTS: Final = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-expires",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-max-length",
        "x-max-priority",
        "x-message-ttl",
        "x-overflow",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-version",
        "x-quorum-initial-group-size",
        "x-single-active-consumer",
    }
)
"""Arguments of classic and quorum queues that a stream refuses."""

# ── what an argument may be: each says what is wrong, or None ────────────────────────────────────────────────────────


def check_count(value: Any) -> str | None:
    """Check a whole number that is not negative."""
    if not is_integer(value):
        return f'"expected integer, got {type_name(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None


def check_positive(value: Any) -> str | None:
    """Check a whole number above zero."""
    return check_count(value) or ("{value_zero,0}" if value == 0 else None)


def _age(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{{unacceptable_type,{type_name(value)}}}"
    return "invalid_max_age" if period_ms(value) is None else None


def _leader_locator(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{{unacceptable_type,{type_name(value)}}}"
    return None if value in LEADER_LOCATORS else "invalid_queue_locator_arg"


STREAM_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "x-max-length-bytes": check_count,
    "x-queue-type": lambda _: None,
    "x-max-age": _age,
    "x-stream-max-segment-size-bytes": check_count,
    "x-initial-cluster-size": check_positive,
    "x-queue-leader-locator": _leader_locator,
}
"""The arguments of a stream, in the order in which a redeclaration is compared."""


def period_ms(text: str) -> int | None:
    """Return RabbitMQ's ``"7D"``, ``"12h"`` and so on in milliseconds; ``None`` if invalid or zero."""
    match = _PERIOD.fullmatch(text)
    return None if match is None else int(match[1]) * _SECONDS[match[2]] * 1000 or None


def check_filter_size(stream: object, arguments: Mapping[str, Any]) -> None:
    """Raise :class:`ArgumentsError` as RabbitMQ does from 3.13 on; earlier versions do not know the argument."""
    check_values(stream, arguments, {FILTER_SIZE: check_count})
    if arguments.get(FILTER_SIZE, _FILTER_SIZES.start) not in _FILTER_SIZES:
        raise ArgumentsError(f"Invalid value for {FILTER_SIZE}")


def check_values(
    stream: object, arguments: Mapping[str, Any], checks: Mapping[str, Callable[[Any], str | None]] = STREAM_CHECKS
) -> None:
    """Raise :class:`ArgumentsError` if a known argument has an invalid value."""
    for name, check in checks.items():
        if name in arguments and (wrong := check(arguments[name])) is not None:
            raise ArgumentsError(f"invalid arg '{name}' for {stream}: {wrong}")


def check_new(
    stream: object, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Raise :class:`ArgumentsError` if no new stream can have these properties. Existing streams are not checked."""
    for name in arguments:
        if name in FOREIGN_ARGUMENTS:
            raise ArgumentsError(f"invalid arg '{name}' for {stream} of queue type rabbit_stream_queue")
    check_properties(stream, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    if arguments.get("x-stream-max-segment-size-bytes", 0) > MAX_SEGMENT_SIZE_BYTES:
        raise ArgumentsError("Exceeded max value for x-stream-max-segment-size-bytes")


def check_properties(queue: object, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """Raise :class:`ArgumentsError` if no stream and no quorum queue can have these properties."""
    for wrong, property_name in (
        (auto_delete, "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not durable, "non-durable"),
    ):
        if wrong:
            raise ArgumentsError(f"invalid property '{property_name}' for {queue}")


# ── how long messages stay ───────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class StreamLimits:
    """How much a stream retains at least; ``None``: everything."""

    max_age_ms: int | None = None
    max_length_bytes: int | None = None
    """Of records in the CommitLog."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], policies: Mapping[str, Any]) -> StreamLimits:
        """The limits in a stream's policies or, if these set none, in its arguments; as with RabbitMQ."""
        age, length_bytes = (policies.get(name, arguments.get(f"x-{name}")) for name in ("max-age", "max-length-bytes"))
        return cls(None if age is None else period_ms(age), length_bytes)
