"""A disk that fails or is full, at each kind of operation on each kind of file of a node with something of everything.

Whatever is struck, and for however long: nothing that was confirmed is lost, now or when the power goes; what cannot
serve says why; nothing restarts again and again; and all of it serves again by itself when the cause is gone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

import warren
from tests.support.disk_fault_tools import (
    BACK_WITHIN_S,
    SMALL,
    EverythingAtWork,
    FaultAt,
    ReadOnly,
    counted_events,
    kind_of_file,
)
from tests.support.effort import EFFORT, new_seed, times
from tests.support.runtime_tools import DATA, HandNode, bodies, hand_node
from tests.support.tried import Count, Tried
from warren.actors.clock import HandClock
from warren.storage.errors import DiskFullError, StorageError, WarrenError
from warren.storage.memory import MemoryFileSystem

FOR_EVER = 1_000_000
FULL_DISK_STRIKES = frozenset({"append", "pwrite", "truncate", "create", "rename", "make_directory"})
"""What a full disk refuses; it deletes, and it syncs what was written."""


@attrs.frozen
class Fault:
    """What is struck: the ``skip``-th operation of a kind from now, and the ``times`` - 1 after it."""

    kind: str
    file: str
    error: type[StorageError]
    skip: int
    times: int


def scene_at_work(seed: int) -> EverythingAtWork:
    clock = HandClock()
    files = MemoryFileSystem(random.Random(seed), now_ms=lambda: clock.wall_us() // 1000)
    work = EverythingAtWork(hand_node(files, seed=seed, clock=clock, **SMALL))
    work.round()
    work.round()
    return work


def operations() -> Counter[tuple[str, str]]:
    """What two rounds of everything do, by kind of operation and of file."""
    work = scene_at_work(0)
    before = work.scene.files.operations
    work.round()
    work.round()
    work.scene.advance(70)
    done = list(work.scene.files.plan.log)[before - work.scene.files.operations :]
    assert not work.ledger.refusals
    work.check_serves("without a fault")
    work.settle()
    work.check_holds("without a fault")
    work.scene.kill()
    return Counter((kind, kind_of_file(path)) for kind, path in done)


def all_faults() -> Iterator[Fault]:
    for (kind, file), count in sorted(operations().items()):
        for skip in sorted({0, count // 2, count - 1}):
            for often in (1, 3, FOR_EVER):
                yield Fault(kind, file, StorageError, skip, often)
                if kind in FULL_DISK_STRIKES:
                    yield Fault(kind, file, DiskFullError, skip, often)
    for kind in ("pread", "read"):
        for file in READ_FILES:
            for skip in (0, 3):
                yield Fault(kind, file, StorageError, skip, 3)
                yield Fault(kind, file, StorageError, skip, FOR_EVER)


READ_FILES = (
    f"{DATA}/msg_stores/vhosts/#/msg_store_persistent/#.rdq",
    f"{DATA}/msg_stores/vhosts/#/queues/#/#.idx",
    f"{DATA}/topics/commitlog/#",
    f"{DATA}/topics/consumequeue/topic/#/#",
    f"{DATA}/topics/index/#",
    f"{DATA}/warren.delayed/#/#.delayed",
    f"{DATA}/warren.queues/#/#/returned.log",
)


def strike(fault: Fault, seed: int) -> None:
    where = f"{fault} seed={seed}"
    work = scene_at_work(seed)
    failure = FaultAt(kind=fault.kind, path_pattern=fault.file, error=fault.error, skip=fault.skip, times=fault.times)
    scene = work.scene
    scene.files.plan.failures.append(failure)
    with counted_events() as events:
        work.round()
        work.round()
        scene.advance(70)
        scene.files.plan.failures.clear()
        scene.advance(BACK_WITHIN_S)
        check_calm(fault, events, where)
        work.check_serves(where)
        work.settle()
        work.check_holds(where)
    again = EverythingAtWork(
        hand_node(scene.lose_power(random.Random(seed)), seed=seed + 1, clock=scene.clock, **SMALL),
        work.ledger,
        work.number,
    )
    again.settle()
    again.check_holds(f"{where}, after a power loss")
    again.check_serves(f"{where}, after a power loss")
    again.scene.kill()


def check_calm(fault: Fault, events: Counter[str], where: str) -> None:
    """No storm: a full disk stops nothing, each part restarts a few times at most and then waits, and whatever logged
    that it is down logs that it is up."""
    queues = 12
    restarted = {name: events[name] for name in ("topics_reopened", "vhost_reopened", "delayed_restarted")}
    assert max(restarted.values()) <= 15, f"{where}: {restarted}"
    assert events["queue_restarted"] <= 6 * queues, f"{where}: {events}"
    for part in ("topics", "vhost", "queue", "delayed"):
        assert events[f"{part}_down"] == events[f"{part}_up"], f"{where}: {events}"
    if fault.error is DiskFullError:
        stopped = {name: events[name] for name in ("actor_stopped", "topics_down", "vhost_down") if events[name]}
        assert not stopped or fault.kind == "truncate", f"{where}: a full disk has {stopped}"


@pytest.mark.slow
def test_whatever_fails_on_a_disk_nothing_confirmed_is_lost_and_all_goes_on(tried: Count) -> None:
    """A part of all faults in a full run, all of them at length."""
    faults = list(all_faults())
    seed = 0
    if EFFORT != "nightly":
        faults = faults[:: max(1, len(faults) // times(80))]
    else:
        seed = new_seed()
    for number, fault in enumerate(faults):
        strike(fault, seed + number)
    tried(Tried.DISK_FAULTS, len(faults))


QUICK_FAULTS = {
    "the CommitLog's fsync": Fault("sync", f"{DATA}/topics/commitlog/#", StorageError, 2, 1),
    "an fsync of a journal": Fault("sync", f"{DATA}/msg_stores/vhosts/#/queues/#/journal.jif", StorageError, 4, 3),
    "what groups have read": Fault(
        "create", f"{DATA}/topics/config/consumerOffset.json.tmp", DiskFullError, 0, FOR_EVER
    ),
    "what came back": Fault("sync_directory", f"{DATA}/warren.queues/#/#", StorageError, 0, 1),
    "delayed messages": Fault("append", f"{DATA}/warren.delayed/#/#.delayed", StorageError, 0, FOR_EVER),
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=[pytest.mark.slow] if number else []) for number, name in enumerate(QUICK_FAULTS)],
)
def test_a_fault_that_lasts_or_passes(fault: str, tried: Count) -> None:
    strike(QUICK_FAULTS[fault], 1)
    tried(Tried.DISK_FAULTS, 1)


@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_file_system_that_is_read_only_for_a_while_is_read_and_written_again(seconds: float, tried: Count) -> None:
    scene, work = everything()
    queue, topic = scene.node.queue("q"), scene.node.topic("topic")
    reader = topic.reader("stays")
    before = bodies(queue)
    failure = ReadOnly(error=StorageError)
    with counted_events() as events:
        scene.files.plan.failures.append(failure)
        assert reader.read(3), "what is there is read"
        work.round()
        scene.advance(seconds)
        confirmed = {place: set(fates.made) for place, fates in work.ledger.places.items()}
        work.round()
        assert {place: fates.made for place, fates in work.ledger.places.items()} == confirmed, "nothing is called safe"
        stats = scene.node.stats()
        assert stats["topics"]["down"] is not None or stats["down_vhosts"] or scene.node.failed_queues
        scene.files.plan.failures.clear()
        scene.advance(BACK_WITHIN_S)
    for part in ("topics", "vhost", "queue", "delayed"):
        assert events[f"{part}_down"] == events[f"{part}_up"], events
    assert set(before) <= set(bodies(scene.node.queue("q"))) | work.ledger.places["q"].ending
    work.check_serves("afterwards")
    work.settle()
    work.check_holds("afterwards")
    scene.node.close()
    tried(Tried.DISK_FAULTS, 1)


# ── bugs that were found so ─────────────────────────────────────────────────────────────────────────────────────────


def everything(seed: int = 0) -> tuple[HandNode, EverythingAtWork]:
    work = scene_at_work(seed)
    return work.scene, work


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("consumerOffset.json", "create"),
        *(
            pytest.param(name, kind, marks=pytest.mark.slow)
            for name, kind in (
                ("consumerOffset.json", "rename"),
                ("delayOffset.json", "create"),
                ("checkpoint", "create"),
                ("checkpoint", "rename"),
                ("checkpoint", "append"),
            )
        ),
    ],
)
def test_a_full_disk_does_not_open_the_topics_anew_again_and_again(name: str, kind: str) -> None:
    """It did so for each of the small files that are written now and then, and its readers lost their places."""
    scene, work = everything()
    reader = scene.node.topic("topic").reader("stays")
    scene.files.fail(kind, f"{DATA}/topics/*{name}*", error=DiskFullError, times=FOR_EVER)
    with counted_events() as events:
        for _ in range(4):
            work.round()
            assert reader.read(2)
            scene.advance(70)
        assert scene.node.stats()["topics"]["down"] is None
        assert scene.node.stats()["topics"]["no_room"] is not None
        scene.files.plan.failures.clear()
        scene.advance(20)
    assert events["topics_reopened"] == events["actor_stopped"] == 0
    assert (events["disk_full"], events["disk_room"]) == (1, 1), "one line where it begins, one where it ends"
    assert scene.node.stats()["topics"]["no_room"] is None
    assert reader.read(1)
    scene.node.close()


@pytest.mark.slow
def test_topics_that_fail_whenever_they_write_something_down_are_not_opened_every_few_seconds() -> None:
    scene, work = everything()
    scene.files.fail("append", f"{DATA}/topics/config/consumerOffset.json.tmp", times=FOR_EVER)
    with counted_events() as events:
        for _ in range(200):
            for step in (work.topic, work.read):
                try:
                    step()
                except WarrenError as error:
                    work.ledger.refusals.append(error)
            scene.advance(6)
    assert events["topics_reopened"] <= 15
    assert (events["topics_down"], events["topics_up"]) == (1, 0), "it is said once, not with each try"
    assert "down" in str(work.ledger.refusals[-1])
    scene.files.plan.failures.clear()
    with counted_events() as events:
        scene.advance(BACK_WITHIN_S)
    assert events["topics_up"] == 1
    work.check_serves("afterwards")
    work.settle()
    work.check_holds("afterwards")
    scene.node.close()


def test_delayed_messages_that_the_disk_keeps_down_come_by_themselves() -> None:
    """They used to wait until another message was delayed."""
    scene = hand_node(restart_limit=(1, 10.0))
    queue = scene.node.queue("q")
    queue.publish(b"late", delay=100).wait()
    scene.files.fail("append", "*.delayed", times=4)
    for _ in range(2):
        with pytest.raises(WarrenError):
            queue.publish(b"refused", delay=100).wait()
        scene.run()
    assert "failed on purpose" in scene.node.stats()["vhosts"]["/"]["delayed_down"]
    with pytest.raises(warren.errors.DelaysDownError, match="failed on purpose"):
        queue.publish(b"refused", delay=100).wait()
    scene.files.plan.failures.clear()
    scene.advance(110)
    assert bodies(queue) == [b"late"]
    assert scene.node.stats()["vhosts"]["/"]["delayed_down"] is None
    scene.node.close()


def test_a_transaction_that_the_disk_has_no_room_for_is_not_said_to_be_decided_already() -> None:
    scene, _ = everything()
    topic = scene.node.topic("topic")
    scene.files.fail(
        "pwrite", f"{DATA}/topics/consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/*", error=DiskFullError, times=FOR_EVER
    )
    half = topic.prepare(b"half")
    with pytest.raises(DiskFullError, match="before there is room"):
        half.commit().wait()
    scene.files.plan.failures.clear()
    scene.advance(20)
    half.commit().wait()
    scene.advance(5)
    assert b"half" in [record.body for record in topic.read("others")]
    scene.node.close()


@pytest.mark.slow
def test_a_log_of_what_came_back_goes_on_where_its_new_name_could_not_be_synced() -> None:
    """The log took the old file's length for the new one's."""
    scene, work = everything()
    for _ in range(6):
        scene.files.fail("sync_directory", f"{DATA}/warren.queues/*", error=DiskFullError)
        work.round()
    scene.files.plan.failures.clear()
    scene.advance(BACK_WITHIN_S)
    work.check_serves("afterwards")
    work.settle()
    work.check_holds("afterwards")
    scene.node.close()


# ── the clock ───────────────────────────────────────────────────────────────────────────────────────────────────────


def set_wall_clock(scene: HandNode, hours: float) -> None:
    """As an administrator does, or the network's time: timers go on by the monotonic clock."""
    scene.clock._wall_us += round(hours * 3_600_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-20.0, -2.0, 0.25, 20.0])
