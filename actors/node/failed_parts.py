"""FailedParts: the parts of a node that are down, and are tried again if the disk is the cause.

:mod:`warren.actors.engines.restarts` defines what counts as a trouble, how long to wait, and when it is over.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.actors.engines.restarts import DISK_ERRORS, WELL_NS, What
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext

_LOG = logger("node")


class FailedParts:
    """The parts of one node that are down; called in its turns."""

    def __init__(
        self, context: NodeContext, call_later: Callable[..., None], try_again: Callable[[What], bool]
    ) -> None:
        """``call_later``: :meth:`NodePart.call_later`. ``try_again`` brings a part up and returns whether it is up."""
        self._context = context
        self._troubles = context.troubles
        self._call_later = call_later
        self._try_again = try_again
        self._has_failed = False

    def note(self, what: What, error: BaseException, say: Callable[[], None]) -> None:
        """Note that a part is down, and try it again later if the disk is the cause. ``say`` logs it, unless it is
        logged already."""
        self._has_failed = True
        if not self._troubles.is_on_trial(what, error):
            say()
        if not isinstance(error, DISK_ERRORS):
            self._troubles.forget(what)
            return
        self._call_later(_key("retry", what), self._troubles.next_wait_ns(what), lambda: self._try(what), first=True)

    def _try(self, what: What) -> None:
        self._has_failed = False
        if self._try_again(what):
            self._troubles.tried(what, self._context.clock.now_ns())
            self._call_later(_key("well", what), WELL_NS, lambda: self._look(what), first=True)
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
