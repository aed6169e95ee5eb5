"""A whole vhost, cut off at every single operation on its files; and failed by them, and fed damaged ones.

After each cut the directory is opened as the next process finds it after a kill, and as a machine finds it after a
power loss: what was confirmed is there, what is gone for sure stays away, all is in order and whole
(:meth:`queue_model.QueueModel.check_promises`), and a second recovery finds what the first one found.

Fairness. Power losses here take unsynced writes and names in any order (``reordered``): between two fsyncs a journal
gets one write, so that zeros stand only after its last record. (If only the second of two unsynced writes of a journal
arrives, it can be a record to the format, which has no checksums.) Only damage tests change synced bytes.

A deeper run: ``WARREN_EFFORT=nightly pytest tests/test_crashes.py``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator

import attrs
import pytest

from tests.crash_points.queues import (
    BROKERS,
    LARGE,
    SETTINGS,
    SMALL,
    WORKS,
    A,
    B,
    Life,
    assert_promises_are_kept,
    backlog,
    compaction,
    crash_to_models,
    flushes,
    paging,
    recovered,
    stops,
)
from tests.support.effort import every, times
from tests.support.queue_model import (
    ENVELOPES,
    PATH,
    VHOST,
    QueueModel,
    body_of,
    found_in,
    id_of,
    new_files,
    open_vhost,
)
from warren.actors.vhost import Vhost
from warren.queue_index.index.directory import queue_directory_name
from warren.queue_index.index.entries import journal_entries, no_entries
from warren.queue_index.index.facts import ACKED, DELIVERED, PUBLISHED
from warren.queue_index.index.record_format import JOURNAL, parse
from warren.queue_index.index.segment_file import read_segment
from warren.storage.errors import DataError, DiskFullError, StorageError, WarrenError
from warren.storage.faults import FaultRules, SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

SEEDS = times(1)


@functools.cache
def _after_backlog(settings: Settings) -> tuple[MemoryFileSystem, Life]:
    files = new_files()
    life = Life(files, settings=settings)
    backlog(life)
    return files.after_process_crash(), life


def begin(seed: int, settings: Settings = SETTINGS) -> Life:
    """The backlog, and a process that has taken it up after a kill and recovered it."""
    template, before = _after_backlog(settings)
    files = template.after_process_crash()
    files.rng.seed(seed)
    models, history = copy.deepcopy((before.models, before.history))
    return Life(files, models, settings=settings, sent=before.sent, history=history)


def crashes(
    work: Callable[[Life], None], *, torn: bool, start_too: bool = False, settings: Settings = SETTINGS
) -> Iterator[Life]:
    """``work`` cut off at each of its operations, one after the other; ``start_too``: and at those of the start.

    In a quick run at every twelfth.
    """
    operation = 1 + torn % every(12) - every(12)
    while True:
        operation += every(12)
        life = begin(operation, settings)
        if start_too:
            life.files.crash_at(operation, torn=torn)
        try:
            life.start()
            crash_to_models(life)
            if not start_too:
                life.files.crash_at(operation, torn=torn)
            work(life)
        except SimulatedCrash:
            yield life
        else:
            assert operation > 5, "nothing was cut"
            return


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True], ids=["between", "within"])
@pytest.mark.parametrize("work", WORKS)
def test_a_kill_at_any_operation_breaks_no_promise(work: Callable[[Life], None], torn: bool) -> None:
    for life in crashes(work, torn=torn):
        assert_promises_are_kept(life.files.after_process_crash(), life.models)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_a_power_loss_at_any_operation_breaks_no_promise(work: Callable[[Life], None]) -> None:
    for number, life in enumerate(crashes(work, torn=True)):
        for seed in range(SEEDS):
            assert_promises_are_kept(life.files.after_power_loss(random.Random(number * 1000 + seed)), life.models)


@pytest.mark.parametrize("torn", [False, True], ids=["between", "within"])
def test_a_recovery_cut_at_any_operation_breaks_no_promise(torn: bool) -> None:
    def nothing_more(_: Life) -> None:
        pass

    for number, life in enumerate(crashes(nothing_more, torn=torn, start_too=True)):
        assert_promises_are_kept(life.files.after_process_crash(), life.models)
        assert_promises_are_kept(life.files.after_power_loss(random.Random(number)), life.models)


# ── what a broker goes on from ──────────────────────────────────────────────────────────────────────────────────────


P, D, A_ = PUBLISHED, DELIVERED, ACKED
READ_BY_A_BROKER = {
    # in the journal's file: what the segment's file may say of that position, for RabbitMQ 3.10.8 to start
    P: {0, P},
    P | D: {0, P, P | D},
    D: {P, P | D},
    A_: {0, P | D, P | D | A_},
    D | A_: {0, P, P | D, P | D | A_},
}


def assert_a_broker_goes_on_from(files: MemoryFileSystem) -> None:
    """No queue's files have a pair of facts that a RabbitMQ 3.10.8 fails to put together."""
    for entry in files.list(f"{PATH}/queues"):
        path = f"{PATH}/queues/{entry}"
        journal = f"{path}/journal.jif"
        if not files.exists(journal):
            continue
        found, findings = journal_entries(parse(JOURNAL, files.read(journal)), SETTINGS.segment_entry_count)
        assert not findings
        for number, entries in found.items():
            segment = f"{path}/{number}.idx"
            exists = files.exists(segment)
            of_file = read_segment(files, segment, SETTINGS.segment_entry_count).entries if exists else no_entries(0)
            of_file.reach(len(entries))
            for rel_seq, known in enumerate(entries.facts.tolist()):
                in_file = int(of_file.facts[rel_seq])
                assert not known or in_file in READ_BY_A_BROKER[known], (path, number, rel_seq, known, in_file)


