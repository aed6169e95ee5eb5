"""What a quorum queue's settings say, and what its machine's version changes.

There is one machine; it asks its :class:`Rules` where versions differ. The log has the version: the entry of a newer
leader raises it, and from there on the new rules apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import attrs

from warren.salvage.quorum.fifo.delayed import DelayedRetry, RetryKind
from warren.salvage.quorum.fifo.ready_queues import ManyQueues, OneQueue, ReadyQueue, TwoQueues
from warren.storage.erlang_terms import Atom, Term

DEFAULT_TIMEOUT_MS: Final = 1_800_000
"""4.3's: how long a consumer holds a message unless it says another time."""


@attrs.frozen(kw_only=True)
class Rules:
    """What differs between versions."""

    caps_prefetch: bool
    """3: a consumer's credit never rises above its prefetch."""
    credits_each_return: bool
    """3: credit comes back with each returned message; before: with the command, and twice for what passes the
    limit."""
    has_keys: bool
    """4: a consumer is named by the index of its checkout; waiting consumers are ranked; what is returned comes in the
    order of the command; a return is no failed delivery, the limit counts acquisitions; below 0 means no limit."""
    finds_by_id: bool
    """5: a discard may name a consumer that has a key by its tag and pid."""
    activates_after_return: bool
    """7: a return activates the next single active consumer."""
    has_timeouts: bool
    """8: consumers hold messages for a time; returns may wait; expiry is checked apart from deliveries."""
    has_delivery_times: bool
    """9: a message may be published with the time from which on it is ready; a token may stand for several messages,
    and is ignored without a delivery time."""
    ready_queue: Callable[[], ReadyQueue]


def _rules(version: int) -> Rules:
    return Rules(
        caps_prefetch=version >= 3,
        credits_each_return=version >= 3,
        has_keys=version >= 4,
        finds_by_id=version >= 5,
        activates_after_return=version >= 7,
        has_timeouts=version >= 8,
        has_delivery_times=version >= 9,
        ready_queue=OneQueue if version < 4 else TwoQueues if version < 8 else ManyQueues,
    )


RULES: Final[Mapping[int, Rules]] = {version: _rules(version) for version in range(2, 10)}
"""By version of the machine: 2 = 3.10 and 3.11, 3 = 3.12 and 3.13, 4 = 4.0.2, 5 = 4.0.3 to 4.1.0, 7 = 4.1.4 and 4.2,
8 = 4.3; 9 is in no release yet."""


def rules_of(version: int) -> Rules:
    """Raises :class:`ValueError` for a version that is not known."""
    if version not in RULES:
        raise ValueError(f"version {version} of the machine is not known; {min(RULES)} to {max(RULES)} are")
    return RULES[version]


DeadLettering = Literal["none", "at_most_once", "at_least_once"]


@attrs.frozen
class QueueSettings:
    """The machine's settings, as far as they change the queue; ``None``: no limit."""

    dead_lettering: DeadLettering = "none"
    drops_head: bool = True
    """Messages over the limits are dropped at the head; else publishers are blocked, and nothing is dropped."""
    max_length: int | None = None
    max_bytes: int | None = None
    single_active: bool = False
    delivery_limit: int | None = None
    msg_ttl_ms: int | None = None
    delayed_retry: DelayedRetry | None = None
    """4.3's; ``None``: returns come back at once."""

    @classmethod
    def of(cls, settings: Mapping[Term, Term], rules: Rules) -> QueueSettings:
        """From the machine's map, as ``config`` and ``update_config`` have it; what is missing is not set."""
        limit = _number(settings, "delivery_limit")
        return cls(
            dead_lettering=dead_lettering(settings.get(Atom("dead_letter_handler"))),
            drops_head=settings.get(Atom("overflow_strategy")) != "reject_publish",
            max_length=_number(settings, "max_length"),
            max_bytes=_number(settings, "max_bytes"),
            single_active=settings.get(Atom("single_active_consumer_on")) is True,
            delivery_limit=None if limit is not None and limit < 0 and rules.has_keys else limit,
            msg_ttl_ms=_number(settings, "msg_ttl"),
            delayed_retry=delayed_retry(settings.get(Atom("delayed_retry"))) if rules.has_timeouts else None,
        )

    @property
    def has_limits(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None


def dead_lettering(handler: Term | None) -> DeadLettering:
    """What a ``dead_letter_handler`` means: ``undefined``, ``at_least_once``, ``{at_most_once, Mfa}``, or 3.9's Mfa."""
    if handler == "at_least_once":
        return "at_least_once"
    return "at_most_once" if isinstance(handler, tuple) else "none"


def delayed_retry(setting: Term | None) -> DelayedRetry | None:
    """What a ``delayed_retry`` means: ``disabled``, or ``{Kind, Min, Max}``."""
    match setting:
        case ("all" | "failed" | "returned" as kind, int(min_ms), int(max_ms)):
            kinds: Mapping[str, RetryKind] = {"all": "all", "failed": "failed", "returned": "returned"}
            return DelayedRetry(kinds[kind], min_ms, max_ms)
    return None


def _number(settings: Mapping[Term, Term], name: str) -> int | None:
    value = settings.get(Atom(name))
    return value if type(value) is int else None
