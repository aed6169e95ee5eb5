"""Queues of a vhost at work and what they have promised, step by step; tests of crashes run them and check them.

There are publishes, acks, requeues, paging, flushes of journals, ends of segments, compaction of the store, stops and
starts, and processes that die and are followed by others.

Fairness: between two fsyncs a journal gets one write, so that zeros stand only after its last record. (If only the
second of two unsynced writes of a journal arrives, it can be a record to the format, which has no checksums.)
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import attrs

from tests.crash_points.recording import Record, recording
from tests.support.queue_model import (
    EMBED_BELOW,
    ENVELOPES,
    QueueModel,
    Sent,
    body_of,
    found_in,
    id_of,
    new_files,
    open_vhost,
)
from warren.actors.vhost import Vhost
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import NoRoomError, StorageError
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

SETTINGS = Settings(
    segment_entry_count=8,
    queue_index_max_journal_entries=40,
    queue_index_embed_msgs_below=EMBED_BELOW,
    msg_store_io_batch_size=3,
    msg_store_file_size_limit=2000,
)
BROKERS = attrs.evolve(SETTINGS, deliver_with_publish=True)
"""As in a directory that was a broker's."""
A, B = b"a", b"b"
SMALL, LARGE = 10, 300


@attrs.define
class Life:
    """A vhost at work, and what it has promised."""

    files: MemoryFileSystem
    models: dict[bytes, QueueModel] = attrs.Factory(lambda: {A: QueueModel(), B: QueueModel()})
    vhost: Vhost | None = None
    settings: Settings = SETTINGS
    sent: int = 0
    history: dict[bytes, list[Sent]] = attrs.Factory(lambda: defaultdict(list))
    first: dict[bytes, int] = attrs.Factory(dict)
    """The first seq_id that each queue gives since the start."""

    def start(self) -> None:
        self.vhost = open_vhost(self.files, self.settings)
        self.first = {name: self.vhost.queue(name).state.next_seq_id for name in self.models}

    def queue(self, name: bytes) -> VariableQueue:
        if self.vhost is None:
            raise RuntimeError("not started")
        return self.vhost.queue(name)

    def publish(self, name: bytes, *sizes: int, persistent: bool = True, also: bytes | None = None) -> None:
        """One batch; ``also``: the same messages, one by one, to another queue."""
        numbers = range(self.sent, self.sent + len(sizes))
        self.sent += len(sizes)
        bodies = [body_of(n, size) for n, size in zip(numbers, sizes, strict=True)]
        for n, body in zip(numbers, bodies, strict=True):
            self.history[name].append(self.models[name].send(id_of(n), body, persistent))
        ids = b"".join(map(id_of, numbers))
        self.queue(name).publish_many(ENVELOPES[persistent], ids, bodies, confirm=True)
        if also is not None:
            for n, body in zip(numbers, bodies, strict=True):
                self.history[also].append(self.models[also].send(id_of(n), body, persistent))
                self.queue(also).publish(ENVELOPES[persistent], id_of(n), body, confirm=True)

    def fetch(self, name: bytes, count: int, *, ack_required: bool = True) -> None:
        model = self.models[name]
        for sent in model.in_order[:count]:
            model.deliver(sent, pending=ack_required)
        self.queue(name).fetch_many(count, ack_required=ack_required)

    def ack(self, name: bytes, count: int) -> None:
        """The first ``count`` of the pending ones."""
        tags = sorted(self.models[name].pending)[:count]
        self.models[name].ack(tags)
        self.queue(name).ack(tags)

    def ack_but_every_fifth(self, name: bytes) -> None:
        """Acks that leave holes between the messages that stay."""
        model = self.models[name]
        tags = [seq_id for seq_id, sent in sorted(model.pending.items()) if sent.msg_id[-1] % 5]
        model.ack(tags)
        self.queue(name).ack(tags)

    def requeue(self, name: bytes) -> None:
        tags = sorted(self.models[name].pending)
        self.models[name].requeue(tags)
        self.queue(name).requeue(tags)

    def take(self, name: bytes, which: slice) -> None:
        """Some of the ready ones, from wherever they stand."""
        model = self.models[name]
        chosen = model.in_order[which]
        for sent in chosen:
            model.take(sent, pending=True)
        self.queue(name).take({sent.seq_id: sent.msg_id for sent in chosen})

    def remove(self, name: bytes, which: slice) -> None:
        model = self.models[name]
        chosen = model.in_order[which]
        for sent in chosen:
            model.take(sent, pending=False)
        self.queue(name).remove({sent.seq_id: sent.msg_id for sent in chosen})

    def purge(self, name: bytes) -> None:
        model = self.models[name]
        for sent in model.in_order:
            model.deliver(sent, pending=False)
        self.queue(name).purge()

    def sync(self) -> None:
        self.confirm_all()
        for model in self.models.values():
            model.safe()

    def confirm_all(self) -> None:
        """Sync, but rely only on what is confirmed thereby: after a failed fsync, what was found may still go."""
        if self.vhost is not None:
            self.vhost.sync()
        for name, model in self.models.items():
            model.confirm(self.queue(name).drain_confirmed())
            published = {
                one.seq_id for one in model.everything if model.survives(one) and one.seq_id >= self.first[name]
            }
            assert published <= model.confirmed, "a sync confirms all that was published since the start"

    def insist(self) -> None:
        """Sync again after an error, as if nothing had happened: what that confirms is promised too. Then give up."""
        if self.vhost is None:
            return
        with contextlib.suppress(StorageError):
            self.vhost.sync()
        for name, model in self.models.items():
            model.confirm(self.vhost.queues[name].drain_confirmed())
        self.vhost.abandon()

    def flush(self, name: bytes) -> None:
        self.queue(name).flush()
        self.models[name].confirm(self.queue(name).drain_confirmed())
        self.models[name].gone.clear()

    def squeeze(self, name: bytes, target: int) -> None:
        """Page until ``target`` messages are left in RAM."""
        self.queue(name).state.rates.ingress = 1.0
        self.queue(name).set_ram_duration_target(target + 0.5)

    def compact(self) -> None:
        if self.vhost is not None:
            self.vhost.compact()

    def close(self) -> None:
        if self.vhost is not None:
            self.vhost.close()
        for model in self.models.values():
            model.stop_cleanly()