def kills_of_a_start(files: MemoryFileSystem) -> Iterator[MemoryFileSystem]:
    """What a start leaves that is killed before each of its operations, to the end of the scan."""
    for operation in range(1, 100):
        again = files.after_process_crash()
        again.crash_at(operation)
        try:
            vhost = open_vhost(again, SETTINGS)
            while vhost.recover_step():
                pass
        except SimulatedCrash:
            yield again.after_process_crash()
        else:
            return


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_a_kill_at_any_operation_leaves_a_brokers_directory_as_a_broker_can_go_on_from_it(
    work: Callable[[Life], None],
) -> None:
    for number, life in enumerate(crashes(work, torn=False, settings=BROKERS)):
        files = life.files.after_process_crash()
        assert_a_broker_goes_on_from(files)
        if number % 5 == 0:
            for left in kills_of_a_start(files):
                assert_a_broker_goes_on_from(left)


def test_a_flush_killed_behind_one_that_came_between_publish_and_deliver_leaves_what_a_broker_reads() -> None:
    """The deliver is in the journal's file, the ack of it not yet, and the segment gets both."""
    settings = attrs.evolve(BROKERS, queue_explicit_gc_run_operation_threshold=1000)
    life = Life(new_files(), {A: QueueModel()}, settings=settings)
    life.start()
    life.squeeze(A, 0)
    for _ in range(3):  # each publish is flushed before its deliver is written
        life.queue(A).publish(ENVELOPES[True], id_of(life.sent), body_of(life.sent, SMALL))
        life.sent += 1
    life.queue(A).sync_index()
    last = [seq_id for part in life.queue(A).fetch_many(3) for seq_id in part.seq_ids][-1:]
    life.queue(A).ack(last)
    for operation in range(1, 12):
        probe = copy.deepcopy(life)
        probe.files.crash_at(operation)
        with contextlib.suppress(SimulatedCrash):
            probe.queue(A).flush()
        assert_a_broker_goes_on_from(probe.files.after_process_crash())


def test_a_start_killed_behind_a_killed_flush_leaves_what_a_broker_reads() -> None:
    """The first wrote publishes, the second acks what does not survive, which the journal does not say."""
    life = Life(new_files(), {A: QueueModel()}, settings=BROKERS)
    life.start()
    life.queue(A).set_mode("lazy")
    life.publish(A, *[SMALL] * 3, persistent=False)
    life.publish(A, SMALL)
    life.sync()
    for left in kills_of_a_start(kill_in_flush(life, "truncate", "journal.jif")):
        assert_a_broker_goes_on_from(left)


# ── operations that fail ────────────────────────────────────────────────────────────────────────────────────────────


