"""Consumers of one queue: which gets the next message, and what each channel has not settled.

A consumer has *room* while it has fewer unacked messages than its prefetch, and while the prefetch that it may share
with others is not used up; one that does not ack, or has no prefetch, always has room. Each priority has a ring of
consumers. The next message goes to the first one of the highest ring, which then moves to the end. A consumer without
room leaves its ring when it is its turn, and comes back to the end when an ack makes room; one that has room again
before its turn keeps its place. Consumers that left because their shared prefetch was used up come back together, in
the order in which they left, so that none of them gets everything.

*Exclusive*: the only consumer, as long as it exists. *Single active consumer*: the first one gets everything; when it
leaves, the next one of the rings does. It stays active even if it has no room, or another one has a higher priority. If
it is cancelled with unsettled messages, its *successor* waits until they are settled, or until another
event restarts delivery: messages are requeued, a consumer is added, or a channel closes. So requeued messages are
delivered before those that followed them.

Invariants: a consumer with room and without a shared prefetch is in its ring; a consumer's count of unacked messages is
the number of its tags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from warren.actors.engines.errors import AccessRefusedError, PreconditionFailedError
from warren.actors.engines.queue.delivery_tags import DeliveryTags, TagRun

UNLIMITED_ROOM = 1 << 62


class Shared(Protocol):
    """A prefetch that several consumers, of any queues, share. Other threads use it at the same time."""

    @property
    def room(self) -> int:
        """How many more messages there is room for at the moment."""

    def take(self, count: int) -> int:
        """Take room for up to ``count`` messages; return how many fit."""

    def give_back(self, count: int) -> None:
        """Return unused room for ``count`` messages."""


@attrs.frozen
class Consumer:
    """One subscription to a queue."""

    channel: str
    tag: str
    """Its name, unique among the queue's consumers."""
    prefetch: int = 0
    """How many unacked messages it may have; 0: any number. Ignored if no ack is required."""
    ack_required: bool = True
    acks_unseen: bool = False
    """Whether it acks every message on arrival, so that messages may bypass an empty queue on the way to it."""
    exclusive: bool = False
    priority: int = 0
    """Consumers of a lower priority get only messages for which higher ones have no room."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    shared: Shared | None = attrs.field(default=None, eq=False)
    """A shared prefetch besides its own, which then is not 0 unless it acks unseen."""
    ack_timeout_ms: int | None = None
    """How long it may hold an unacked message; ``None``: as the queue's arguments say."""


@attrs.define(eq=False, repr=False)
class ConsumerState:
    """A consumer, and how many unacked messages it has."""

    consumer: Consumer
    unacked: int = 0
    ringing: bool = False
    """Whether it is in its ring."""
    left: int = 0
    """Orders the consumers that left their ring because their shared prefetch was used up; 0 for all others."""
    is_removed: bool = False

    @property
    def room(self) -> int:
        consumer = self.consumer
        limited = consumer.prefetch and consumer.ack_required
        room = max(consumer.prefetch - self.unacked, 0) if limited else UNLIMITED_ROOM
        if (shared := consumer.shared) is None:
            return room
        return (room if shared.room else 0) if consumer.acks_unseen else min(room, shared.room)

    def take_shared(self, count: int) -> int:
        """Take shared room for ``count`` messages; return how many fit. A consumer that acks unseen takes no room but
        gets messages only while there is some."""
        shared = self.consumer.shared
        if shared is None or self.consumer.acks_unseen:
            return count if shared is None or shared.room else 0
        return shared.take(count)

    def give_shared_back(self, count: int) -> None:
        """Give back unused shared room for ``count`` messages."""
        if count and (shared := self.consumer.shared) is not None and not self.consumer.acks_unseen:
            shared.give_back(count)


Run = TagRun["ConsumerState | None"]
"""``None``: a get."""