# ── what is cut ─────────────────────────────────────────────────────────────────────────────────────────────────────


def backlog(life: Life) -> None:
    """Two queues that share bodies, over several segments and store files, all of it synced."""
    life.start()
    life.publish(A, *[SMALL] * 12)
    life.publish(A, *[LARGE] * 4, also=B)
    life.publish(B, SMALL, LARGE, 0, LARGE, SMALL)
    life.sync()
    life.fetch(A, 5)
    life.ack(A, 3)
    life.flush(A)
    life.sync()


def flushes(life: Life) -> None:
    """Journals move into segments: new ones, ones that grow, ones that are deleted; what waits in memory goes along."""
    life.publish(A, *[SMALL] * 6)
    life.sync()
    life.fetch(A, 9)
    life.ack(A, 6)
    life.publish(A, LARGE, SMALL)
    life.flush(A)
    life.ack(A, 5)
    life.sync()
    life.publish(B, *[SMALL] * 9, also=A)
    life.flush(B)
    life.flush(A)


def compaction(life: Life) -> None:
    """The store's files fill up, most of it goes, the rest is combined."""
    life.publish(B, *[LARGE] * 18, also=A)
    life.sync()
    for name in (A, B):
        life.fetch(name, 100)
        life.ack_but_every_fifth(name)
    life.sync()
    life.compact()
    life.publish(A, LARGE)
    life.sync()


def paging(life: Life) -> None:
    """Under memory pressure messages go to delta and come back; transient ones are written too, and requeued ones."""
    life.squeeze(A, 1)
    life.publish(A, *[SMALL] * 9, persistent=False)
    life.publish(A, *[LARGE, SMALL] * 8)
    life.sync()
    life.fetch(A, 20)
    life.ack(A, 4)
    life.requeue(A)
    life.fetch(A, 3, ack_required=False)
    life.sync()