def failures(work: Callable[[Life], None], kind: str) -> Iterator[Life]:
    """``work`` with each of its operations of a kind failing, one after the other; given up after the error.

    In a quick run every sixth.
    """
    skip = -every(6)
    while True:
        skip += every(6)
        life = begin(skip)
        life.start()
        crash_to_models(life)
        life.files.fail(kind, skip=skip)
        try:
            work(life)
        except StorageError:
            life.insist()
            yield life
        else:
            assert life.files.plan.failures[0].times, "an operation failed, and nobody said so"
            return


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "sync", "truncate", "create", "delete", "rename", "sync_directory"])
@pytest.mark.parametrize("work", WORKS)
def test_a_failed_operation_comes_out_and_loses_nothing(work: Callable[[Life], None], kind: str) -> None:
    for number, life in enumerate(failures(work, kind)):
        assert_promises_are_kept(life.files.after_power_loss(random.Random(number)), life.models)
        assert_promises_are_kept(life.files.after_process_crash(), life.models)


@pytest.mark.slow
@pytest.mark.parametrize("work", [flushes, compaction, paging, stops])
def test_a_full_disk_comes_out_and_loses_nothing(work: Callable[[Life], None]) -> None:
    for room in range(0, 4000, 80 * every(4)):
        life = begin(room)
        life.start()
        crash_to_models(life)
        life.files.capacity_bytes = life.files.used_bytes + room
        with contextlib.suppress(DiskFullError):
            work(life)
        if life.vhost is not None:
            life.vhost.abandon()
        with contextlib.suppress(DiskFullError):  # a start may want some room; what it cannot do it says
            recovered(life.files.after_process_crash(), life.models)
        life.files.capacity_bytes = None
        assert_promises_are_kept(life.files.after_process_crash(), life.models)


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


Contents = dict[bytes, list[tuple[bytes, bytes]]]
"""By queue: ids and bodies."""


@functools.cache
def _worn_directory(clean: bool) -> tuple[MemoryFileSystem, Contents, Contents]:
    """A directory with everything in it, all synced; what its queues hold, and all that they ever held."""
    life = begin(1)
    life.start()
    crash_to_models(life)
    flushes(life)
    compaction(life)
    life.publish(A, SMALL, SMALL, LARGE)
    life.sync()
    if clean:
        life.close()
    files = life.files.after_process_crash()
    files.sync_all()
    published = {name: [(sent.msg_id, sent.body) for sent in sents] for name, sents in life.history.items()}
    return files, contents(files.after_process_crash()), published


def contents(files: MemoryFileSystem) -> Contents:
    """Fetch and ack all messages, then stop cleanly."""
    vhost = open_vhost(files, SETTINGS)
    found: Contents = {}
    for name in (A, B):
        queue, found[name] = vhost.queue(name), []
        while fetched := queue.fetch_many(5):
            for part in fetched:
                found[name] += zip(part.msg_ids, part.bodies(), strict=True)
            queue.ack([part.seq_ids for part in fetched])
    vhost.close()
    return found


def place_of(found: tuple[bytes, bytes], messages: list[tuple[bytes, bytes]]) -> int:
    """Where a message stood before the damage; it may differ by a bit."""
    for place, message in enumerate(messages):
        left, right = b"".join(found), b"".join(message)
        if len(left) == len(right) and (int.from_bytes(left) ^ int.from_bytes(right)).bit_count() <= 1:
            return place
    raise AssertionError(f"a message that never was: {found}")


def one_bit_apart(left: bytes, right: bytes) -> bool:
    return (int.from_bytes(left) ^ int.from_bytes(right)).bit_count() == 1


