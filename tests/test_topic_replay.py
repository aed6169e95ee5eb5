"""The golden scenarios' puts, made once more through a whole store: the same bytes in every file.

Dispatching, flushing and restarts come at other moments than they did then; they must not show. Index files have names
of their own.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.rocketmq_golden import SCENARIOS, Json, directory, manifest, records, settings, unpacked
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log import Batch, CommitLog, MessageIllegalError
from warren.msg_store.commit_log.commit_log_format import Host
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import TopicSettings

NOBODY = Host.parse("10.0.0.1:1")


def bodies_of(scenario: str) -> dict[int, bytes]:
    """By physical offset; the manifest leaves the long ones out."""
    log = CommitLog.load(RealFileSystem(), directory(scenario) + "/commitlog", settings(scenario), writable=False)
    return {
        line["physicalOffset"]: log.record(line["physicalOffset"]).body
        for line in records(scenario)
        if not line.get("blank")
    }


def batch_of(lines: list[Json], bodies: dict[int, bytes]) -> Batch:
    first = lines[0]
    return Batch(
        topic=first["topic"],
        queue_id=first["queueId"],
        bodies=[bodies[line["physicalOffset"]] for line in lines],
        properties=[line["propertiesString"].encode() for line in lines],
        born_timestamp=first["bornTimestamp"],
        born_host=Host.parse(first["bornHost"]),
        store_host=Host.parse(first["storeHost"]),
        sys_flag=first["sysFlag"],
        flag=[line["flag"] for line in lines],
        reconsume_times=first["reconsumeTimes"],
        prepared_transaction_offset=first["preparedTransactionOffset"],
    )


def recordless(put: Json, limits: TopicSettings) -> Batch:
    """A put that left no record: of it only topic, queue and size are known."""
    is_refused = put["putMessageStatus"] != "PUT_OK"
    visibly = len(put["topic"]) > 127 or put["bodyLength"] >= limits.max_message_size
    properties = bytes(32768) if is_refused and not visibly else b""  # nothing else can have been wrong with it
    return Batch(
        topic=put["topic"],
        queue_id=put["queueId"],
        bodies=[bytes(put["bodyLength"])],
        properties=properties,
        born_timestamp=0,
        born_host=NOBODY,
        store_host=NOBODY,
    )


def put_again(store: TopicStore, put: Json, lines: list[Json], bodies: dict[int, bytes]) -> None:
    if put["putMessageStatus"] != "PUT_OK":
        with pytest.raises(MessageIllegalError):
            store.append(recordless(put, store.settings), put.get("storeTimestamp", 0))
        return
    batch = batch_of(lines, bodies) if lines else recordless(put, store.settings)
    done = store.append(batch, put["storeTimestamp"])
    assert (done.status, done.queue_offset) == (put["appendStatus"], put["logicsOffset"])
    assert done.physical_offsets.tolist() == [line["physicalOffset"] for line in lines]
    assert not lines or int(done.sizes.sum()) == put["wroteBytes"]


def replay(scenario: str, place: Path, between: Callable[[TopicStore, Callable[[], TopicStore]], TopicStore]) -> None:
    limits = attrs.evolve(settings(scenario), rebuild_after_crash=True)
    names = (f"2099{number:013d}" for number in itertools.count())

    def load() -> TopicStore:
        store = load_store(RealFileSystem(), str(place), limits, new_index_name=lambda: next(names))
        store.start()
        return store

    bodies = bodies_of(scenario)
    lines = [line for line in records(scenario) if not line.get("blank")]
    store, at = load(), 0
    for put in manifest(scenario)["puts"]:
        count = put["msgNum"] if put.get("appendStatus") == "PUT_OK" else 0
        put_again(store, put, lines[at : at + count], bodies)
        at += count
        store = between(store, load)
    assert at == len(lines)
    store.close()
    assert not (place / "abort").exists()


def compare(scenario: str, place: Path) -> None:
    golden = unpacked(scenario) / "store"
    for part in ("commitlog", "consumequeue"):
        theirs = {path.relative_to(golden) for path in (golden / part).rglob("*") if path.is_file()}
        ours = {path.relative_to(place) for path in (place / part).rglob("*") if path.is_file()}
        assert ours <= theirs
        # A running store makes the next file of the CommitLog ahead of need, and a crash leaves it.
        assert not any(any((golden / path).read_bytes()) for path in theirs - ours)
        for path in ours:
            assert (place / path).read_bytes() == (golden / path).read_bytes(), path
    theirs_in_order = sorted((golden / "index").iterdir())
    ours_in_order = sorted((place / "index").iterdir())
    assert len(ours_in_order) == len(theirs_in_order)
    for one, other in zip(ours_in_order, theirs_in_order, strict=True):
        assert has_same_bytes(one, other), other.name


def has_same_bytes(one: Path, other: Path) -> bool:
    """Of sparse files only what is not a hole in both is read."""
    ranges = {*data_ranges(one), *data_ranges(other)}
    with one.open("rb") as first, other.open("rb") as second:
        return one.stat().st_size == other.stat().st_size and all(
            os.pread(first.fileno(), stop - start, start) == os.pread(second.fileno(), stop - start, start)
            for start, stop in ranges
        )


def data_ranges(path: Path) -> Iterator[tuple[int, int]]:
    with path.open("rb") as file:
        stop, size = 0, path.stat().st_size
        while stop < size:
            try:
                start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield from ((at, min(at + (1 << 24), stop)) for at in range(start, stop, 1 << 24))


def dispatched_at_once(store: TopicStore, _: Any) -> TopicStore:
    store.dispatch()
    return store


def dispatched_at_the_end(store: TopicStore, _: Any) -> TopicStore:
    return store


def restarted_now_and_then(seed: int, how: str) -> Callable[[TopicStore, Callable[[], TopicStore]], TopicStore]:
    rng = random.Random(seed)

    def between(store: TopicStore, load: Callable[[], TopicStore]) -> TopicStore:
        chance = rng.random()
        if chance < 0.3:
            store.dispatch()
        elif chance < 0.4:
            store.flush_queues()
        elif chance < 0.5:
            store.flush_index()
        elif chance < 0.55:
            store.flush_commit_log()
        elif chance < 0.6:
            if how == "stop":
                store.close()
            else:
                store.abandon()
            return load()
        return store

    return between


@pytest.mark.slow
@pytest.mark.parametrize("between", [dispatched_at_once, dispatched_at_the_end])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_puts_write_the_same_bytes(scenario: str, between: Any, tmp_path: Path) -> None:
    replay(scenario, tmp_path, between)
    compare(scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "default-index"])
def test_restarts_between_the_puts_do_not_show(scenario: str, how: str, tmp_path: Path) -> None:
    replay(scenario, tmp_path, restarted_now_and_then(11, how))
    compare(scenario, tmp_path)