def purges(life: Life) -> None:
    """A queue is emptied, which deletes its directory, and filled again under the same name."""
    life.fetch(A, 2)
    life.ack(A, 4)
    life.sync()
    life.purge(A)
    life.publish(A, SMALL, LARGE)
    life.sync()
    life.purge(B)
    life.sync()
    life.publish(A, SMALL)
    life.sync()


def stops(life: Life) -> None:
    """A clean stop with messages pending and unsynced, and another start."""
    life.publish(A, SMALL, LARGE, SMALL)
    life.publish(B, LARGE, persistent=False)
    life.fetch(B, 2)
    life.close()
    life.start()
    life.fetch(A, 2)
    life.ack(A, 1)
    life.sync()
    life.close()


def mending(life: Life) -> None:
    """Messages leave from the middle, of RAM and of delta: removed, taken and acked, taken and given back."""
    life.publish(A, *[SMALL, LARGE] * 4, SMALL, SMALL)
    life.sync()
    life.remove(A, slice(1, None, 5))
    life.squeeze(A, 0)
    life.sync()
    life.remove(A, slice(2, 12, 3))
    life.take(A, slice(3, None, 2))
    life.flush(A)
    life.ack(A, 3)
    life.sync()
    life.requeue(A)
    life.take(B, slice(1, 3))
    life.ack(B, 2)
    life.sync()
    life.remove(A, slice(1, None))
    life.flush(A)
    life.sync()


def full_disk(life: Life) -> None:
    """A flush has room for a part, then for nothing; acks wait. Consumed to its end, the queue makes room by itself."""
    life.publish(A, *[SMALL] * 20)
    life.sync()
    life.files.capacity_bytes = life.files.used_bytes + 2000
    with contextlib.suppress(NoRoomError):
        life.flush(A)
    life.fetch(A, 18)
    life.ack(A, 12)
    life.sync()
    life.files.capacity_bytes = life.files.used_bytes
    life.publish(A, SMALL, SMALL)
    with contextlib.suppress(NoRoomError):
        life.sync()
    life.fetch(A, 100)
    life.ack(A, 8)
    with contextlib.suppress(NoRoomError):
        life.sync()
    life.ack(A, 100)
    life.sync()
    life.publish(A, SMALL)
    life.sync()
    life.files.capacity_bytes = None
    life.close()


WORKS = [flushes, compaction, paging, purges, stops, mending, full_disk]


def crash_to_models(life: Life) -> None:
    """Finish the recovery from a kill; the models take over what it found."""
    while life.vhost is not None and life.vhost.recover_step():
        pass
    for name, model in life.models.items():
        model.crash(found_in(life.queue(name)), life.queue(name).state.next_seq_id)


# ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────────


def recovered(files: MemoryFileSystem, models: dict[bytes, QueueModel]) -> Vhost:
    """Open what a crash left, to the end of the scan, and see that every promise is kept."""
    vhost = open_vhost(files, SETTINGS)
    while vhost.recover_step():
        vhost.check_invariants()
    vhost.check_invariants()
    for name, model in models.items():
        model.check_promises(found_in(vhost.queue(name)))
    return vhost


def assert_promises_are_kept(files: MemoryFileSystem, models: dict[bytes, QueueModel]) -> None:
    """Recover, with room on the disk; recover what that left, once killed and once without power; and go on."""
    files.capacity_bytes = None
    vhost = recovered(files, models)
    found = {name: found_in(vhost.queue(name)) for name in models}
    recovered(files.after_power_loss(random.Random(1)), models)
    life = Life(files.after_process_crash(), copy.deepcopy(models))
    life.start()
    crash_to_models(life)
    assert {name: model.in_order for name, model in life.models.items()} == found
    life.sent = 1000
    life.publish(A, SMALL, LARGE, also=B)
    life.confirm_all()
    recovered(life.files.after_power_loss(random.Random(2)), life.models)


Step = Callable[[Life, bytes, random.Random], object]