def test_a_wall_clock_that_is_set_loses_nothing_and_stops_nothing(hours: float, tried: Count) -> None:
    scene, work = everything()
    with counted_events() as events:
        for step in (hours, -hours, hours):
            set_wall_clock(scene, step)
            work.round()
            work.check_serves(f"set by {step} hours")
            assert scene.node.queue("held").publish(b"1").wait() is None
    assert not events["actor_stopped"]
    scene.advance(120)
    work.check_holds("afterwards")
    again = EverythingAtWork(hand_node(scene.kill(), seed=1, clock=scene.clock, **SMALL), work.ledger, work.number)
    again.settle()
    again.check_holds("after a crash")
    again.check_serves("after a crash")
    again.scene.node.close()
    tried(Tried.DISK_FAULTS, 3)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-2.0, 2.0])
def test_messages_expire_come_and_come_back_by_a_wall_clock_that_is_set(hours: float) -> None:
    """A clock that is set back makes them wait longer than it says, and no longer than that."""
    scene = hand_node()
    expiring = scene.node.queue("expiring", arguments={"x-message-ttl": 60_000})
    held = scene.node.queue("held", arguments={"x-consumer-timeout": 60_000})
    delayed = scene.node.queue("delayed")
    expiring.publish(b"e").wait()
    held.publish(b"h").wait()
    taken = held.get()
    assert taken is not None
    delayed.publish(b"d", delay=60).wait()
    set_wall_clock(scene, hours)
    scene.advance(130)
    if hours > 0:
        assert (len(expiring), bodies(delayed), len(held)) == (0, [b"d"], 1)
    scene.advance(2 * 3600 + 60)
    assert (len(expiring), bodies(delayed), len(held)) == (0, [b"d"], 1)
    scene.node.close()
