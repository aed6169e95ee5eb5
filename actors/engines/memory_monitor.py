"""MemoryMonitor: one duration for a whole node, from which every queue makes a number of messages of its own.

It owns each queue's last report, the last answer to it, and one number, the *desired duration*: how many
seconds, at today's rates, the messages that a queue keeps in RAM may last. Nothing of it is on disk; a crash leaves
nothing, and queues register again.

Terms. A queue's *duration* is what it reports: how long its messages in RAM will last (None: for ever, the queue is
idle). The *ratio* is memory used over memory allowed. A *round* (each memory_monitor_interval, and whenever the disk
alarm changes) recalculates the desired duration. A queue is *told* the desired duration in answer to its report, and
out of turn in a round that changed it the urgent way: down, so that it pages at once; or, under a disk alarm, up, so
that it stops paging at once.

    disk alarm                                      infinity    paging would need the disk that is full
    no memory allowed at all                        0
    ratio < paging ratio, or no finite duration     infinity
    ratio < 0.95                                    (sum + 1.0) / count / ratio
    else                                            sum / count / ratio

The 1.0 lets queues grow again that were all pushed down to 0, whose sum would stay 0 for ever.

*Pageable* is our own: RabbitMQ wakes each queue in such a round, though most of ten thousand have nothing to page. A
round skips queues that reported that they have nothing in RAM. Such a queue must report once it takes messages again;
the answer then holds for it.

*Resting* is our own, too: a queue without work that has messages in RAM. It reports infinity, and if all queues do,
there is no desired duration, even if memory is short. So while memory is *wanted* (the ratio is not below the paging
ratio, and there is no disk alarm), the monitor sends 0 to a resting queue, as the answer or in the next round.

Invariants: ``queue_duration_count`` is the number of finite durations reported, and ``queue_duration_sum`` their sum as
it was kept, report by report, in floating point (RabbitMQ's does so, and its rounds show it); below 1e-6 it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import attrs

from warren.storage.errors import SettingsError

DEFAULT_PAGING_RATIO: Final = 0.5
_GROW_BELOW_RATIO: Final = 0.95  # above it, queues at 0 stay there: there is no memory to grow into
_GROW_BY_S: Final = 1.0
_NEARLY_NOTHING_S: Final = 0.000_001
_SUM_TOLERANCE: Final = 1e-6
_INFINITY: Final = math.inf


def _shown(duration_s: float) -> float | None:
    return None if duration_s == _INFINITY else duration_s


def _clamped(sum_s: float) -> float:
    """A sum that came back to where it began, but for what adding and subtracting lost, is 0."""
    return 0.0 if sum_s < _NEARLY_NOTHING_S else sum_s


@attrs.define
class _Account:
    """One queue: its last report and the last answer, in seconds."""

    reported_s: float = _INFINITY
    told_s: float = _INFINITY


@attrs.define(eq=False, repr=False)
class MemoryMonitor:
    """The desired duration of a node's queues. A queue is whatever hashable its owner knows it by.

    ``limit_bytes`` (total memory times the high watermark) may be changed at any time and applies from the next round.
    """

    limit_bytes: int = attrs.field()
    paging_ratio: float = DEFAULT_PAGING_RATIO
    queue_duration_sum: float = attrs.field(default=0.0, init=False)
    queue_duration_count: int = attrs.field(default=0, init=False)
    _desired_s: float = attrs.field(default=_INFINITY, init=False)
    _ratio: float = attrs.field(default=0.0, init=False)
    _memory_alarm: bool = attrs.field(default=False, init=False)
    _accounts: dict[Hashable, _Account] = attrs.field(factory=dict, init=False)
    _pageable: dict[Hashable, _Account] = attrs.field(factory=dict, init=False)
    """Those of the accounts whose queues may have something to page."""
    _resting: dict[Hashable, _Account] = attrs.field(factory=dict, init=False)
    """Those of the pageable ones that have no work."""
    _pages_resting: bool = attrs.field(default=False, init=False)

    @limit_bytes.validator
    def _check_limit(self, _: object, value: int) -> None:
        if value < 0:
            raise SettingsError(f"the memory limit must be at least 0 bytes, not {value}")

    # ── what it says ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ratio(self) -> float:
        """Memory used over memory allowed, at the last round; infinity if none is allowed."""
        return self._ratio

    @property
    def desired_duration(self) -> float | None:
        """Seconds; None is infinity, as it is before the first round."""
        return _shown(self._desired_s)

    @property
    def memory_alarm(self) -> bool:
        """Whether more was used than is allowed, at the last round."""
        return self._memory_alarm

    def __len__(self) -> int:
        return len(self._accounts)

    def __contains__(self, queue: Hashable) -> bool:
        return queue in self._accounts

    # ── what it hears ───────────────────────────────────────────────────────────────────────────────────────────

    def register(self, queue: Hashable, *, pageable: bool = True) -> None:
        """Register ``queue``, which may then report. Its report and answer start as infinity.

        A registered queue starts again, as after a restart. ``pageable``: False for one with nothing in RAM.
        """
        self.deregister(queue)
        account = self._accounts[queue] = _Account()
        if pageable:
            self._pageable[queue] = account

    def deregister(self, queue: Hashable) -> None:
        """Forget ``queue``; one that is not known is passed over."""
        account = self._accounts.pop(queue, None)
        if account is None:
            return
        self._pageable.pop(queue, None)
        self._resting.pop(queue, None)
        if account.reported_s != _INFINITY:
            self.queue_duration_sum = _clamped(self.queue_duration_sum - account.reported_s)
            self.queue_duration_count -= 1

    def report(
        self, queue: Hashable, duration_s: float | None, *, pageable: bool = True, resting: bool = False
    ) -> float | None:
        """Note a queue's duration (None: infinity); return the desired duration before this report.

        ``pageable``: False if the queue has nothing in RAM; it is not notified out of turn until a report says
        otherwise. ``resting``: it has no work; the answer is 0 if memory is wanted, otherwise infinity.
        Raises RuntimeError for an unregistered queue and for an invalid duration.
        """
        account = self._accounts.get(queue)
        if account is None:
            raise RuntimeError(f"{queue!r} reports to the memory monitor and is not registered")
        if duration_s is None:
            duration_s = _INFINITY
        elif not 0.0 <= duration_s < _INFINITY:
            raise RuntimeError(f"{queue!r} reports a duration of {duration_s} s")
        before_s = account.reported_s
        # Subtracted first, then added, and the sum clamped last: the last digit depends on it.
        sum_s = self.queue_duration_sum
        if before_s != _INFINITY:
            sum_s -= before_s
            self.queue_duration_count -= 1
        if duration_s != _INFINITY:
            sum_s += duration_s
            self.queue_duration_count += 1
        self.queue_duration_sum = _clamped(sum_s)
        account.reported_s = duration_s
        account.told_s = self._desired_s
        if pageable:
            self._pageable[queue] = account
        else:
            self._pageable.pop(queue, None)
        self._resting.pop(queue, None)
        if resting:
            self._resting[queue] = account
            account.told_s = 0.0 if self._pages_resting else _INFINITY
        return _shown(account.told_s)

    def round(self, used_bytes: int, *, disk_alarm: bool) -> list[tuple[Hashable, float | None]]:
        """Recalculate the desired duration from the memory used now. Return which queues to tell at once, and what.

        No queue is looked at unless the value fell (under a disk alarm: rose); then only pageable ones.
        """
        self._ratio = used_bytes / self.limit_bytes if self.limit_bytes else _INFINITY
        self._memory_alarm = used_bytes > self.limit_bytes
        before_s, self._desired_s = self._desired_s, self._desired(disk_alarm)
        desired_s, shown = self._desired_s, _shown(self._desired_s)
        self._pages_resting = not disk_alarm and self._ratio >= self.paging_ratio and self._ratio > 0
        updates: list[tuple[Hashable, float | None]] = []
        if self._pages_resting:
            for queue, account in self._resting.items():
                if account.told_s:
                    account.told_s = 0.0
                    updates.append((queue, 0.0))
        if disk_alarm:
            if desired_s > before_s:
                for queue, account in self._pageable.items():
                    if desired_s > account.told_s and desired_s > account.reported_s:
                        account.told_s = desired_s
                        updates.append((queue, shown))
        elif desired_s < before_s:
            for queue, account in self._pageable.items():
                if desired_s < account.told_s and desired_s < account.reported_s:
                    account.told_s = desired_s
                    updates.append((queue, shown))
        return updates

    def _desired(self, disk_alarm: bool) -> float:
        ratio, count = self._ratio, self.queue_duration_count
        if disk_alarm:
            return _INFINITY
        if ratio == _INFINITY:
            return 0.0
        if ratio < self.paging_ratio or not count or not ratio:  # the last: a paging ratio of 0, and nothing used
            return _INFINITY
        grow_by_s = _GROW_BY_S if ratio < _GROW_BELOW_RATIO else 0.0
        return (self.queue_duration_sum + grow_by_s) / count / ratio

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the running sums differ from the sums of the accounts."""
        finite = [account.reported_s for account in self._accounts.values() if account.reported_s != _INFINITY]
        if self.queue_duration_count != len(finite):
            raise RuntimeError(f"{self.queue_duration_count} durations counted, {len(finite)} reported")
        total = math.fsum(finite)
        if not math.isclose(self.queue_duration_sum, total, rel_tol=_SUM_TOLERANCE, abs_tol=1e-3):
            raise RuntimeError(f"durations of {total} s in all, {self.queue_duration_sum} s kept")
        for queue, account in (*self._pageable.items(), *self._resting.items()):
            if self._accounts.get(queue) is not account:
                raise RuntimeError(f"{queue!r} is watched and has no account")
