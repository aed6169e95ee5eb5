"""A queue as two dicts, and what it has promised: what tests of a whole vhost hold the engine against.

*Confirmed* is a message whose publish the queue called safe; *gone* one that was removed, and whose removal the queue
has not called safe yet, so that a crash may bring it back. A model learns of a publish or a removal *before* the engine
does: a crash within the call then finds it on the list of what may or may not be.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import attrs

from warren.actors.vhost import Vhost
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.message.msg_ids import numbered_id
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

VHOST = b"/"
PATH = "/data/vhosts/V"
EMBED_BELOW = 100
PROPERTIES = {True: b"\x10\x00\x02", False: b"\x10\x00\x01"}
ENVELOPES = {
    persistent: Envelope(VHOST, b"", (b"q",), encoded, persistent) for persistent, encoded in PROPERTIES.items()
}


def id_of(number: int) -> bytes:
    return numbered_id(number, b"model-id")


def body_of(number: int, size: int) -> bytes:
    """A body that no other number has, as far as ``size`` has room to tell."""
    text = b"<%d>" % number
    return (text * (size // len(text) + 1))[:size]


def open_vhost(
    files: MemoryFileSystem, settings: Settings, *, sync: bool = True, clock: Sequence[int] | None = None
) -> Vhost:
    """The vhost of all these tests; ``clock``: where the time stands, in ns."""
    now = [0] if clock is None else clock
    return Vhost.open(
        files, PATH, VHOST, settings=settings, clock=lambda: now[0], random=random.Random(1).randbytes, sync=sync
    )


def new_files(rng: random.Random | int = 0) -> MemoryFileSystem:
    """A disk on which the directory above the vhosts is there for good."""
    files = MemoryFileSystem(rng)
    files.make_directories("/data")
    files.sync_all()
    return files


@attrs.frozen
class Sent:
    """A message as it was published."""

    seq_id: int
    msg_id: bytes
    body: bytes
    persistent: bool
    expiry_us: int = 0

    @property
    def in_store(self) -> bool:
        """Whether its body belongs in a store."""
        return len(self.body) + len(PROPERTIES[True]) >= EMBED_BELOW


def found_in(queue: VariableQueue) -> list[Sent]:
    """Every message of a queue, in its order."""
    found = []
    for one in queue.browse():
        message = one.message
        assert message.msg_id == one.msg_id
        assert one.properties.size == len(message.body)
        found.append(Sent(one.seq_id, one.msg_id, message.body, message.persistent, one.properties.expiry_us))
    return found


@attrs.define
class QueueModel:
    """One queue. ``taken``: every seq_id that ever left the ready ones; ``lost``: transients that a stop took."""

    durable: bool = True
    deliver_with_publish: bool = False
    ready: dict[int, Sent] = attrs.Factory(dict)
    pending: dict[int, Sent] = attrs.Factory(dict)
    confirmed: set[int] = attrs.Factory(set)
    gone: dict[int, Sent] = attrs.Factory(dict)
    taken: set[int] = attrs.Factory(set)
    delivered: set[int] = attrs.Factory(set)
    lost: set[int] = attrs.Factory(set)
    next_seq_id: int = 0
    next_deliver_seq_id: int = 0
    taken_to: int = 0
    """Behind the last message that was taken before it was its turn."""
    forgotten: list[Sent] = attrs.Factory(list)
    """Purged pending acks: all counters keep them."""

    def copy(self) -> QueueModel:
        """One that stays as this is now."""
        return attrs.evolve(
            self,
            ready=dict(self.ready),
            pending=dict(self.pending),
            confirmed=set(self.confirmed),
            gone=dict(self.gone),
            taken=set(self.taken),
            delivered=set(self.delivered),
            lost=set(self.lost),
            forgotten=list(self.forgotten),
        )

    def survives(self, sent: Sent) -> bool:
        return self.durable and sent.persistent

    @property
    def in_order(self) -> list[Sent]:
        """The ready messages, head first."""
        return [self.ready[seq_id] for seq_id in sorted(self.ready)]

    @property
    def everything(self) -> list[Sent]:
        """Ready and pending messages in order."""
        return sorted([*self.ready.values(), *self.pending.values()], key=lambda sent: sent.seq_id)

    # Messages

    def send(
        self, msg_id: bytes, body: bytes, persistent: bool, expiry_us: int = 0, *, delivered: bool = False
    ) -> Sent:
        """A message is about to be published."""
        sent = Sent(self.next_seq_id, msg_id, body, persistent, expiry_us)
        self.ready[sent.seq_id] = sent
        self.next_seq_id += 1
        if delivered:
            self._note_delivered(sent.seq_id)
            self.delivered.add(sent.seq_id)
        return sent

    def deliver(self, sent: Sent, *, pending: bool) -> None:
        """A message went to a consumer."""
        del self.ready[sent.seq_id]
        self._note_delivered(sent.seq_id)
        if pending:
            self.delivered.add(sent.seq_id)
            self.pending[sent.seq_id] = sent
        else:
            self._remove(sent)

    def take(self, sent: Sent, *, pending: bool) -> None:
        """A message went, from wherever it stood."""
        if sent.seq_id > self.next_deliver_seq_id:
            self.taken_to = max(self.taken_to, sent.seq_id + 1)
        self.deliver(sent, pending=pending)

    def may_be_redelivered(self, sent: Sent) -> set[bool]:
        """What the redelivered flag may say if the message is taken now."""
        if sent.seq_id < self.next_deliver_seq_id:
            return {True}
        if sent.seq_id in self.delivered and not self.deliver_with_publish:
            return {True}
        # A load that passes over lost transients moves next_deliver_seq_id on; when it comes, only the queue knows.
        return {True, False} if sent.seq_id in self.taken and self.lost else {False}

    def _note_delivered(self, seq_id: int) -> None:
        self.taken.add(seq_id)
        if seq_id == self.next_deliver_seq_id:
            self.next_deliver_seq_id += 1

    def follow(self, next_deliver_seq_id: int) -> None:
        """Check the queue's own number against the allowed ones and adopt it."""
        while self.next_deliver_seq_id < next_deliver_seq_id:
            assert self.next_deliver_seq_id in self.lost | self.taken
            self.next_deliver_seq_id += 1
        assert self.next_deliver_seq_id == next_deliver_seq_id

    def ack(self, seq_ids: Iterable[int]) -> list[Sent]:
        """Ack the pending ones of ``seq_ids``; call it before the engine does so."""
        acked = [self.pending.pop(seq_id) for seq_id in seq_ids if seq_id in self.pending]
        for sent in acked:
            self._remove(sent)
        return acked

    def forget_pending(self) -> None:
        self.forgotten += self.ack(list(self.pending))

    def requeue(self, seq_ids: Iterable[int]) -> list[Sent]:
        """Requeue the pending ones of ``seq_ids``. Return them in seq_id order."""
        back = sorted(
            (self.pending.pop(seq_id) for seq_id in set(seq_ids) if seq_id in self.pending), key=lambda s: s.seq_id
        )
        self.ready.update((sent.seq_id, sent) for sent in back)
        if self.deliver_with_publish and back and self.next_deliver_seq_id < self.taken_to:
            # The disk does not record which messages before the last one were delivered: from now on all may be.
            self.next_deliver_seq_id = max(self.next_deliver_seq_id, back[-1].seq_id + 1)
        return back

    def _remove(self, sent: Sent) -> None:
        if self.survives(sent):
            self.gone[sent.seq_id] = sent
        self.confirmed.discard(sent.seq_id)

    # Promises

    def safe(self) -> None:
        """Everything until now was called safe."""
        self.confirmed.update(sent.seq_id for sent in self.everything if self.survives(sent))
        self.gone.clear()

    def confirm(self, ranges: Iterable[range]) -> None:
        """The queue called these publishes safe."""
        present = self.ready.keys() | self.pending.keys()
        self.confirmed.update(
            seq_id
            for seq_id in itertools.chain.from_iterable(ranges)
            if seq_id in present and self.survives((self.ready | self.pending)[seq_id])
        )

    def stop_cleanly(self) -> None:
        """The queue was closed and opened again."""
        kept = {sent.seq_id: sent for sent in self.everything if self.survives(sent)}
        self.lost |= (self.ready.keys() | self.pending.keys()) - kept.keys()
        self.ready, self.pending, self.forgotten = kept, {}, []
        if self.deliver_with_publish:
            self.next_deliver_seq_id = max(self.next_deliver_seq_id, self.taken_to)
        self.taken_to = 0
        self.safe()

    def check_promises(self, found: list[Sent]) -> None:
        """``found`` is what a crash left."""
        known = self.gone | {sent.seq_id: sent for sent in self.everything if self.survives(sent)}
        seq_ids = [sent.seq_id for sent in found]
        assert seq_ids == sorted(set(seq_ids)), "in order, and nothing twice"
        for sent in found:
            assert sent == known.get(sent.seq_id), "whole, and never anything that was not published or is surely gone"
        missing = self.confirmed - set(seq_ids)
        assert not missing, f"confirmed and lost: {sorted(missing)}"

    def crash(self, found: list[Sent], next_seq_id: int) -> None:
        """The queue came back with ``found``."""
        self.check_promises(found)
        assert next_seq_id >= max((sent.seq_id + 1 for sent in found), default=0)
        self.ready, self.pending, self.forgotten = {sent.seq_id: sent for sent in found}, {}, []
        self.gone = {n: sent for n, sent in self.gone.items() if n not in self.ready and n < next_seq_id}
        self.confirmed &= self.ready.keys()
        self.lost, self.delivered, self.taken, self.taken_to = set(), set(), set(), 0
        self.next_seq_id = self.next_deliver_seq_id = next_seq_id
