"""What a queue's arguments mean to an engine: those that it was declared with, or what policies make of them.

:class:`QueueArguments` are the views. A :class:`~warren.actors.engines.declared.arguments.QueueDeclaration` has them,
and so has what :func:`effective` gives: a time or a number that both the arguments and the policies set is the lesser
one; of anything else that both set, the argument holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import attrs

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
QueueMode = Literal["default", "lazy"]
DelayedRetryType = Literal["disabled", "all", "failed", "returned"]

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
    def message_ttl_ms(self) -> int | None:
        """How long a message may wait for a consumer."""
        return self.arguments.get("x-message-ttl")

    @property
    def expires_ms(self) -> int | None:
        """How long the queue may be without a user."""
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
        """What becomes of a message too many."""
        return cast(Overflow, self.arguments.get("x-overflow", "drop-head"))

    @property
    def dead_letter_exchange(self) -> str | None:
        """Where messages go that die here; "" is the default exchange, ``None``: they go nowhere."""
        return self.arguments.get("x-dead-letter-exchange")

    @property
    def dead_letter_routing_key(self) -> str | None:
        """With this key; ``None``: with their own."""
        return self.arguments.get("x-dead-letter-routing-key")

    @property
    def dead_letter_target(self) -> str:
        """Where messages go that die here, in words."""
        exchange, key = self.dead_letter_exchange, self.dead_letter_routing_key
        if exchange is None:
            return "nowhere"
        if exchange:
            return f"exchange '{exchange}'"
        return "the queues that their routing keys name" if key is None else f"queue '{key}'"

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may come back; one time more and it dies. ``None``: any number."""
        return self.arguments.get("x-delivery-limit")

    @property
    def delayed_retry_type(self) -> DelayedRetryType:
        """Which messages that came back wait."""
        return cast(DelayedRetryType, self.arguments.get("x-delayed-retry-type", "all"))

    @property
    def delayed_retry_min_ms(self) -> int | None:
        """How long a message that came back waits before it is delivered again; ``None``: only what failed does."""
        return self.arguments.get("x-delayed-retry-min")

    @property
    def delayed_retry_max_ms(self) -> int | None:
        """The longest that it waits."""
        return self.arguments.get("x-delayed-retry-max")

    @property
    def delayed_retry_multiplier(self) -> int | None:
        """By what the wait grows each time; ``None``: by the first one."""
        return self.arguments.get("x-delayed-retry-multiplier")

    @property
    def delayed_retry_jitter(self) -> int:
        """By up to how many percent a wait is less."""
        return cast(int, self.arguments.get("x-delayed-retry-jitter", 0))

    @property
    def tells_delivery_count(self) -> bool:
        """Whether a message says in its headers how often it came back, as a quorum queue's do."""
        return self.delivery_limit is not None or self.delayed_retry_min_ms is not None

    @property
    def consumer_timeout_ms(self) -> int | None:
        """How long a message may be unacked before it comes back; ``None``: for ever."""
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
        """Whether a message's header says what it is to be the only one of."""
        return bool(self.arguments.get("x-message-deduplication", False))

    @property
    def cache_ttl_ms(self) -> int | None:
        """How long such a key is taken, where the message does not say it; ``None``: while the message waits."""
        return self.arguments.get("x-cache-ttl")

    @property
    def single_active_consumer(self) -> bool:
        """Only one of the consumers gets messages; another one when it goes."""
        return bool(self.arguments.get("x-single-active-consumer", False))


@attrs.frozen
class EffectiveArguments(QueueArguments):
    """A queue's arguments and its policies, put together."""

    name: str
    arguments: Mapping[str, Any]


def effective(declared: QueueArguments, definition: Mapping[str, Any]) -> QueueArguments:
    """What holds for a queue with such a policy definition; ``declared`` itself where that sets nothing for it."""
    arguments: dict[str, Any] = {}
    for setting in (*_LESSER, *_ARGUMENT_FIRST):
        name = f"x-{setting}"
        if setting in definition:
            own, value = declared.arguments.get(name), definition[setting]
            if name in _PERIODS:
                value = min(value, MAX_PERIOD_MS)
            arguments[name] = value if own is None else min(own, value) if setting in _LESSER else own
    return EffectiveArguments(declared.name, {**declared.arguments, **arguments}) if arguments else declared