@attrs.define(eq=False, repr=False)
class Consumers:
    """All consumers and channels of one queue."""

    _single_active: bool = attrs.field(default=False, kw_only=True)
    _by_tag: dict[str, ConsumerState] | None = None
    _channels: dict[str, DeliveryTags[ConsumerState | None]] | None = None
    _rings: list[tuple[int, deque[ConsumerState]]] | None = None
    active: ConsumerState | None = None
    """The exclusive consumer, or the single active one."""
    _predecessor: ConsumerState | None = None
    """The single active consumer that was cancelled, while its successor waits for what it has unacked."""
    had_one: bool = False
    """Whether there ever was a consumer."""
    _times_left: int = 0
    """How often a consumer has left its ring because its shared prefetch was used up."""

    # ── who is there ────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._by_tag) if self._by_tag else 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter([state.consumer for state in self._by_tag.values()] if self._by_tag else [])

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises :class:`AccessRefusedError` if it is exclusive and not alone, or another one is."""
        if consumer.prefetch < 0:
            raise PreconditionFailedError(f"a prefetch of {consumer.prefetch}")
        if self._by_tag and consumer.tag in self._by_tag:
            raise PreconditionFailedError(f"there is a consumer {consumer.tag!r} already")
        if self._single_active:
            refused = consumer.exclusive
        else:
            refused = self.active is not None or (consumer.exclusive and bool(self._by_tag))
        if refused:
            raise AccessRefusedError(
                "no exclusive use: the queue has other consumers, may have several, or one has it to itself"
            )
        state = ConsumerState(consumer)
        if self._by_tag is None:
            self._by_tag = {}
        self._by_tag[consumer.tag] = state
        self.had_one = True
        self._enter_ring(state)
        self.hand_out_anew()
        if consumer.exclusive or (self._single_active and self.active is None):
            self.active = state

    def remove(self, tag: str) -> Consumer | None:
        """Remove and return a consumer; its unacked messages stay with the channel. ``None`` if the tag is unknown."""
        state = self._by_tag.pop(tag, None) if self._by_tag else None
        if state is None:
            return None
        self._leave_ring(state)
        state.is_removed = True
        if not self._by_tag:
            self._by_tag = self._rings = None
        if state is self.active:
            self.active = self._first_of_rings() if self._single_active else None
            if state.unacked and self._single_active:
                self._predecessor = state
        return state.consumer

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Set a consumer's prefetch; its unacked messages count. Does nothing if there is no such consumer."""
        if prefetch < 0:
            raise PreconditionFailedError(f"a prefetch of {prefetch}")
        state = self._by_tag.get(tag) if self._by_tag else None
        if state is None:
            return
        state.consumer, state.left = attrs.evolve(state.consumer, prefetch=prefetch, shared=shared), 0
        if state.room and not state.ringing:
            self._enter_ring(state)

    def resume(self, shared: Shared) -> None:
        """Note that a shared prefetch has room again. If that is used up already, another call will follow."""
        if not self._by_tag or not shared.room:
            return
        waiting = [state for state in self._by_tag.values() if state.consumer.shared is shared and not state.ringing]
        for state in sorted(waiting, key=lambda state: state.left):
            state.left = 0
            if state.room:
                self._enter_ring(state)

    def set_room(self, tag: str, room: int) -> None:
        """Let a consumer have room for ``room`` more messages, regardless of what it has unacked."""
        state = self._by_tag.get(tag) if self._by_tag else None
        if state is not None and state.room != room:
            self.set_prefetch(tag, max(state.unacked + room, 1), state.consumer.shared)

    def remove_channel(self, channel: str) -> tuple[list[str], list[Run]]:
        """Remove a channel; return the tags of its consumers, and its unacked messages."""
        here = [consumer.tag for consumer in self if consumer.channel == channel]
        for tag in here:
            self.remove(tag)
        tags = self._channels.pop(channel, None) if self._channels else None
        if not self._channels:
            self._channels = None
        if here or tags is not None:
            self.hand_out_anew()
        return here, tags.take_all() if tags is not None else []

    def forget(self) -> None:
        """Forget every consumer and channel, because the queue ends."""
        self._by_tag = self._channels = self._rings = self.active = self._predecessor = None
        self.had_one = False

    # ── who is next ─────────────────────────────────────────────────────────────────────────────────────────────

    def next(self) -> tuple[ConsumerState, int] | None:
        """Return the consumer that gets the next message, and how many it may get at once; ``None`` if all are full.

        Call this only if there is a message: consumers without room lose their turn.
        """
        if self._single_active:
            room = self.room
            return (self.active, room) if room and self.active is not None else None
        while self._rings:
            ring = self._rings[0][1]
            if room := ring[0].room:
                return ring[0], room if len(ring) == 1 else 1
            shared = ring[0].consumer.shared
            if shared is not None and not shared.room:
                self._times_left += 1
                ring[0].left = self._times_left
            self._leave_ring(ring[0])
        return None

    def hand_out_anew(self) -> None:
        """Let the single active consumer no longer wait for its predecessor's unacked messages."""
        self._predecessor = None

    def round(self) -> tuple[bool, int] | None:
        """If several consumers can be served in turn: whether they ack, and how much room they have; else ``None``."""
        if self._single_active or not self._rings or len(self._rings[0][1]) == 1:
            return None
        ring = self._rings[0][1]
        ack_required = ring[0].consumer.ack_required
        if any(state.consumer.ack_required != ack_required or state.consumer.shared is not None for state in ring):
            return None
        return ack_required, sum(state.room for state in ring)

    def turns(self, count: int) -> tuple[list[ConsumerState], int]:
        """Return the consumers whose turn it is, in order, for ``count`` messages of a :meth:`round`, and how many each
        gets (every n-th); then it is the first one's turn again. If they cannot share evenly, return the next alone."""
        ring = self._rings[0][1] if self._rings else ()
        share = min([state.room for state in ring], default=0)
        if len(ring) > 1:
            share = min(share, count // len(ring))
            if share > 1 and len({state.consumer.channel for state in ring}) < len(ring):
                share = 1  # each channel must get its messages in order
        if share:
            return list(ring), min(share, count)
        chosen = self.next()
        return ([], 0) if chosen is None else ([chosen[0]], 1)

    @property
    def room(self) -> int:
        """How many messages could be handed out now."""
        if self._single_active:
            if self.active is None or (self._predecessor is not None and self._predecessor.unacked):
                return 0
            return self.active.room
        if not self._rings:
            return 0
        total, together = 0, dict[Shared, int]()
        for _, ring in self._rings:
            for state in ring:
                if (shared := state.consumer.shared) is None:
                    total += state.room
                else:
                    together[shared] = together.get(shared, 0) + state.room
        total += sum(min(room, shared.room) for shared, room in together.items())
        return min(total, UNLIMITED_ROOM)

    def give(self, state: ConsumerState, level: int, seq_ids: range) -> int:
        """Give messages to the consumer that :meth:`next` returned; return the first tag, 0 if it does not ack."""
        consumer, first = state.consumer, 0
        if consumer.ack_required:
            first = self.channel(consumer.channel).give(level, seq_ids, state)
            state.unacked += len(seq_ids)
        self.pass_turn(state)
        return first

    def lone(self, held: int) -> Consumer | None:
        """The only consumer, if it acks, shares no prefetch, has no ack timeout, and has room for more than ``held``
        messages."""
        if self._by_tag is None or len(self._by_tag) != 1 or self._predecessor is not None:
            return None
        (state,) = self._by_tag.values()
        consumer = state.consumer
        if not consumer.ack_required or consumer.shared is not None or state.room <= held:
            return None
        return consumer if consumer.ack_timeout_ms is None else None

    def have(self, channel: str, tag: str | None, given: Iterable[tuple[int, range]]) -> None:
        """Note messages of level 0 that a channel already got: their first delivery tags, which were skipped, and
        seq_ids."""
        state = self._by_tag.get(tag) if tag is not None and self._by_tag else None
        runs = [TagRun(first, len(seq_ids), 0, seq_ids.start, state) for first, seq_ids in given]
        if runs:
            self.channel(channel).put_back(runs)
            if state is not None:
                state.unacked += sum(run.count for run in runs)

    def pass_turn(self, state: ConsumerState) -> None:
        """Move a consumer that is first in its ring to the end."""
        if not self._single_active and self._rings is not None:
            ring = self._rings[0][1]
            if len(ring) > 1 and ring[0] is state:
                ring.rotate(-1)

    def _enter_ring(self, state: ConsumerState) -> None:
        rings = self._rings = self._rings if self._rings is not None else []
        priority = state.consumer.priority
        state.ringing, state.left = True, 0
        for at, (other, ring) in enumerate(rings):
            if other == priority:
                ring.append(state)
                return
            if other < priority:
                rings.insert(at, (priority, deque([state])))
                return
        rings.append((priority, deque([state])))

    def _leave_ring(self, state: ConsumerState) -> None:
        if not state.ringing or self._rings is None:
            return
        state.ringing = False
        for at, (priority, ring) in enumerate(self._rings):
            if priority == state.consumer.priority:
                ring.remove(state)
                if not ring:
                    del self._rings[at]
                return

    def _first_of_rings(self) -> ConsumerState | None:
        return self._rings[0][1][0] if self._rings else None

    # ── what is unacked ─────────────────────────────────────────────────────────────────────────────────────────

    def channel(self, channel: str) -> DeliveryTags[ConsumerState | None]:
        """The tags of a channel, which is created if it is new."""
        if self._channels is None:
            self._channels = {}
        tags = self._channels.get(channel)
        if tags is None:
            tags = self._channels[channel] = DeliveryTags()
        return tags

    def settle(self, channel: str, tags: Sequence[range]) -> list[Run]:
        """Take those tags off a channel that it has not settled yet.

        Raises :class:`~warren.actors.engines.errors.UnknownTagError` and takes none if one was never given to it.
        """
        return self._settled(self._tags_of(channel).take_present(tags))

    def settle_up_to(self, channel: str, tag: int) -> list[Run]:
        """As :meth:`settle`, everything up to a tag; 0: everything."""
        return self._settled(self._tags_of(channel).take_present_up_to(tag))

    def check_present(self, channel: str, tag: int) -> None:
        """Raise :class:`~warren.actors.engines.errors.UnknownTagError` if a channel does not have this tag."""
        self._tags_of(channel).check_present(tag)

    def _tags_of(self, channel: str) -> DeliveryTags[ConsumerState | None]:
        tags = self._channels.get(channel) if self._channels else None
        return DeliveryTags() if tags is None else tags

    def _settled(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            state = run.owner
            if state is not None:
                state.unacked -= run.count
                if not state.ringing and not state.left and not state.is_removed and state.room:
                    self._enter_ring(state)
        return runs

    @property
    def unacked(self) -> int:
        """Messages that channels have not settled."""
        return sum(map(len, self._channels.values())) if self._channels else 0

    def unacked_by_channel(self) -> dict[str, int]:
        return {channel: len(tags) for channel, tags in self._channels.items()} if self._channels else {}

    def runs(self) -> list[Run]:
        """All unacked messages."""
        return [run for tags in self._channels.values() for run in tags.runs] if self._channels else []

    def oldest_runs(self) -> list[Run]:
        """The oldest run of each channel."""
        return [tags.runs[0] for tags in self._channels.values() if tags.runs] if self._channels else []

    def oldest_tag(self, channel: str) -> int | None:
        """Return the first tag that a channel has not settled, ``None`` if all are settled."""
        return self._tags_of(channel).oldest

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if rings, counts or the active consumer contradict one another."""
        problems, states = [], list(self._by_tag.values()) if self._by_tag else []
        counted: dict[int, int] = {}
        for tags in self._channels.values() if self._channels else ():
            tags.check_invariants()
        for run in self.runs():
            counted[id(run.owner)] = counted.get(id(run.owner), 0) + run.count
        ringing = [state for _, ring in self._rings or () for state in ring]
        if len(set(map(id, ringing))) != len(ringing) or any(not ring for _, ring in self._rings or ()):
            problems.append("a consumer stands twice in the rings, or a ring is empty")
        priorities = [priority for priority, _ in self._rings or ()]
        if priorities != sorted(set(priorities), reverse=True):
            problems.append(f"rings in the order {priorities}")
        for state in states:
            if state.unacked != counted.get(id(state), 0):
                problems.append(
                    f"{state.consumer.tag}: {state.unacked} unacked counted, {counted.get(id(state), 0)} there"
                )
            is_ringing = any(state is member for member in ringing)
            if (
                state.ringing != is_ringing
                or (is_ringing and state.left)
                or (state.room and not is_ringing and state.consumer.shared is None)
            ):
                problems.append(f"{state.consumer.tag} has room for {state.room}, and stands in its ring: {is_ringing}")
        if self.active is not None and not any(self.active is state for state in states):
            problems.append("the active consumer is gone")
        if self._single_active and states and self.active is None:
            problems.append("consumers and none of them active")
        if problems:
            raise RuntimeError("; ".join(problems))
