"""Who publishes to a queue, and what each is to send next.

A publisher numbers its messages from 1. A message that it sends again, because no confirm came, has an old number. One
that overtook a lost message has a number that is too high, and comes again after that message. Neither is taken.
"""

from __future__ import annotations

from warren.salvage.quorum.fifo.commands import Pid


class Publishers:
    """The next number of each process."""

    __slots__ = ("_checked", "_holes", "following")

    def __init__(self) -> None:
        self.following: dict[Pid, int] = {}
        self._holes = 0
        self._checked: dict[Pid, int] = {}
        """How many holes there were when a number of this process was seen; it may jump if there are more now."""

    def takes(self, pid: Pid, seq: int | None) -> bool:
        """Whether this is what it was to send; then the next number is."""
        following = self.following.get(pid)
        if following is None:
            self.following[pid] = following = 1
        if seq != following and (seq is None or seq < following or not self._may_jump(pid)):
            return False
        self.following[pid] = seq + 1
        if self._holes:
            self._checked[pid] = self._holes
        return True

    def _may_jump(self, pid: Pid) -> bool:
        return self._checked.get(pid, 0) < self._holes

    def register(self, pid: Pid) -> None:
        """Unless it is known."""
        if pid not in self.following:
            self.following[pid] = 1
            self._checked[pid] = self._holes

    def forget(self, pid: Pid) -> None:
        self.following.pop(pid, None)
        self._checked.pop(pid, None)

    def after_hole(self) -> None:
        """Of each of them, known or not, the next number may be any that is not too low."""
        self._holes += 1

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` where the structure does not hold."""
        if any(seq < 1 for seq in self.following.values()) or not self._checked.keys() <= self.following.keys():
            raise RuntimeError("a publisher's sequence number is not sound")
