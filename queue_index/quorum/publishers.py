"""Who publishes to a queue, and what each is to send next.

A publisher numbers its messages from 1. What it sends again, for no confirm came, has an old number; what overtook a
message that was lost on the way has one too high, and comes again later, behind that. Neither is taken.
"""

from __future__ import annotations

from collections.abc import Mapping

from queue_index.quorum.commands import Pid


class Publishers:
    """The next number of each process."""

    __slots__ = ("_after_hole", "_jumping", "following")

    def __init__(self, following: Mapping[Pid, int] | None = None) -> None:
        self.following: dict[Pid, int] = dict(following or {})
        self._after_hole = False
        self._jumping: set[Pid] = set()
        """Of these what they published may be in a hole."""

    def takes(self, pid: Pid, seq: int | None) -> bool:
        """Whether this is what it was to send; then the next number is."""
        following = self.following.get(pid)
        if following is None:
            self.following[pid] = following = 1
            if self._after_hole:
                self._jumping.add(pid)
        if seq == following:
            self.following[pid] = following + 1
        elif seq is None or seq < following or pid not in self._jumping:
            return False
        else:
            self.following[pid] = seq + 1
        if self._jumping:
            self._jumping.discard(pid)
        return True

    def register(self, pid: Pid) -> None:
        """Unless it is known."""
        self.following.setdefault(pid, 1)

    def forget(self, pid: Pid) -> None:
        self.following.pop(pid, None)
        self._jumping.discard(pid)

    def after_hole(self) -> None:
        """Of each of them, known or not, the next number may be any that is not too low."""
        self._after_hole = True
        self._jumping = set(self.following)

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` where the structure does not hold."""
        if any(seq < 1 for seq in self.following.values()) or not self._jumping <= self.following.keys():
            raise RuntimeError("a publisher's sequence number is not sound")
