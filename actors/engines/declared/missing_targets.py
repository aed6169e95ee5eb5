"""MissingTargets: warnings about messages that are dropped because the exchange or queue they should go to is missing.

Such a target is named by a queue or a policy for dead letters, by an exchange or a policy as an alternate exchange, and
by a delayed message that is due. A target may be declared later, so a missing one is not an error. It is logged when
the object that names it is declared, and again with the first message that is dropped because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.actors.log_events import log_event, logger

if TYPE_CHECKING:
    from warren.actors.engines.declared.exchanges import DestinationType
    from warren.actors.engines.declared.queue_arguments import QueueArguments

_LOG = logger("node")


class MissingTargets:
    """The warnings of one vhost. Any thread may log a drop."""

    __slots__ = ("_has", "_logged", "_vhost")

    def __init__(self, vhost: str, has: Callable[[DestinationType, str], bool]) -> None:
        """``has``: whether the vhost has a queue or an exchange of a name."""
        self._vhost = vhost
        self._has = has
        self._logged: dict[str, set[str]] = {}
        """The exchanges whose first drop is logged, by what names them."""

    def check(self, subject: object, dead_letters: QueueArguments | None, alternate: str | None) -> None:
        """Log each missing target that ``subject``, which was just declared, names.

        ``dead_letters``: arguments that may name one.
        """
        self.forget(subject)
        if dead_letters is not None and not self._has_target(dead_letters):
            self._warn(subject, "dead letters", dead_letters.dead_letter_target)
        if alternate is not None and not self._has("exchange", alternate):
            self._warn(subject, "messages without a destination", f"exchange '{alternate}'")

    def forget(self, subject: object) -> None:
        """Log the next dropped message of ``subject`` again, because it was declared or deleted."""
        self._logged.pop(str(subject), None)

    def _has_target(self, arguments: QueueArguments) -> bool:
        exchange, key = arguments.dead_letter_exchange, arguments.dead_letter_routing_key
        if exchange:
            return self._has("exchange", exchange)
        return exchange is None or key is None or self._has("queue", key)

    def _warn(self, subject: object, messages: str, target: str) -> None:
        _LOG.warning(
            "%s: %s go to %s, which does not exist; they are dropped until it is declared",
            subject,
            messages,
            target,
            extra=log_event("target_missing", vhost=self._vhost, what=str(subject), reason=target),
        )

    def note_drop(self, subject: object, exchange: str, routing_key: str) -> None:
        """Log the first message of ``subject`` that reaches no queue through ``exchange``."""
        logged = self._logged.setdefault(str(subject), set())
        if exchange in logged:
            return
        logged.add(exchange)
        is_there = self._has("exchange", exchange)
        why = f"has no route for routing key '{routing_key}'" if is_there else "does not exist"
        _LOG.warning(
            "%s: a message is dropped: exchange '%s' %s; the next ones are not logged",
            subject,
            exchange,
            why,
            extra=log_event(
                "target_missing", vhost=self._vhost, what=str(subject), reason=f"exchange '{exchange}' {why}"
            ),
        )
