"""QueueArguments: typed views of a queue's arguments, as declared or merged with its policies.

A :class:`~warren.actors.engines.declared.arguments.QueueDeclaration` has these views, and so has the result of
:func:`effective`: if both the arguments and the policies set a time or a number, the lower one applies; of any other
setting the argument applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import attrs

from warren.queue_index.message.amqp_tables import is_integer

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
QueueMode = Literal["default", "lazy"]
DelayedRetryType = Literal["disabled", "all", "failed", "returned"]

QUORUM: Final = "quorum"
MAX_PERIOD_MS: Final = 315_360_000_000
"""Ten years: the longest that a TTL, an expiration or ``x-expires`` may be."""

_LESSER: Final = ("consumer-timeout", "delivery-limit", "expires", "max-length", "max-length-bytes", "message-ttl")
_ARGUMENT_FIRST: Final = (
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "delayed-retry-jitter",
    "delayed-retry-max",
    "delayed-retry-min",
    "delayed-retry-multiplier",
    "delayed-retry-type",
    "overflow",
    "queue-mode",
)
_PERIODS: Final = ("x-consumer-timeout", "x-expires", "x-message-ttl")


class QueueArguments:
    """The views of a queue's arguments."""

    __slots__ = ()

    name: str
    arguments: Mapping[str, Any]

    @property
    def is_quorum(self) -> bool:
        """Whether clients see a quorum queue."""
        return self.arguments.get("x-queue-type") == QUORUM

    @property
    def message_ttl_ms(self) -> int | None:
        """How long a message may wait for a consumer."""
        return self.arguments.get("x-message-ttl")

    @property
    def expires_ms(self) -> int | None:
        """How long the queue may be unused."""
        return self.arguments.get("x-expires")

    @property
    def max_length(self) -> int | None:
        """How many messages may be ready."""
        return self.arguments.get("x-max-length")

    @property
    def max_length_bytes(self) -> int | None:
        """How many bytes the bodies of ready messages may have."""
        return self.arguments.get("x-max-length-bytes")

    @property
    def overflow(self) -> Overflow:
        """What happens to a message that exceeds a limit. A quorum queue takes ``reject-publish-dlx`` for
        ``drop-head``."""
        overflow = cast(Overflow, self.arguments.get("x-overflow", "drop-head"))
        return "drop-head" if self.is_quorum and overflow == "reject-publish-dlx" else overflow

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange for dead letters; "" is the default exchange, ``None``: dead letters are dropped."""
        return self.arguments.get("x-dead-letter-exchange")

    @property
    def dead_letter_routing_key(self) -> str | None:
        """The routing key of dead letters; ``None``: their own."""
        return self.arguments.get("x-dead-letter-routing-key")

    @property
    def dead_letter_target(self) -> str:
        """The target of dead letters, as a phrase."""
        exchange, key = self.dead_letter_exchange, self.dead_letter_routing_key
        if exchange is None:
            return "nowhere"
        if exchange:
            return f"exchange '{exchange}'"
        return "the queues that their routing keys name" if key is None else f"queue '{key}'"

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may come back before it dies. ``None``: without a limit."""
        limit: Any = self.arguments.get("x-delivery-limit")
        return limit if is_integer(limit) and limit >= 0 else None

    @property
    def delayed_retry_type(self) -> DelayedRetryType:
        """Which messages that came back wait."""
        return cast(DelayedRetryType, self.arguments.get("x-delayed-retry-type", "all"))

    @property
    def delayed_retry_min_ms(self) -> int | None:
        """How long a message that came back waits before it is redelivered; ``None``: only messages to retry wait."""
        return self.arguments.get("x-delayed-retry-min")

    @property
    def delayed_retry_max_ms(self) -> int | None:
        """The longest that it waits."""
        return self.arguments.get("x-delayed-retry-max")

    @property
    def delayed_retry_multiplier(self) -> int | None:
        """The factor by which the wait grows each time; ``None``: it grows by the first wait."""
        return self.arguments.get("x-delayed-retry-multiplier")

    @property
    def delayed_retry_jitter(self) -> int:
        """The maximum percentage by which a wait is shortened."""
        return cast(int, self.arguments.get("x-delayed-retry-jitter", 0))

    @property
    def tells_delivery_count(self) -> bool:
        """Whether a message's headers say how often it came back, as with quorum queues."""
        return self.is_quorum or self.delivery_limit is not None or self.delayed_retry_min_ms is not None

    @property
    def consumer_timeout_ms(self) -> int | None:
        """How long a message may be unacked before it comes back; ``None``: without a limit."""
        return self.arguments.get("x-consumer-timeout")

    @property
    def queue_mode(self) -> QueueMode:
        return self.set_queue_mode or "default"

    @property
    def set_queue_mode(self) -> QueueMode | None:
        """The queue mode; ``None`` if it is not set."""
        return self.arguments.get("x-queue-mode")

    @property
    def max_priority(self) -> int | None:
        """The highest of the levels 0 … of a priority queue; ``None``: none."""
        return self.arguments.get("x-max-priority")

    @property
    def deduplicates(self) -> bool:
        """Whether the queue drops a message whose deduplication key is taken."""
        return bool(self.arguments.get("x-message-deduplication", False))

    @property
    def cache_ttl_ms(self) -> int | None:
        """How long a deduplication key is taken by default; ``None``: while its message is in the queue."""
        return self.arguments.get("x-cache-ttl")

    @property
    def single_active_consumer(self) -> bool:
        """Whether only one consumer gets messages, and another one when it leaves."""
        return bool(self.arguments.get("x-single-active-consumer", False))


@attrs.frozen
class EffectiveArguments(QueueArguments):
    """A queue's arguments merged with its policies."""

    name: str
    arguments: Mapping[str, Any]


def effective(
    declared: QueueArguments, definition: Mapping[str, Any], quorum_delivery_limit: int | None = None
) -> QueueArguments:
    """Merge a queue's arguments with its policy definition; returns ``declared`` itself if that sets nothing.

    ``quorum_delivery_limit``: for a quorum queue to which neither gives a limit.
    """
    arguments: dict[str, Any] = {}
    if quorum_delivery_limit is not None and declared.is_quorum and "x-delivery-limit" not in declared.arguments:
        arguments["x-delivery-limit"] = quorum_delivery_limit
    for setting in (*_LESSER, *_ARGUMENT_FIRST):
        name = f"x-{setting}"
        if setting in definition:
            declared_value, value = declared.arguments.get(name), definition[setting]
            if name == "x-delivery-limit":
                declared_value = declared.delivery_limit
            if name in _PERIODS:
                value = min(value, MAX_PERIOD_MS)
            arguments[name] = (
                value
                if declared_value is None
                else min(declared_value, value)
                if setting in _LESSER
                else declared_value
            )
    return EffectiveArguments(declared.name, {**declared.arguments, **arguments}) if arguments else declared
