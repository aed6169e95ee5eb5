"""Consumer groups: which member reads which queue of a topic, and how far. A lone reader is a group of one member.

The queues of a topic are divided among the *members* of a group, so that each queue has one owner. Members are in the
order in which they joined. Each gets a run of neighbouring queues; if the division leaves a remainder, the first ones
get one more (RocketMQ's average allocation). The queues are divided again whenever a member joins or leaves, which
increments the *generation*.

A queue has two queue offsets. *Committed*: the next message that the group has not finished; it is durable.
*Position*: the next message to be handed out. A new owner of a queue begins at the committed offset, so messages that
were taken and not committed are handed out again: at least once, and in order for each owner.

A *claim* numbers one period of owning a queue. It changes when the queue changes owner and after a seek. A commit that
names the claim under which its messages were taken cannot undo later changes.

A group without a committed offset in a queue begins at its first message, after its last, or where the caller says (a
time, resolved). That offset is committed at once; otherwise the group would lose messages that arrive before the next
start. Messages below a queue's minimum are gone: reading continues at the minimum and reports how many were skipped. A
committed offset after the maximum (the store lost its tail) is reset to the maximum when the first member joins; while
the group reads, a lower maximum only means that dispatch is not that far yet.

Invariants: every queue has one owner if the group has members, and none otherwise; 0 ≤ committed ≤ position; without an
owner they are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import attrs

from warren.actors.engines.topics.errors import MemberError, QueueLostError, QueueRangeError, check_queues
from warren.storage.errors import shown

Bounds = Callable[[int], tuple[int, int]]
"""Return a queue's minimum (its first existing message) and maximum (one after its last)."""
StartOffset = int | Literal["first", "last"]
"""A queue offset, the first existing message, or the position after the last one."""


@attrs.frozen
class Taken:
    """Messages of one queue that a reader may read now: ``queue_offset … queue_offset + count - 1``."""

    queue_id: int
    queue_offset: int
    count: int
    """0 if only skipped messages are reported."""
    skipped: int = 0
    """How many messages before these expired unread."""
    claim: int = 0
    """Passed back when the messages are committed."""

    @property
    def end(self) -> int:
        """The queue offset to commit when all messages are done."""
        return self.queue_offset + self.count


