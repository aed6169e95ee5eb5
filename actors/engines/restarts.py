"""Limits on restarts, and retries of what is down because of a disk error.

What fails is restarted at once, unless it has failed too often recently (:class:`Restarts`). Then it is *down*. If a
disk is the cause, it is retried after growing waits (:class:`Troubles`). What a retry has started is *on trial*: if it
fails again, it is down again at once. A trouble is over when the last retry has held for :data:`WELL_NS`. Only its
beginning and its end are logged, not the retries between, because a disk may stay full for days.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from warren.actors.engines.back_off import BackOff
from warren.actors.engines.node_settings import RestartLimit
from warren.storage.errors import StorageError

NS: Final = 1_000_000_000

RETRY_NS: Final = NS
MAX_RETRY_NS: Final = 64 * NS
"""The longest wait between two retries."""

WELL_NS: Final = 30 * NS
"""A part that a retry has started is well when it has run for this time."""

DISK_WITHIN_NS: Final = 2 * MAX_RETRY_NS
DISK_TIMES: Final = 3
"""Disk failures are also too frequent if this many times the allowed number occur within ``DISK_WITHIN_NS``. A disk
that fails on every write, every few seconds, never reaches the limit within the setting's shorter time."""

DISK_ERRORS: Final = (StorageError, OSError)
"""Errors that may pass by themselves. A plain ``OSError`` comes from a module that is imported on first use and cannot
be read because no descriptor is left."""

What = tuple[str, ...]
"""A part that can fail: ``("queue", vhost, name)``, ``("vhost", name)``, ``("delays", vhost)`` or ``("topics",)``."""


class Restarts:
    """The recent failures of one part. Truth value: whether there are any."""

    __slots__ = ("_at_ns",)

    def __init__(self) -> None:
        self._at_ns: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._at_ns)

    def too_often(self, now_ns: int, limit: RestartLimit, *, by_disk: bool = False) -> bool:
        """Note a failure; return whether there were too many recently. ``by_disk``: a disk is the cause of this one."""
        at_ns, within_ns = self._at_ns, round(limit.within_s * NS)
        at_ns.append(now_ns)
        while at_ns[0] < now_ns - max(within_ns, DISK_WITHIN_NS):
            at_ns.popleft()
        lately = sum(failure_ns >= now_ns - within_ns for failure_ns in at_ns)
        return lately > limit.max_restarts or (by_disk and len(at_ns) > DISK_TIMES * limit.max_restarts)


class Troubles:
    """The parts that are down because of a disk, or on trial. Any thread may call :meth:`knows`."""

    __slots__ = ("_tried_ns", "_waits")

    def __init__(self) -> None:
        self._waits: dict[What, BackOff] = {}
        self._tried_ns: dict[What, int] = {}
        """When the parts that are on trial were started."""

    def knows(self, what: What) -> bool:
        """Whether a part is down or on trial, so that its trouble was logged."""
        return what in self._waits

    def is_on_trial(self, what: What, error: BaseException) -> bool:
        """Whether the part that failed with ``error`` was on trial: then it is down again, not restarted at once."""
        return isinstance(error, DISK_ERRORS) and what in self._waits

    def next_wait_ns(self, what: What) -> int:
        """Return how long to wait before retrying ``what``, which is down. Waits keep growing if it was on trial."""
        self._tried_ns.pop(what, None)
        if what not in self._waits:
            self._waits[what] = BackOff(RETRY_NS, MAX_RETRY_NS)
        return self._waits[what].next_wait_ns()

    def tried(self, what: What, now_ns: int) -> None:
        """Note that a part was started, and is on trial."""
        if what in self._waits:
            self._tried_ns[what] = now_ns

    def is_over(self, what: What, now_ns: int) -> bool:
        """Whether a trouble is over; if so, forget it."""
        tried_ns = self._tried_ns.get(what)
        if tried_ns is None or now_ns < tried_ns + WELL_NS:
            return False
        self.forget(what)
        return True

    def forget(self, what: What) -> None:
        """Forget a part that no longer exists, or is down for another reason."""
        self._waits.pop(what, None)
        self._tried_ns.pop(what, None)