def all_but_one(numbers: list[int]) -> Iterator[list[int]]:
    yield numbers
    for place in range(len(numbers)):
        yield numbers[:place] + numbers[place + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_flipped_bit_comes_out_or_harms_one_message(clean: bool) -> None:
    """Our error, or messages that are right and in order.

    What the formats, which have no checksums, cannot tell: a bit of a body, of the id in an index record (which may be
    another message's then, whose body comes instead), of a position (that one message moves, or that an acked one comes
    back). And after a kill, though not after a clean stop: that something is missing. A damaged record looks like a
    flush's torn end, a damaged id of a stored body like a message whose body was not synced.
    """
    files, before, published = _worn_directory(clean)
    rng = random.Random(clean)
    for path, data in files.contents().items():
        for _ in range(min(len(data), 8) * SEEDS):
            damaged = files.after_process_crash()
            damaged.rules = FaultRules(damage=True)
            damaged.flip_any_bit(path, rng)
            try:
                after = contents(damaged)
            except WarrenError:
                continue
            for name in (A, B):
                places = [place_of(found, published[name]) for found in after[name]]
                twice = [published[name][place][0] for place, count in Counter(places).items() if count > 1]
                gone = [msg_id for msg_id, _ in before[name] if msg_id not in {msg_id for msg_id, _ in after[name]}]
                assert all(any(one_bit_apart(msg_id, missing) for missing in gone) for msg_id in twice)
                assert len(places) - len(set(places)) <= 1
                assert any(left == sorted(left) for left in all_but_one(places))
                assert not clean or len(after[name]) == len(before[name])


# ── what was found once ─────────────────────────────────────────────────────────────────────────────────────────────


def small_life() -> Life:
    """One durable queue in use, in a vhost that is there for good."""
    life = Life(new_files(), {A: QueueModel()})
    life.start()
    return life


def restart(life: Life, files: MemoryFileSystem) -> Vhost:
    """Another process takes the files; nothing is scanned that need not be."""
    life.files = files
    life.start()
    if life.vhost is None:
        raise RuntimeError("not started")
    return life.vhost


def directory_of(life: Life, name: bytes = A) -> str:
    return f"{PATH}/queues/{queue_directory_name(VHOST, name)}"


def test_the_making_of_a_vhost_cut_anywhere_breaks_no_promise() -> None:
    for operation in range(1, 60):
        files = new_files(operation)
        files.crash_at(operation, torn=True)
        with contextlib.suppress(SimulatedCrash):
            Life(files).start()
        life = Life(files.after_process_crash())
        life.start()
        life.publish(A, SMALL, LARGE, also=B)
        life.sync()
        recovered(life.files.after_power_loss(random.Random(operation)), life.models)


def test_positions_of_a_dead_last_segment_are_free_while_the_rest_is_still_scanned() -> None:
    life = small_life()
    life.queue(A).set_mode("lazy")  # so the transient ones get a segment
    life.publish(A, *[SMALL] * 24)
    life.publish(A, *[SMALL] * 4, persistent=False)
    life.flush(A)
    vhost = restart(life, life.files.after_process_crash())
    assert vhost.recovering
    life.models[A].crash(life.models[A].in_order[:24], life.queue(A).state.next_seq_id)
    life.publish(A, *[SMALL] * 4)
    life.sync()
    recovered(life.files.after_process_crash(), life.models)


def test_what_is_published_while_a_torn_journal_is_recovered_survives() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 24)
    life.flush(A)
    life.publish(A, SMALL)
    life.sync()
    files = life.files.after_process_crash()
    journal = files.open_append(f"{directory_of(life)}/journal.jif")
    journal.append(bytes(20))
    vhost = restart(life, files)
    assert vhost.recovering
    life.models[A].crash(life.models[A].in_order, life.queue(A).state.next_seq_id)
    life.publish(A, SMALL)
    life.sync()
    recovered(life.files.after_process_crash(), life.models)


def kill_in_flush(life: Life, kind: str, path_end: str) -> MemoryFileSystem:
    """A process dies in a flush, just before its first operation of a kind on a file."""
    for operation in range(1, 30):
        probe = copy.deepcopy(life)
        start = probe.files.operations
        probe.files.crash_at(operation)
        with contextlib.suppress(SimulatedCrash):
            probe.flush(A)
        done = list(probe.files.plan.log)[start - probe.files.operations :]
        if done[-1][0] == kind and done[-1][1].endswith(path_end):
            return probe.files.after_process_crash()
    raise AssertionError(f"a flush makes no {kind} of {path_end}")


def test_what_a_killed_flush_wrote_is_synced_before_the_journal_is_cut() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 5)
    life.sync()
    files = kill_in_flush(life, "sync", "0.idx")
    assert files.size(f"{directory_of(life)}/0.idx") > files.synced_size(f"{directory_of(life)}/0.idx") == 0
    recovered(files, life.models)
    for seed in range(10):
        recovered(files.after_power_loss(random.Random(seed)), life.models)


