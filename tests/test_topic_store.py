"""A topic store as a whole: what the real RocketMQ answered after loading, recovering and starting."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import rocketmq_golden as golden

from actors.engines.topics.topic_store import TopicStore
from storage.errors import DataError

STATES = [
    pytest.param(scenario, state, id=f"{scenario}-{state[0]}")
    for scenario in golden.SCENARIOS
    for state in golden.answers(scenario)
]


def load(scenario: str, part: str, patch: list[golden.Json], override: golden.Json) -> TopicStore:
    names = (f"2099{number:013d}" for number in itertools.count())
    return TopicStore.load(
        golden.overlay(scenario, patch, part),
        golden.directory(scenario, part),
        golden.settings(scenario, override),
        new_index_name=lambda: next(names),
    )


@pytest.mark.parametrize(("scenario", "state"), STATES)
def test_a_store_answers_as_rocketmq_does(scenario: str, state: Any) -> None:
    _, part, patch, override, mode, expected = state
    if not expected["loadOk"]:
        if "loadThrew" in expected:  # a size of 2 GiB takes the real one's memory; here it is a record that is none
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
