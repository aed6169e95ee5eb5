"""FailedParts: what of a node is down, and is tried again where the disk is the cause. A part of the node's actor.

What counts as a trouble, how long one waits and when it is over: :mod:`warren.actors.engines.restarts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from warren.actors.engines.restarts import DISK_ERRORS, WELL_NS, What
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext

_LOG = logger("node")


class FailedPartsHost(Protocol):
    """The node's actor."""

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Do ``work`` in a turn after ``wait_ns``; replaces a timer of that key."""

    def try_again(self, what: What) -> bool:
        """Bring it up, if it is down; whether it is up now. Of what is no more: not."""


class FailedParts:
    """See the module's prose. Used in the node's turns."""

    def __init__(self, context: NodeContext, host: FailedPartsHost) -> None:
        self._context = context
        self._troubles = context.troubles
        self._host = host
        self._has_failed = False

    def note(self, what: What, error: BaseException, say: Callable[[], None]) -> None:
        """It is down. ``say``: logs that, unless it is known; where the disk is the cause it is tried again later."""
        self._has_failed = True
        if not self._troubles.is_on_trial(what, error):
            say()
        if not isinstance(error, DISK_ERRORS):
            self._troubles.forget(what)
            return
        self._host.call_later(
            _key("retry", what), self._troubles.next_wait_ns(what), lambda: self._try(what), first=True
        )

    def _try(self, what: What) -> None:
        self._has_failed = False
        if self._host.try_again(what):
            self._troubles.tried(what, self._context.clock.now_ns())
            self._host.call_later(_key("well", what), WELL_NS, lambda: self._look(what), first=True)
        elif not self._has_failed:  # it was deleted meanwhile
            self._troubles.forget(what)

    def _look(self, what: What) -> None:
        if self._troubles.is_over(what, self._context.clock.now_ns()):
            _say_up(what)


def _key(kind: str, what: What) -> str:
    return " ".join((kind, *what))


def _say_up(what: What) -> None:
    match what:
        case ("queue", vhost, queue):
            _LOG.warning(
                "queue '%s' in vhost '%s' is available again",
                queue,
                vhost,
                extra=log_event("queue_up", vhost=vhost, queue=queue),
            )
        case ("vhost", vhost):
            _LOG.warning("vhost '%s' is available again", vhost, extra=log_event("vhost_up", vhost=vhost))
        case ("delays", vhost):
            _LOG.warning(
                "the delayed messages of vhost '%s' are available again",
                vhost,
                extra=log_event("delayed_up", vhost=vhost),
            )
        case ("topics",):
            _LOG.warning("the topics are available again", extra=log_event("topics_up"))
        case _:
            raise RuntimeError(f"unknown part {what!r}")
