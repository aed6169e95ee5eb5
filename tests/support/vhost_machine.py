"""Whole vhosts against models of their queues, whatever happens in whatever order, stops and crashes included.

Two durable queues and one that is not, over real file formats in memory, share bodies. Numbers are small, so that every
boundary is crossed.

Fairness. Between two fsyncs a journal gets one write, unless ``write_out`` is called on its own: then two writes
are on their way, and a disk that takes them out of order can leave zeros between records, which the format, without
checksums, cannot always tell from a record. So after a bare ``write_out`` a power loss cuts writes off in their order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import patch

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from warren.queue_index.index import segment_file
from warren.queue_index.index.entries import segment_entries
from warren.queue_index.index.facts import ACKED, PUBLISHED
from warren.queue_index.index.record_format import SEGMENT, parse
from warren.queue_index.queue.body_store import CreditFlow
from warren.queue_index.queue.fetching import MessageProperties
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.faults import FaultRules
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import RABBITMQ_3_10, Settings

DURABLE = (b"a", b"b")
FLEETING = b"c"
NAMES = (*DURABLE, FLEETING)
SMALL: dict[str, Any] = {
    "segment_entry_count": 8,
    "queue_index_max_journal_entries": 30,
    "queue_index_embed_msgs_below": EMBED_BELOW,
    "msg_store_io_batch_size": 3,
    "delta_read_min": 3,
    "msg_store_credit_disc_bound": (6, 2),
    "msg_store_file_size_limit": 2500,
    "rate_calculation_threshold": 20,
}


names = st.sampled_from([*DURABLE, *DURABLE, FLEETING])
sizes = st.sampled_from([10, 10, 0, 11, 96, 97, 100, 300])
expiries = st.sampled_from([0, 0, 1, 2, 3])
seeds = st.integers(min_value=0, max_value=1 << 32)
counts = st.sampled_from([1, 2, 5, 9, 17, 30])
mostly_true = st.sampled_from([True, True, True, False])
rarely = st.sampled_from([False] * 5 + [True])
targets = st.sampled_from([0, 0, 1, 3, 8, 20, None])


def expired_at(now_us: int) -> Callable[[MessageProperties], bool]:
    return lambda properties: 0 < properties.expiry_us <= now_us


def machine_settings(examples: int) -> settings:
    unneeded = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples, stateful_step_count=40, suppress_health_check=unneeded)


class VhostMachine(RuleBasedStateMachine):
    """``models``: what the queues must hold. ``loose``: a journal may have two unsynced writes."""

    profile: ClassVar[Settings]

    def __init__(self) -> None:
        super().__init__()
        self.files: MemoryFileSystem = new_files()
        self.clock = [0]
        self.sent = 0
        self.loose = False
        self.wants_credit = False
        self.models = {name: self.new_model(name) for name in NAMES}

    def new_model(self, name: bytes) -> QueueModel:
        return QueueModel(name in DURABLE, self.profile.deliver_with_publish)

    @initialize(
        sync=mostly_true,
        credit=st.booleans(),
        backlog=st.tuples(counts, counts, counts),
        size=sizes,
        wanted=targets,
        lazy=rarely,
    )
    def begin(
        self, *, sync: bool, credit: bool, backlog: tuple[int, int, int], size: int, wanted: int | None, lazy: bool
    ) -> None:
        self.sync_means_fsync, self.wants_credit = sync, credit
        self.take_up(self.open(self.files))
        for name, count in zip(NAMES, backlog, strict=True):
            self.set_target(name, wanted, 0.0)
            self.set_mode(name, lazy)
            self.publish_many(name, [size] * count, True, 0)
            self.publish_many(name, [10, size] * (count // 2), count % 2 > 0, 2)

    def open(self, files: MemoryFileSystem) -> Vhost:
        return open_vhost(files, self.profile, sync=self.sync_means_fsync, clock=self.clock)

    def take_up(self, vhost: Vhost) -> None:
        self.vhost = vhost
        if left := vhost.queues.pop(FLEETING, None):  # a directory does not say that its queue is not durable
            assert left.delete() == 0
        for name in NAMES:
            queue = vhost.queue(name, durable=name in DURABLE)
            if self.wants_credit:
                self.limit_credit(queue)

    def limit_credit(self, queue: VariableQueue) -> None:
        state = queue.state
        for client in (state.persistent_store, state.transient_store):
            if client is not None:
                client.credit = CreditFlow(*self.profile.msg_store_credit_disc_bound)
        queue._wait_for_grant = lambda: self.settle(queue)

    def settle(self, queue: VariableQueue) -> None:
        state = queue.state
        for client in (state.persistent_store, state.transient_store):
            if client is not None and isinstance(client.credit, CreditFlow):
                client.credit.settle()

    def both(self, name: bytes) -> tuple[VariableQueue, QueueModel]:
        return self.vhost.queues[name], self.models[name]

    def number(self, count: int = 1) -> range:
        self.sent += count
        return range(self.sent - count, self.sent)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names, count=counts, size=sizes, persistent=mostly_true, expiry_us=expiries, delivered=rarely)
    def publish(self, name: bytes, *, count: int, size: int, persistent: bool, expiry_us: int, delivered: bool) -> None:
        queue, model = self.both(name)
        for n in self.number(count):
            sent = model.send(id_of(n), body_of(n, size), persistent, expiry_us, delivered=delivered)
            seq_id = queue.publish(
                ENVELOPES[persistent], sent.msg_id, sent.body, expiry_us=expiry_us, delivered=delivered, confirm=True
            )
            assert seq_id == sent.seq_id

    @rule(
        name=names,
        shape=st.one_of(st.tuples(sizes, counts).map(lambda s: [s[0]] * s[1]), st.lists(sizes, max_size=20)),
        persistent=mostly_true,
        expiry_us=st.one_of(expiries, st.lists(expiries, min_size=30, max_size=30)),
    )
    def publish_many(self, name: bytes, shape: list[int], persistent: bool, expiry_us: int | list[int]) -> None:
        queue, model = self.both(name)
        each = [expiry_us] * len(shape) if isinstance(expiry_us, int) else expiry_us[: len(shape)]
        sent = [
            model.send(id_of(n), body_of(n, size), persistent, expiry)
            for n, size, expiry in zip(self.number(len(shape)), shape, each, strict=True)
        ]
        seq_ids = queue.publish_many(
            ENVELOPES[persistent],
            b"".join(one.msg_id for one in sent),
            [one.body for one in sent],
            expiries_us=expiry_us if isinstance(expiry_us, int) else each,
            confirm=True,
        )
        assert list(seq_ids) == [one.seq_id for one in sent]

    @rule(name=st.sampled_from(DURABLE), parts=st.lists(st.integers(1, 3), max_size=4), size=sizes, dies=rarely)
    def publish_written(self, name: bytes, parts: list[int], size: int, dies: bool) -> None:
        """Messages that are safe before they are in the queue. ``dies``: the process does, in between."""
        queue, model = self.both(name)
        first = model.next_seq_id
        for count in parts:
            sent = [model.send(id_of(n), body_of(n, size), True) for n in self.number(count)]
            ids, bodies = b"".join(one.msg_id for one in sent), [one.body for one in sent]
            if not queue.write_ahead(ENVELOPES[True], ids, bodies):
                assert queue.enter_written(ENVELOPES[True]) == range(first, sent[0].seq_id)
                queue.publish_many(ENVELOPES[True], ids, bodies, confirm=True)
                return
            model.confirm([range(sent[0].seq_id, model.next_seq_id)])
        if dies:
            self.start_after_a_crash(self.files.after_process_crash(), eager=True)
        else:
            assert queue.enter_written(ENVELOPES[True]) == range(first, model.next_seq_id)

    @rule(size=sizes, count=counts, persistent=mostly_true)
    def publish_to_all(self, size: int, count: int, persistent: bool) -> None:
        """What an exchange does: one body, one id, several queues."""
        for n in self.number(count):
            for name in NAMES:
                queue, model = self.both(name)
                sent = model.send(id_of(n), body_of(n, size), persistent)
                queue.publish(ENVELOPES[persistent], sent.msg_id, sent.body, confirm=True)

    @precondition(lambda self: any(not model.ready for model in self.models.values()))
    @rule(name=names, size=sizes, persistent=mostly_true)
    def publish_delivered(self, name: bytes, size: int, persistent: bool) -> None:
        queue, model = self.both(name)
        if model.ready or len(queue):
            return
        (n,) = self.number()
        sent = model.send(id_of(n), body_of(n, size), persistent)
        model.deliver(sent, pending=True)
        seq_id = queue.publish_delivered(ENVELOPES[persistent], sent.msg_id, sent.body, confirm=True)
        assert seq_id == sent.seq_id

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names, count=counts, ack_required=mostly_true)
    def fetch_many(self, name: bytes, count: int, ack_required: bool) -> None:
        queue, model = self.both(name)
        expected = model.in_order[:count]
        flags = [model.may_be_redelivered(sent) for sent in expected]
        fetched = queue.fetch_many(count, ack_required=ack_required)
        self.compare(expected, [part.bodies() for part in fetched], [part.msg_ids for part in fetched])
        assert [seq_id for part in fetched for seq_id in part.seq_ids] == [sent.seq_id for sent in expected]
        redelivered = [part.redelivered for part in fetched for _ in part.seq_ids]
        assert all(flag in may for flag, may in zip(redelivered, flags, strict=True))
        for sent in expected:
            model.deliver(sent, pending=ack_required)

    @rule(name=names, drop=rarely, ack_required=mostly_true)
    def take_one(self, name: bytes, drop: bool, ack_required: bool) -> None:
        queue, model = self.both(name)
        expected = model.in_order[0] if model.ready else None
        if drop:
            found = queue.drop(ack_required=ack_required)
            assert found == (None if expected is None else (expected.seq_id, expected.msg_id))
        else:
            fetched = queue.fetch(ack_required=ack_required)
            assert (fetched is None) == (expected is None)
            if fetched is not None and expected is not None:
                assert [message.body for message in fetched.messages()] == [expected.body]
                assert list(fetched.seq_ids) == [expected.seq_id]
                assert fetched.redelivered in model.may_be_redelivered(expected)
        if expected is not None:
            model.deliver(expected, pending=ack_required)

    @precondition(lambda self: any(model.ready for model in self.models.values()))
    @rule(name=names, seed=seeds, keep=mostly_true)
    def take(self, name: bytes, seed: int, keep: bool) -> None:
        """Some from wherever they stand; with a few that are not there, or are others than the ones that are meant."""
        queue, model = self.both(name)
        rng = random.Random(seed)
        ready = model.in_order
        if ready and rng.randrange(2):
            chosen = rng.sample(ready, rng.randint(1, len(ready)))
        else:
            low = rng.randrange(len(ready) + 1)
            chosen = ready[low : low + rng.randint(1, 20)]
        wanted = {sent.seq_id: sent.msg_id for sent in chosen}
        for seq_id in rng.sample(range(model.next_seq_id + 3), min(3, model.next_seq_id)):
            wanted[seq_id] = bytes(16)
        expected = [sent for sent in ready if wanted.get(sent.seq_id) == sent.msg_id]
        if keep:
            flags = [model.may_be_redelivered(sent) for sent in expected]
            fetched = queue.take(wanted)
            self.compare(expected, [part.bodies() for part in fetched], [part.msg_ids for part in fetched])
            assert [seq_id for part in fetched for seq_id in part.seq_ids] == [sent.seq_id for sent in expected]
            redelivered = [part.redelivered for part in fetched for _ in part.seq_ids]
            assert all(flag in may for flag, may in zip(redelivered, flags, strict=True))
        else:
            removed = queue.remove(wanted)
            assert [n for part in removed for n in part] == [sent.seq_id for sent in expected]
        for sent in expected:
            model.take(sent, pending=keep)

    def compare(self, expected: list[Sent], bodies: list[list[bytes]], msg_ids: list[list[bytes]]) -> None:
        assert [body for part in bodies for body in part] == [sent.body for sent in expected]
        assert [msg_id for part in msg_ids for msg_id in part] == [sent.msg_id for sent in expected]

    @rule(name=names, now_us=st.integers(min_value=0, max_value=3), keep=st.booleans())
    def expire(self, name: bytes, now_us: int, keep: bool) -> None:
        queue, model = self.both(name)
        expired = expired_at(now_us)
        stopper = next(
            (one for one in model.in_order if not expired(MessageProperties(one.expiry_us, len(one.body)))), None
        )
        taken = [one for one in model.in_order if stopper is None or one.seq_id < stopper.seq_id]
        if keep:
            fetched, ended = queue.fetch_while(expired)
            self.compare(taken, [part.bodies() for part in fetched], [part.msg_ids for part in fetched])
        else:
            ended = queue.drop_while(expired)
        assert ended == (None if stopper is None else MessageProperties(stopper.expiry_us, len(stopper.body)))
        for sent in taken:
            model.deliver(sent, pending=keep)

    # ── acks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def choose(self, model: QueueModel, seed: int) -> list[int | range]:
        """Some of the pending ones, as numbers and ranges, with a few that are not pending."""
        rng = random.Random(seed)
        kind = rng.randrange(4)
        pending = sorted(model.pending)
        if kind == 0 or not pending:
            return [range(rng.randrange(model.next_seq_id + 1), model.next_seq_id)]
        chosen = rng.sample(pending, rng.randint(1, len(pending)))
        if kind == 1:
            return [*chosen]
        if kind == 2:
            return [*sorted(chosen)]
        return [range(chosen[0], rng.choice(pending) + 1), chosen[0] - 1 if chosen[0] else 0]

    @rule(name=names, seed=seeds, back=st.booleans())
    def settle_some(self, name: bytes, seed: int, back: bool) -> None:
        queue, model = self.both(name)
        tags = self.choose(model, seed)
        each = [one for tag in tags for one in ([tag] if isinstance(tag, int) else tag)]
        if back:
            requeued = model.requeue(each)
            assert queue.requeue(tags, with_ids=True) == [sent.msg_id for sent in reversed(requeued)]
        else:
            acked = model.ack(each)
            assert queue.ack(tags, with_ids=True) == [sent.msg_id for sent in acked]

    @rule(name=names, seed=seeds)
    def ack_up_to(self, name: bytes, seed: int) -> None:
        queue, model = self.both(name)
        limit = random.Random(seed).randrange(model.next_seq_id + 1)
        acked = model.ack(range(limit + 1))
        assert queue.ack_up_to(limit, with_ids=True) == [sent.msg_id for sent in acked]

    @rule(name=names, what=st.sampled_from(["", "", "", "", "ready", "pending"]))
    def purge(self, name: bytes, what: str) -> None:
        queue, model = self.both(name)
        if what == "pending":
            model.forget_pending()
            queue.purge_acks()
        elif what == "ready":
            ready = model.in_order
            for sent in ready:
                model.deliver(sent, pending=False)
            assert queue.purge() == len(ready)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names, wanted=targets, acks=st.sampled_from([0.0, 50.0]))
    def set_target(self, name: bytes, wanted: int | None, acks: float) -> None:
        queue, _ = self.both(name)
        rates = queue.state.rates
        rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress = 1.0, 0.0, acks, 0.0
        queue.set_ram_duration_target(None if wanted is None else (wanted + 0.5) / rates.total)
        assert queue.state.target_ram_count == wanted

    @rule(name=names, milliseconds=st.integers(min_value=0, max_value=6000), report=st.booleans())
    def let_time_pass(self, name: bytes, milliseconds: int, report: bool) -> None:
        queue, _ = self.both(name)
        self.clock[0] += milliseconds * 1_000_000
        if report:
            duration = queue.ram_duration()
            assert duration is None or duration >= 0
        else:
            queue.state.rates.update(queue.state.clock(), queue.state.settings)

    @rule(name=names)
    def go_on_paging(self, name: bytes) -> None:
        queue, _ = self.both(name)
        queue.resume()
        for _ in range(100):
            self.settle(queue)
            queue.bump()
            if not queue.state.waiting_bump and not queue.state.blocked:
                break
        else:
            raise AssertionError("paging does not come to an end")
        state = queue.state
        if state.target_ram_count == 0 and state.mode == "default":
            assert not state.q1
            assert not state.q4
            assert not state.ram_pending
            if self.profile.page_inside_segments:
                assert state.ram_msg_count <= 1
                assert len(state.q2) + len(state.q3) <= self.profile.msg_store_io_batch_size
            if self.profile.page_embedded_acks:
                assert not state.index_pending

    @rule(name=names, lazy=rarely)
    def set_mode(self, name: bytes, lazy: bool) -> None:
        queue, _ = self.both(name)
        queue.set_mode("lazy" if lazy else "default")

    def only_lost_transients_are_left(self, path: str) -> None:
        """Check an empty queue's segments. As in the original, they are not read on once the last message is loaded."""
        for entry in self.files.list(path):
            if entry.endswith(".idx"):
                columns = parse(SEGMENT, self.files.read(f"{path}/{entry}"))
                entries, _ = segment_entries(columns, 8)
                unacked = (entries.facts & (PUBLISHED | ACKED)) == PUBLISHED
                assert not (unacked & entries.persistent).any()

    # ── disk ────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names, action=st.sampled_from(["flush", "sync one", "write out", "flush store", "compact"]))
    def write(self, name: bytes, action: str) -> None:
        queue, model = self.both(name)
        if action == "flush":
            queue.flush()
            if not queue.recovering:
                model.gone.clear()
                if not model.everything and not model.lost:  # lost ones may stand there until the next start
                    self.only_lost_transients_are_left(queue.state.index.path)
        elif action == "sync one":
            queue.sync()
            if not queue.recovering:
                model.safe()
        elif action == "write out":
            self.loose = True
            queue.write_out()
        elif action == "flush store":
            self.vhost.persistent_store.flush()
        else:
            self.vhost.compact()

    @rule()
    def sync(self) -> None:
        self.vhost.sync()
        self.loose = False
        for name, model in self.models.items():
            if not self.vhost.queues[name].recovering:
                model.safe()

    @precondition(lambda self: self.vhost.persistent_store.needs_compaction())
    @rule(steps=st.integers(min_value=1, max_value=9))
    def compact_a_little(self, steps: int) -> None:
        self.vhost.persistent_store.compact(steps)

    @precondition(lambda self: self.vhost.recovering)
    @rule()
    def recover_step(self) -> None:
        self.vhost.recover_step()

    # ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def stop_and_start(self) -> None:
        self.vhost.close()
        vhost = self.open(self.files)
        assert vhost.persistent_store.clean
        assert not vhost.recovering
        for name, model in self.models.items():
            model.stop_cleanly()
            if name not in vhost.queues:  # nothing was ever written, or it was purged: it starts empty
                assert not model.ready
                self.models[name] = self.new_model(name)
        self.take_up(vhost)
        self.models[FLEETING] = self.new_model(FLEETING)

    @rule(eager=st.booleans(), synced=st.booleans())
    def kill_and_start(self, eager: bool, synced: bool) -> None:
        if synced:
            self.sync()
        self.start_after_a_crash(self.files.after_process_crash(), eager=eager)

    @precondition(lambda self: self.sync_means_fsync)
    @rule(seed=seeds, eager=st.booleans(), synced=st.booleans())
    def lose_power_and_start(self, seed: int, eager: bool, synced: bool) -> None:
        if synced:
            self.sync()
        if self.loose:
            self.files.rules = FaultRules(reordered=False)
        files = self.files.after_power_loss(random.Random(seed))
        files.rules = FaultRules()
        self.start_after_a_crash(files, eager=eager)

    def start_after_a_crash(self, files: MemoryFileSystem, *, eager: bool) -> None:
        """Recover once to see what is there, and once, perhaps step by step, to go on with."""
        probe = self.open(files.after_process_crash())
        self.files = files.after_process_crash()
        vhost = self.open(self.files)
        while probe.recover_step():
            pass
        probe.check_invariants()
        for name in NAMES:
            model, queue = self.models[name], probe.queue(name)
            model.crash(found_in(queue), queue.state.next_seq_id)
            assert vhost.queue(name).state.next_seq_id == queue.state.next_seq_id
        while eager and vhost.recover_step():
            pass
        self.take_up(vhost)
        self.models[FLEETING] = self.new_model(FLEETING)

    # ── what holds at any time ──────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_engine_does_not_contradict_itself(self) -> None:
        self.vhost.check_invariants()

    @invariant()
    def the_queues_count_what_the_models_hold(self) -> None:
        for name in NAMES:
            queue, model = self.both(name)
            model.confirm(queue.drain_confirmed())
            state = queue.state
            model.follow(state.next_deliver_seq_id)
            assert state.next_seq_id == model.next_seq_id
            assert state.pending_ack_count == len(model.pending)
            if queue.recovering:
                assert len(queue) <= len(model.ready)
                assert bool(len(queue)) == bool(model.ready)
                continue
            assert len(queue) == len(model.ready)
            assert state.bytes == sum(len(sent.body) for sent in model.ready.values())
            unacked = [*model.pending.values(), *model.forgotten]
            assert state.unacked_bytes == sum(len(sent.body) for sent in unacked)
            kept = [sent for sent in (*model.ready.values(), *unacked) if model.survives(sent)]
            assert (state.persistent_count, state.persistent_bytes) == (len(kept), sum(len(s.body) for s in kept))

    @invariant()
    def the_stores_hold_what_is_referred_to(self) -> None:
        if self.vhost.recovering:
            return
        stored = [(m.survives(s), s.msg_id) for m in self.models.values() for s in m.everything if s.in_store]
        persistent = [msg_id for survives, msg_id in stored if survives]
        store = self.vhost.persistent_store
        if store.status().counted:
            assert store.status().messages == len(set(persistent))
            assert all(store.reference_count(msg_id) == persistent.count(msg_id) for msg_id in set(persistent))
        transient = {msg_id for survives, msg_id in stored if not survives}
        assert self.vhost.transient_store.status().messages <= len(transient)

    @rule(name=names)
    def look(self, name: bytes) -> None:
        queue, model = self.both(name)
        assert found_in(queue) == model.everything
        assert {one.seq_id for one in queue.browse() if one.unacked} == model.pending.keys()
        read = queue.read_pending(sorted(model.pending))
        assert [seq_id for seq_id, _ in read] == sorted(model.pending)
        assert all(model.pending[seq_id].body in term for seq_id, term in read)


class DefaultProfile(VhostMachine):
    profile = attrs.evolve(Settings(), **SMALL)


class PartsOfSegments(DefaultProfile):
    """As if each segment were too large to be read for one message."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = patch.multiple(segment_file, _SMALL_FILE_BYTES=0, _NEAR_BYTES=16)
        self.patched.start()

    def teardown(self) -> None:
        self.patched.stop()


class RabbitProfile(VhostMachine):
    profile = attrs.evolve(RABBITMQ_3_10, **SMALL, queue_explicit_gc_run_operation_threshold=2, delta_read_max=5)
