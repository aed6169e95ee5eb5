"""Consumers of one queue: which gets the next message, and what each channel has not settled.

A consumer has *room* while fewer messages than its prefetch are unacked with it, and there is room in what it shares
with others, if it does; one that acks nothing, or has no prefetch, always has. Consumers stand in one ring for each
priority. The next message goes to the first one of the highest ring, which then goes to the end of it. One that has no
room when it is its turn leaves its ring, and comes back to the end when an ack makes room; one that has room again
before its turn has kept its place. Consumers that left because what they share was used up come back together, in the
order in which they left, so that none of them gets everything.

*Exclusive*: the only consumer, while it is there. *Single active consumer*: the first one that came gets everything;
when it goes, the next one of the rings does. It does not lose its place because it has no room, nor to one of higher
priority. If it is cancelled with unsettled messages, its *successor* waits until they are settled, or until another
event restarts delivery: messages are requeued, a consumer is added, or a channel closes. So requeued messages are
delivered before those that followed them.

Invariants: a consumer that has room, and shares none, is in its ring; what counts as unacked with a consumer is the
number of its tags.
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
    """What several consumers, of any queues, may have unacked together. Others take and give at the same time."""

    @property
    def room(self) -> int:
        """How many messages more there is room for, at the moment."""

    def take(self, count: int) -> int:
        """Take room for up to ``count`` messages; return how many fit."""

    def give_back(self, count: int) -> None:
        """Return unused room for ``count`` messages."""


@attrs.frozen
class Consumer:
    """One subscription to a queue."""

    channel: str
    tag: str
    """Its name; no other consumer of the queue has it."""
    prefetch: int = 0
    """How many messages may be unacked with it; 0: any number. Means nothing where no ack is required."""
    ack_required: bool = True
    acks_unseen: bool = False
    """It acks whatever it gets as it gets it; so a message may go to it past an empty queue."""
    exclusive: bool = False
    priority: int = 0
    """Lower ones get only what higher ones have no room for."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    shared: Shared | None = attrs.field(default=None, eq=False)
    """Beside its own prefetch, which is not 0 then unless it acks unseen."""
    ack_timeout_ms: int | None = None
    """How long a message may be unacked with it; ``None``: as the queue says."""


