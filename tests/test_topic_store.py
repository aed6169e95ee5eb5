"""A topic store as a whole: what the real RocketMQ answered after loading, recovering and starting."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from tests.support import rocketmq_golden as golden
from warren.actors.engines.topics.reading import read_records
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import MESSAGE_MAGIC_V2, Host, encode, header_bytes
from warren.storage.errors import DataError
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings

STATES = [
    pytest.param(scenario, state, id=f"{scenario}-{state[0]}")
    for scenario in golden.SCENARIOS
    for state in golden.answers(scenario)
]


def load(scenario: str, part: str, patch: list[golden.Json], override: golden.Json) -> TopicStore:
    names = (f"2099{number:013d}" for number in itertools.count())
    return load_store(
        golden.overlay(scenario, patch, part),
        golden.directory(scenario, part),
        golden.settings(scenario, override),
        new_index_name=lambda: next(names),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "state"), STATES)
def test_a_store_answers_as_rocketmq_does(scenario: str, state: Any) -> None:
    _, part, patch, override, mode, expected = state
    if not expected["loadOk"]:
        if "loadThrew" in expected:  # a size of 2 GiB takes the real one's memory; here the record is invalid
            load(scenario, part, patch, override)
            return
        with pytest.raises(DataError):
            load(scenario, part, patch, override)
        return
    store = load(scenario, part, patch, override)
    assert store.was_clean != expected["abortFilePresentAtLoad"]
    if mode != "load":
        store.start()
    summary = expected["summary"]
    assert store.commit_log.end == summary["maxPhyOffset"]
    assert [(path.rpartition("/")[2]) for path in map(store.commit_log.mapped.path, store.commit_log.mapped.bases)] == [
        file["file"] for file in summary["commitLogFiles"]
    ]
    check_queues(store, expected)
    check_index(store, expected)
    for query in expected["indexQueries"]:
        found = store.query(query["topic"], query["key"], query["maxNum"], query["begin"], query["end"])
        assert found == query["phyOffsets"], query
    for question in expected.get("offsetByTime", []):
        answer = store.offset_by_time(question["topic"], question["queueId"], question["timestamp"])
        assert answer == question["offset"], question
    store.abandon()
    store.files.close()  # type: ignore[attr-defined]


def check_queues(store: TopicStore, expected: golden.Json) -> None:
    seen = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.max_physical_offset)
        for queue in store.queues.values()
    }
    assert seen == {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"], queue["maxPhysicOffset"])
        for queue in expected["consumeQueues"]
    }
    for key, number in expected["summary"]["nextQueueOffsets"].items():
        topic, _, queue_id = key.rpartition("-")
        assert store.next_offset(topic, int(queue_id)) == number
    for queue in expected["consumeQueues"]:
        ours = store.queues[queue["topic"], queue["queueId"]]
        assert [path.rpartition("/")[2] for path in map(ours.mapped.path, ours.mapped.bases)] == [
            file["file"] for file in queue["files"]
        ]
        if "entries" in queue:
            entries = ours.entries(ours.min_offset, ours.max_offset - ours.min_offset)
            assert entries.tolist() == [tuple(entry) for entry in queue["entries"]]


def check_index(store: TopicStore, expected: golden.Json) -> None:
    store.index.flush()
    assert len(store.index.index_files) == len(expected["indexFiles"])
    for ours, theirs in zip(store.index.index_files, expected["indexFiles"], strict=True):
        assert store.files.open_read(ours.path).pread(40, 0).hex() == theirs["headerHex"]


def crashed_store(cut: int) -> tuple[TopicStore, int]:
    """A store of three messages whose last one lost ``cut`` bytes at its end in a power loss; and its start."""
    files = MemoryFileSystem()
    settings = TopicSettings(mapped_file_size_commit_log=4096, max_hash_slot_num=10, max_index_num=50)
    store = load_store(files, "/store", settings, new_index_name=lambda: "2" * 17)
    store.start()
    host = Host(bytes((127, 0, 0, 1)), 0)
    batch = Batch(
        topic="events",
        queue_id=0,
        bodies=[b"one", b"two", b"three"],
        properties=[b"KEYS\x01k1", b"KEYS\x01k2", b"KEYS\x01order-1001 order-1002"],
        born_timestamp=1,
        born_host=host,
        store_host=host,
    )
    appended = store.append(batch, 1000)
    last = int(appended.physical_offsets[-1])
    store.commit_log.mapped.write(store.commit_log.end - cut, bytes(cut))
    store.abandon()
    left = files.after_process_crash()
    return load_store(left, "/store", settings, new_index_name=lambda: "3" * 17), last


@pytest.mark.parametrize("cut", [1, 5, 11, 20, 32, 35, 60, 120])
def test_a_message_without_its_end_is_none_although_its_checksum_is_right(cut: int) -> None:
    store, last = crashed_store(cut)
    store.start()
    assert store.commit_log.end == last
    assert store.queues["events", 0].max_offset == 2
    assert store.query("events", "k2") != []
    assert store.query("events", "order-1001") == []


def test_whole_messages_survive_a_crash() -> None:
    store, last = crashed_store(0)
    store.start()
    assert store.commit_log.end > last
    assert store.queues["events", 0].max_offset == 3
    assert store.query("events", "order-1002") == [last]


def crashed_store_with(**changes: Any) -> TopicStore:
    """The store, with another record of the same size in place of its second."""
    store, _ = crashed_store(0)
    log = store.commit_log
    second = log.record(log.record(0).size)
    log.mapped.write(second.physical_offset, encode(attrs.evolve(second, **changes)))
    return store


def reopened(store: TopicStore) -> TopicStore:
    settings = attrs.evolve(store.settings, rebuild_after_crash=True)
    reopened_store = load_store(store.files, "/store", settings, new_index_name=lambda: "4" * 17)
    reopened_store.start()
    return reopened_store


def test_a_record_of_version_2_is_kept_by_a_recovery() -> None:
    store = reopened(crashed_store_with(magic=MESSAGE_MAGIC_V2, body=b"tw"))
    while store.dispatch():
        pass
    entries = store.queues["events", 0].entries(0, 3)
    assert [record.body for record in read_records(store.commit_log, entries)] == [b"one", b"tw", b"three"]


def test_a_record_of_an_unknown_format_refuses_the_store_before_anything_is_cut() -> None:
    store = crashed_store_with(magic=0xDAA320AF)
    assert_refused_at(store, 107)


def test_adjacent_records_of_unknown_formats_refuse_the_store_before_anything_is_cut() -> None:
    store = crashed_store_with(magic=0xDAA320B0)
    first = store.commit_log.record(0)
    store.commit_log.mapped.write(0, encode(attrs.evolve(first, magic=0xDAA320AF)))
    assert_refused_at(store, 0)


def assert_refused_at(store: TopicStore, offset: int) -> None:
    path = "/store/commitlog/00000000000000000000"
    before = store.files.open_read(path).pread(4096, 0)
    with pytest.raises(DataError, match=r"unknown format \(magic 0xDAA320AF\)") as failure:
        reopened(store)
    assert (failure.value.path, failure.value.offset) == (path, offset)
    assert store.files.open_read(path).pread(4096, 0) == before


def test_a_body_that_is_not_what_was_stored_is_an_error_when_it_is_read() -> None:
    store, last = crashed_store(0)
    store.start()
    entries = store.queues["events", 0].entries(0, 3)
    assert [record.body for record in read_records(store.commit_log, entries)] == [b"one", b"two", b"three"]
    store.commit_log.mapped.write(last + header_bytes(0), b"T")
    with pytest.raises(DataError) as failure:
        list(read_records(store.commit_log, entries))
    assert (failure.value.path, failure.value.offset) == ("/store/commitlog/00000000000000000000", last)
    assert [record.body for record in read_records(store.commit_log, entries[:2])] == [b"one", b"two"]


def test_an_index_that_the_settings_do_not_fit_is_refused_and_stays_as_it_is() -> None:
    store, _ = crashed_store(0)
    store.start()
    store.close()
    files, settings = store.files, store.settings
    before = {path: bytes(data) for path, data in files.contents().items()}  # type: ignore[attr-defined]
    changes: list[dict[str, Any]] = [{"max_hash_slot_num": 11}, {"max_index_num": 51}, {"max_index_num": 49}]
    for wrong in changes:
        with pytest.raises(DataError, match="max_hash_slot_num and max_index_num"):
            load_store(files, "/store", attrs.evolve(settings, **wrong), new_index_name=lambda: "4" * 17)
    assert {path: bytes(data) for path, data in files.contents().items()} == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("lost", ["consumequeue", "index", "consumequeue/events", "both"])
def test_what_was_deleted_of_a_closed_store_is_built_anew(lost: str) -> None:
    store, last = crashed_store(0)
    store.start()
    store.close()
    for name in ("consumequeue", "index") if lost == "both" else (lost,):
        store.files.delete_tree(f"/store/{name}")
    store = load_store(store.files, "/store", store.settings, new_index_name=lambda: "4" * 17)
    store.start()
    while store.dispatch():
        pass
    store.check_invariants()
    assert store.queues["events", 0].max_offset == 3
    assert store.query("events", "order-1002") == [last]
    assert len(store.query("events", "k1")) == 1


def test_a_closed_store_whose_log_was_cut_goes_on_without_what_is_gone() -> None:
    store, last = crashed_store(0)
    store.start()
    store.close()
    handle = store.files.open_append("/store/commitlog/" + "0" * 20)
    handle.pwrite(bytes(4096 - last), last)
    handle.close()
    store = load_store(store.files, "/store", store.settings, new_index_name=lambda: "4" * 17)
    store.start()
    assert store.commit_log.end == last
    assert store.query("events", "order-1001") == []
    host = Host(bytes((127, 0, 0, 1)), 0)
    again = Batch(
        topic="events",
        queue_id=0,
        bodies=[b"again"],
        properties=b"KEYS\x01order-1001",
        born_timestamp=1,
        born_host=host,
        store_host=host,
    )
    assert store.append(again, 2000).queue_offset == 2
    while store.dispatch():
        pass
    store.check_invariants()
    assert store.query("events", "order-1001") == [last]