def divide(queues: int, members: int) -> list[range]:
    """Return the queues of each member, in the members' order. Ranges are empty if members outnumber queues."""
    share, remainder = divmod(queues, members)
    starts = [number * share + min(number, remainder) for number in range(members + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def lag_of(committed: int, minimum: int, maximum: int) -> int:
    """Return how many existing messages are not committed."""
    return max(maximum - max(committed, minimum), 0)


def _resolve(place: StartOffset, minimum: int, maximum: int) -> int:
    """Return a queue offset; -1, which no queue has, if ``place`` is invalid."""
    return minimum if place == "first" else maximum if place == "last" else _number(place)


def _number(value: object) -> int:
    """Return a whole number from 0, or -1 for anything else: values from another process may be of any type."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _take(
    queue_ids: list[int], positions: dict[int, int], bounds: Bounds, limit: int, claims: Mapping[int, int]
) -> list[Taken]:
    """Take up to ``limit`` messages, queue after queue, and advance the positions."""
    taken = []
    for queue_id in queue_ids:
        if limit <= 0:
            break
        minimum, maximum = bounds(queue_id)
        skipped = max(minimum - positions[queue_id], 0)
        start = positions[queue_id] + skipped
        count = min(max(maximum - start, 0), limit)
        if count or skipped:
            taken.append(Taken(queue_id, start, count, skipped, claims.get(queue_id, 0)))
            positions[queue_id] = start + count
            limit -= count
    return taken


def _turned(queue_ids: Iterable[int], last: int) -> list[int]:
    """Sort the queue_ids, starting after ``last``, so that a queue that is never empty does not starve the others."""
    ordered = sorted(queue_ids)
    return [queue_id for queue_id in ordered if queue_id > last] + [
        queue_id for queue_id in ordered if queue_id <= last
    ]


def _copy(places: Mapping[int, int]) -> dict[int, int]:
    return dict(places)


@attrs.define
class _Member:
    """A reader in the group."""

    queues: range
    last_served: int = -1


@attrs.define
class ConsumerGroup:
    """One group of one topic."""

    topic: str
    group: str
    queues: int = attrs.field(validator=check_queues)
    committed: dict[int, int] = attrs.field(factory=dict, converter=_copy)
    """Committed queue offsets by queue_id. Read-only; initial values come from the consumer offsets file."""
    generation: int = attrs.field(default=0, init=False)
    """How many times the queues were divided."""
    _members: dict[str, _Member] = attrs.field(factory=dict, init=False)
    _positions: dict[int, int] = attrs.field(factory=dict, init=False)
    _claims: dict[int, int] = attrs.field(factory=dict, init=False)
    _last_claim: int = attrs.field(default=0, init=False)

    # ── who is there ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def members(self) -> tuple[str, ...]:
        """The members, in the order in which they joined."""
        return tuple(self._members)

    def join(
        self,
        member: str,
        bounds: Bounds,
        consume_from: StartOffset | Mapping[int, int] = "first",
        positions: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Add a member and divide the queues again.

        Call this only after the CommitLog has been dispatched; otherwise ``bounds`` would seem to lack a tail.
        ``consume_from``: where to begin in queues without a committed offset; a mapping has a queue offset for each. A
        single number beyond a queue's end means its end. ``positions``: queue offsets that replace the committed ones;
        those after the end of their queue are reset to it, too. Raises :class:`MemberError` if the group has a member
        of that name, and :class:`QueueRangeError` for a queue that does not exist and an invalid offset.
        """
        if member in self._members:
            raise MemberError(f"group {self.group!r} has a member {member!r} already")
        for queue_id in (*positions, *(consume_from if isinstance(consume_from, Mapping) else ())):
            self._check_queue(queue_id)
        places = dict(self.committed) if self._members else self._corrected(bounds)
        for queue_id in range(self.queues):
            if queue_id in places and queue_id not in positions:
                continue
            minimum, maximum = bounds(queue_id)
            place: StartOffset
            if queue_id in positions:
                place = positions[queue_id]
                places[queue_id] = min(_number(place), maximum)
            elif isinstance(consume_from, Mapping):
                place = consume_from.get(queue_id, "first")
                places[queue_id] = _resolve(place, minimum, maximum)
            else:
                place = consume_from
                places[queue_id] = min(_resolve(place, minimum, maximum), maximum)
            if not 0 <= places[queue_id] <= maximum:
                raise QueueRangeError(f"{self._queue_text(queue_id)} holds {minimum} to {maximum}, not {shown(place)}")
        self.committed.update(places)
        self._members[member] = _Member(range(0))
        self._divide()

    def leave(self, member: str) -> None:
        """Remove a member and divide its queues among the others. Raises :class:`MemberError`."""
        self._member(member)
        del self._members[member]
        self._divide()

    def set_queues(self, queues: int, bounds: Bounds) -> None:
        """Set a larger number of queues. A group with members reads the new ones from their first message."""
        if queues < self.queues:
            raise QueueRangeError(f"topic {self.topic!r} has {self.queues} queues, which cannot become {queues}")
        for queue_id in range(self.queues, queues) if self._members else ():
            minimum, maximum = bounds(queue_id)
            self.committed[queue_id] = min(self.committed.get(queue_id, minimum), maximum)
        self.queues = queues
        self._divide()

    def assignment(self, member: str) -> range:
        """The queues of a member. Raises :class:`MemberError`."""
        return self._member(member).queues

    def owner(self, queue_id: int) -> str | None:
        for member, state in self._members.items():
            if queue_id in state.queues:
                return member
        return None

    def _corrected(self, bounds: Bounds) -> dict[int, int]:
        committed = {queue_id: place for queue_id, place in self.committed.items() if queue_id < self.queues}
        return {queue_id: max(min(place, bounds(queue_id)[1]), 0) for queue_id, place in committed.items()}

    def _divide(self) -> None:
        before = {queue_id: state for state in self._members.values() for queue_id in state.queues}
        shares = divide(self.queues, len(self._members)) if self._members else []
        positions: dict[int, int] = {}
        claims: dict[int, int] = {}
        for state, share in zip(self._members.values(), shares, strict=True):
            for queue_id in share:
                if before.get(queue_id) is state:
                    positions[queue_id], claims[queue_id] = self._positions[queue_id], self._claims[queue_id]
                else:
                    positions[queue_id], claims[queue_id] = self.committed[queue_id], self._new_claim()
            state.queues = share
        self._positions, self._claims = positions, claims
        self.generation += 1

    def _new_claim(self) -> int:
        self._last_claim += 1
        return self._last_claim

    def _member(self, member: str) -> _Member:
        state = self._members.get(member)
        if state is None:
            raise MemberError(f"group {self.group!r} has no member {member!r}")
        return state

    def _check_queue(self, queue_id: object) -> None:
        if not 0 <= _number(queue_id) < self.queues:
            raise QueueRangeError(
                f"group {self.group!r}, topic {self.topic!r}: there is no queue {shown(queue_id)} among {self.queues}"
            )

    def _queue_text(self, queue_id: int) -> str:
        return f"group {self.group!r}, topic {self.topic!r}, queue {queue_id}"

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def position(self, queue_id: int) -> int | None:
        """The queue offset that is handed out next; ``None`` if the queue has no position or committed offset."""
        return self._positions.get(queue_id, self.committed.get(queue_id))

    def take(self, member: str, max_records: int, bounds: Bounds) -> list[Taken]:
        """Return what a member may read now, at most ``max_records``. Raises :class:`MemberError`."""
        state = self._member(member)
        taken = _take(_turned(state.queues, state.last_served), self._positions, bounds, max_records, self._claims)
        if taken:
            state.last_served = taken[-1].queue_id
        return taken

    def commit(self, member: str, queue_id: int, queue_offset: int, claim: int | None = None) -> bool:
        """Commit everything in the queue before ``queue_offset``. Return whether this changed the committed offset.

        Raises :class:`QueueLostError` if the member no longer owns the queue (or ``claim`` is no longer valid),
        :class:`QueueRangeError` if ``queue_offset`` was not handed out yet, and :class:`MemberError`.
        """
        self._check_held(member, queue_id, claim)
        if not 0 <= _number(queue_offset) <= self._positions[queue_id]:
            raise QueueRangeError(
                f"{self._queue_text(queue_id)}: {shown(queue_offset)} cannot be committed, "
                f"{self._positions[queue_id]} is handed out"
            )
        if queue_offset <= self.committed[queue_id]:
            return False
        self.committed[queue_id] = queue_offset
        return True

    def hand_back(self, taken: Taken, member: str, queue_offset: int | None = None) -> None:
        """Return messages from ``queue_offset`` on (default: all of ``taken``) unprocessed. The next :meth:`take`
        hands them out again, and any taken after them. Raises as :meth:`commit` does."""
        self._check_held(member, taken.queue_id, taken.claim)
        place = taken.queue_offset if queue_offset is None else queue_offset
        if not taken.queue_offset <= _number(place) <= taken.end:
            raise QueueRangeError(f"{self._queue_text(taken.queue_id)}: {shown(place)} is not in what is handed back")
        self._positions[taken.queue_id] = max(
            min(self._positions[taken.queue_id], place), self.committed[taken.queue_id]
        )

    def _check_held(self, member: str, queue_id: int, claim: int | None) -> None:
        if _number(queue_id) not in self._member(member).queues:
            raise QueueLostError(
                f"{self._queue_text(queue_id)}: {member!r} does not have it, but {self.owner(queue_id)!r}"
            )
        if claim is not None and claim != self._claims[queue_id]:
            raise QueueLostError(f"{self._queue_text(queue_id)}: it was given away or sought to another place since")

    def seek(self, places: StartOffset | Mapping[int, StartOffset], bounds: Bounds) -> dict[int, int]:
        """Move all queues, or those named, to other offsets. Return the offsets that are now committed.

        Raises :class:`QueueRangeError` for a queue that does not exist, and for an offset outside a queue.
        """
        targets = places if isinstance(places, Mapping) else dict.fromkeys(range(self.queues), places)
        resolved = {}
        for queue_id, place in targets.items():
            self._check_queue(queue_id)
            minimum, maximum = bounds(queue_id)
            resolved[int(queue_id)] = _resolve(place, minimum, maximum)
            if not minimum <= resolved[queue_id] <= maximum:
                raise QueueRangeError(f"{self._queue_text(queue_id)} holds {minimum} to {maximum}, not {shown(place)}")
        for queue_id, queue_offset in resolved.items():
            self.committed[queue_id] = queue_offset
            if queue_id in self._positions:
                self._positions[queue_id], self._claims[queue_id] = queue_offset, self._new_claim()
        return resolved

    def lag(self, bounds: Bounds) -> dict[int, int]:
        """Return uncommitted messages by queue_id; all existing ones if nothing is committed."""
        return {queue_id: lag_of(self.committed.get(queue_id, 0), *bounds(queue_id)) for queue_id in range(self.queues)}

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if owners, offsets or claims contradict one another."""
        owned = [queue_id for state in self._members.values() for queue_id in state.queues]
        if owned != (list(range(self.queues)) if self._members else []):
            raise RuntimeError(f"{self.group}: the members' queues are {owned}, of {self.queues}")
        if set(self._positions) != set(owned) or set(self._claims) != set(owned):
            raise RuntimeError(f"{self.group}: positions or claims of queues without an owner, or none of one with it")
        if len(set(self._claims.values())) != len(owned) or max(self._claims.values(), default=0) > self._last_claim:
            raise RuntimeError(f"{self.group}: claims {self._claims}")
        for queue_id, position in self._positions.items():
            if not 0 <= self.committed[queue_id] <= position:
                raise RuntimeError(f"{self._queue_text(queue_id)}: committed {self.committed[queue_id]}, at {position}")