@attrs.define(eq=False, repr=False)
class ConsumerState:
    """A consumer, and how many messages are unacked with it."""

    consumer: Consumer
    unacked: int = 0
    ringing: bool = False
    """Whether it stands in its ring."""
    left: int = 0
    """A number that is higher the later it left its ring because what it shares was used up; 0 in all other cases."""
    gone: bool = False

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
    """How often a consumer has left its ring because what it shares was used up."""

    # ── who is there ────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._by_tag) if self._by_tag else 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter([state.consumer for state in self._by_tag.values()] if self._by_tag else [])

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in. Raises :class:`AccessRefusedError` where it, or another one, is exclusive."""
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
        state.gone = True
        if not self._by_tag:
            self._by_tag = self._rings = None
        if state is self.active:
            self.active = self._first_of_rings() if self._single_active else None
            if state.unacked and self._single_active:
                self._predecessor = state
        return state.consumer

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Let a consumer have another prefetch from now on; what is unacked counts. Of one that is gone: nothing."""
        if prefetch < 0:
            raise PreconditionFailedError(f"a prefetch of {prefetch}")
        state = self._by_tag.get(tag) if self._by_tag else None
        if state is None:
            return
        state.consumer, state.left = attrs.evolve(state.consumer, prefetch=prefetch, shared=shared), 0
        if state.room and not state.ringing:
            self._enter_ring(state)

    def resume(self, shared: Shared) -> None:
        """There is room again in what consumers share. If it is used up already, another call will follow."""
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
        """Let a channel go; the tags of its consumers, and what was unacked with it."""
        here = [consumer.tag for consumer in self if consumer.channel == channel]
        for tag in here:
            self.remove(tag)
        tags = self._channels.pop(channel, None) if self._channels else None
        if not self._channels:
            self._channels = None
        if here or tags is not None:
            self.hand_out_anew()
        return here, tags.take_all() if tags is not None else []

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
        """Let the single active consumer wait no more for what its predecessor has unacked."""
        self._predecessor = None

    def round(self) -> tuple[bool, int] | None:
        """Whether several consumers, whose turn it is, want acks, and how many messages they can take; or ``None``."""
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
        each = min([state.room for state in ring], default=0)
        if len(ring) > 1:
            each = min(each, count // len(ring))
            if each > 1 and len({state.consumer.channel for state in ring}) < len(ring):
                each = 1  # a channel has its messages in their order
        if each:
            return list(ring), min(each, count)
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
        """Hand messages to the consumer that :meth:`next` named; the first one's delivery tag, 0 where none counts."""
        consumer, first = state.consumer, 0
        if consumer.ack_required:
            first = self.channel(consumer.channel).give(level, seq_ids, state)
            state.unacked += len(seq_ids)
        self.pass_turn(state)
        return first

    def lone(self, held: int) -> Consumer | None:
        """The only consumer, if it acks, shares nothing, may hold what it has for ever, and has room while it holds
        ``held`` more than are counted."""
        if self._by_tag is None or len(self._by_tag) != 1 or self._predecessor is not None:
            return None
        (state,) = self._by_tag.values()
        consumer = state.consumer
        if not consumer.ack_required or consumer.shared is not None or state.room <= held:
            return None
        return consumer if consumer.ack_timeout_ms is None else None

    def have(self, channel: str, tag: str | None, given: Iterable[tuple[int, range]]) -> None:
        """Note messages of level 0 that a channel has got: their first delivery tags, which were passed by, and
        seq_ids."""
        state = self._by_tag.get(tag) if tag is not None and self._by_tag else None
        runs = [TagRun(first, len(seq_ids), 0, seq_ids.start, state) for first, seq_ids in given]
        if runs:
            self.channel(channel).put_back(runs)
            if state is not None:
                state.unacked += sum(run.count for run in runs)

    def pass_turn(self, state: ConsumerState) -> None:
        """A consumer that stands first in its ring has had its turn."""
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
        """The tags of a channel, which may be new."""
        if self._channels is None:
            self._channels = {}
        tags = self._channels.get(channel)
        if tags is None:
            tags = self._channels[channel] = DeliveryTags()
        return tags

    def settle(self, channel: str, tags: Sequence[range]) -> list[Run]:
        """Take tags off a channel. Raises :class:`~warren.actors.engines.errors.UnknownTagError`."""
        return self._settled(self._known(channel).take(tags))

    def settle_up_to(self, channel: str, tag: int) -> list[Run]:
        """Take everything up to a tag off a channel; 0: everything."""
        return self._settled(self._known(channel).take_up_to(tag))

    def settle_present(self, channel: str, tags: range) -> list[Run]:
        """Take off a channel what is there of consecutive tags."""
        return self._settled(self._known(channel).take_present(tags))

    def check_present(self, channel: str, tag: int) -> None:
        """Raise :class:`~warren.actors.engines.errors.UnknownTagError` for a tag that a channel has not, or no more."""
        self._known(channel).check_present(tag)

    def _known(self, channel: str) -> DeliveryTags[ConsumerState | None]:
        tags = self._channels.get(channel) if self._channels else None
        return DeliveryTags() if tags is None else tags

    def _settled(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            state = run.owner
            if state is not None:
                state.unacked -= run.count
                if not state.ringing and not state.left and not state.gone and state.room:
                    self._enter_ring(state)
        return runs

    @property
    def unacked(self) -> int:
        """Messages that channels have not settled."""
        return sum(map(len, self._channels.values())) if self._channels else 0

    def unacked_by_channel(self) -> dict[str, int]:
        return {channel: len(tags) for channel, tags in self._channels.items()} if self._channels else {}

    def runs(self) -> list[Run]:
        """Everything that is unacked."""
        return [run for tags in self._channels.values() for run in tags.runs] if self._channels else []

    def oldest_runs(self) -> list[Run]:
        """Of each channel the run that it has had for the longest."""
        return [tags.runs[0] for tags in self._channels.values() if tags.runs] if self._channels else []

    def oldest_tag(self, channel: str) -> int | None:
        """Return the first tag that a channel has not settled, ``None`` if all are settled."""
        return self._known(channel).oldest

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where rings, counts or the active consumer contradict one another."""
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
            stands = any(state is one for one in ringing)
            if (
                state.ringing != stands
                or (stands and state.left)
                or (state.room and not stands and state.consumer.shared is None)
            ):
                problems.append(f"{state.consumer.tag} has room for {state.room}, and stands in its ring: {stands}")
        if self.active is not None and not any(self.active is state for state in states):
            problems.append("the active consumer is gone")
        if self._single_active and states and self.active is None:
            problems.append("consumers and none of them active")
        if problems:
            raise RuntimeError("; ".join(problems))