def test_what_was_found_after_a_kill_is_safe_after_a_sync() -> None:
    life = small_life()
    life.publish(
        A, *[SMALL] * 5
    )  # still in memory: only the dying flush writes it, and nothing of it is in the journal
    vhost = restart(life, kill_in_flush(life, "sync", "0.idx"))
    assert found_in(vhost.queue(A)) == life.models[A].in_order
    life.sync()
    for seed in range(10):
        recovered(life.files.after_power_loss(random.Random(seed)), life.models)


def test_a_segment_with_zeros_where_a_body_was_gives_way_to_the_journal() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 5)
    life.sync()
    files = kill_in_flush(life, "sync", "0.idx")
    files.open_append(f"{directory_of(life)}/0.idx").pwrite(bytes(100), 120)
    recovered(files, life.models)


def test_a_recovery_that_dies_in_its_flush_behind_a_dead_flush_can_be_repeated() -> None:
    """The first wrote publishes, the second acked what does not survive: the journal still says publish alone."""
    life = small_life()
    life.queue(A).set_mode("lazy")
    life.publish(A, *[SMALL] * 3, persistent=False)
    life.publish(A, SMALL)
    life.sync()
    files = kill_in_flush(life, "truncate", "journal.jif")
    operation = 0
    while operation < 40:
        operation += 1
        attempt = files.after_process_crash()
        attempt.crash_at(operation)
        with contextlib.suppress(SimulatedCrash):
            recovered(attempt, life.models)
        recovered(attempt.after_process_crash(), life.models)


def test_a_purge_that_power_cuts_brings_nothing_back_that_was_surely_acked() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 12)
    life.flush(A)
    life.fetch(A, 6)
    life.ack(A, 6)
    life.sync()
    for operation in range(1, 12):
        probe = copy.deepcopy(life)
        probe.files.crash_at(operation)
        with contextlib.suppress(SimulatedCrash):
            probe.purge(A)
        for seed in range(20):
            recovered(probe.files.after_power_loss(random.Random(seed)), probe.models)


def test_a_directory_whose_making_was_cut_does_not_harm_the_queue_that_gets_it() -> None:
    files = new_files()
    Life(files, {}).start()
    directory = f"{PATH}/queues/{queue_directory_name(VHOST, A)}"
    files.make_directories(directory)
    files.open_append(f"{directory}/.queue_name.new").append(b"VHOST: /\nQUE")
    life = Life(files.after_process_crash(), {A: QueueModel()})
    life.start()
    life.publish(A, SMALL)
    life.sync()
    recovered(life.files.after_process_crash(), life.models)


def test_a_number_that_damage_made_huge_is_no_hang() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 3)
    life.sync()
    files = life.files.after_process_crash()
    files.rules = FaultRules(damage=True)
    files.flip_bit(f"{directory_of(life)}/journal.jif", 1, 3)
    vhost = open_vhost(files, SETTINGS)
    assert [sent.body for sent in found_in(vhost.queue(A))] == [body_of(1, SMALL), body_of(2, SMALL), body_of(0, SMALL)]
    assert sum(part.count for part in vhost.queue(A).fetch_many(5)) == 3


def test_an_ack_that_damage_sent_elsewhere_is_damage_after_a_clean_stop() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 3)
    life.fetch(A, 1)
    life.ack(A, 1)
    life.close()
    life.files.rules = FaultRules(damage=True)
    journal = f"{directory_of(life)}/journal.jif"
    life.files.flip_bit(journal, life.files.size(journal) - 1, 5)
    vhost = open_vhost(life.files, SETTINGS)
    with pytest.raises(DataError, match="unacked"):
        vhost.queue(A)


def test_a_clean_stop_whose_files_lost_a_message_since_is_damage() -> None:
    life = small_life()
    life.publish(A, *[SMALL] * 12)
    life.flush(A)
    life.close()
    life.files.rules = FaultRules(damage=True)
    segment = f"{directory_of(life)}/1.idx"
    life.files.cut(segment, life.files.size(segment) - 3)
    vhost = open_vhost(life.files, SETTINGS)
    with pytest.raises(DataError, match="not there"):
        vhost.queue(A).fetch_many(12)
