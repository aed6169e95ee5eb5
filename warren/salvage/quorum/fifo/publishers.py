"""The publishers of a queue, and the next number of each.

A publisher numbers its messages from 1. A message that it sends again, because no confirm came, has an old number. One
that overtook a lost message has a number that is too high, and is sent again after that message. Neither is accepted.
"""

from __future__ import annotations

import attrs

from warren.salvage.quorum.fifo.commands import Pid


@attrs.define(eq=False, repr=False)
class Publishers:
    """The next number of each process."""

    following: dict[Pid, int] = attrs.Factory(dict)
    _holes: int = 0
    _checked: dict[Pid, int] = attrs.Factory(dict)
    """How many holes there were when a number of this process was seen; it may jump if there are more now."""

    def takes(self, pid: Pid, seq: int | None) -> bool:
        """Whether the number is the expected one; if so, expect the next one."""
        following = self.following.get(pid)
        if following is None:
            self.following[pid] = following = 1
        may_jump = self._checked.get(pid, 0) < self._holes
        if seq != following and (seq is None or seq < following or not may_jump):
            return False
        self.following[pid] = seq + 1
        if self._holes:
            self._checked[pid] = self._holes
        return True

    def register(self, pid: Pid) -> None:
        """Add a publisher, unless it is known."""
        if pid not in self.following:
            self.following[pid] = 1
            self._checked[pid] = self._holes

    def forget(self, pid: Pid) -> None:
        self.following.pop(pid, None)
        self._checked.pop(pid, None)

    def after_hole(self) -> None:
        """Entries are missing: the next number of each publisher, known or not, may be any that is not too low."""
        self._holes += 1

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        if any(seq < 1 for seq in self.following.values()) or not self._checked.keys() <= self.following.keys():
            raise RuntimeError("a publisher's sequence number is not sound")