def _publish(life: Life, name: bytes, rng: random.Random) -> None:
    sizes = rng.choices([SMALL, LARGE, 0, 97, 600], [6, 3, 1, 1, 1], k=rng.choice([1, 1, 2, 5, 9]))
    other = rng.choice([None, None, *life.models])
    life.publish(name, *sizes, persistent=rng.random() < 0.9, also=None if other == name else other)


def _die(life: Life, name: bytes, rng: random.Random) -> None:
    """The process dies between two of its steps, and the next one recovers what it left."""
    life.files = life.files.after_process_crash()
    life.start()
    crash_to_models(life)


def _stop(life: Life, name: bytes, rng: random.Random) -> None:
    life.close()
    life.start()
    for queue, model in life.models.items():
        following = life.queue(queue).state.next_seq_id  # transient messages that went with the stop may free theirs
        assert following >= max(model.ready, default=-1) + 1
        model.next_seq_id = following


STEPS: Final[dict[Step, int]] = {
    _publish: 10,
    lambda life, name, rng: life.fetch(name, rng.randrange(1, 12), ack_required=rng.random() < 0.8): 6,
    lambda life, name, rng: life.ack(name, rng.randrange(1, 12)): 6,
    lambda life, name, rng: life.ack_but_every_fifth(name): 2,
    lambda life, name, rng: life.requeue(name): 2,
    lambda life, name, rng: life.take(name, slice(rng.randrange(3), rng.randrange(3, 9), 2)): 1,
    lambda life, name, rng: life.remove(name, slice(rng.randrange(3), rng.randrange(3, 9), 2)): 1,
    lambda life, name, rng: life.purge(name): 1,
    lambda life, name, rng: life.sync(): 7,
    lambda life, name, rng: life.flush(name): 3,
    lambda life, name, rng: life.squeeze(name, rng.randrange(4)): 2,
    lambda life, name, rng: life.compact(): 2,
    _stop: 2,
    _die: 2,
}


def run(seed: int) -> Record:
    """A vhost from its first moment, with steps that are drawn."""
    rng = random.Random(seed)
    life = Life(new_files())
    files = life.files = recording(life.files, lambda: {name: model.copy() for name, model in life.models.items()})
    life.start()
    _work(life, rng, rng.randrange(10, 25))
    files.record.end()
    return files.record


def run_of_all(seed: int) -> Record:
    """The backlog, and after it all that is done to one, in an order that is drawn."""
    rng = random.Random(seed)
    life = Life(new_files())
    files = life.files = recording(life.files, lambda: {name: model.copy() for name, model in life.models.items()})
    backlog(life)
    for work in rng.sample(WORKS, 2):
        work(life)
        if work in (stops, full_disk):  # they end with a clean stop
            life.start()
    files.record.end()
    return files.record


def go_on(files: MemoryFileSystem, promises: dict[bytes, QueueModel], seed: int, *, power: bool = False) -> Record:
    """A process takes up what a crash left, and works on."""
    rng = random.Random(seed)
    life = Life(files, {name: model.copy() for name, model in promises.items()}, sent=10_000)
    record = recording(files, lambda: {name: model.copy() for name, model in life.models.items()})
    life.files = record
    life.start()
    crash_to_models(life)
    _work(life, rng, rng.randrange(6))
    record.record.end()
    return record.record


def _work(life: Life, rng: random.Random, steps: int) -> None:
    for step in rng.choices(list(STEPS), list(STEPS.values()), k=steps):
        step(life, rng.choice(list(life.models)), rng)


def check(files: MemoryFileSystem, promises: dict[bytes, QueueModel], *, power: bool, deep: bool) -> None:
    """What was confirmed is there, in order and whole, nothing foreign, nothing that is surely gone; twice the same."""
    if deep:
        assert_promises_are_kept(files, promises)
        return
    vhost = recovered(files, promises)
    found = {name: found_in(vhost.queue(name)) for name in promises}
    vhost = recovered(files.after_process_crash(), promises)
    assert {name: found_in(vhost.queue(name)) for name in promises} == found, "a second recovery finds something else"
