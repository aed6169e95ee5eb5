"""The log reports what a start finds missing: from which queue, how many, where, and whether a crash explains it."""

from __future__ import annotations

import logging

import pytest

from tests.support.runtime_tools import (
    BIG,
    DATA,
    SMALL,
    HandNode,
    bodies,
    hand_node,
    next_of,
    put,
    queue_path,
    store_path,
)
from tests.support.waiting import events
from warren.storage.memory import MemoryFileSystem

EXPLAINED = logging.WARNING
NOT_EXPLAINED = logging.ERROR


def stopped(scene: HandNode, *, clean: bool) -> MemoryFileSystem:
    """The disk that a node leaves."""
    scene.run()
    if not clean:
        return scene.kill()
    scene.node.close()
    return scene.files.after_process_crash()


@pytest.mark.parametrize(("clean", "level"), [(True, NOT_EXPLAINED), (False, EXPLAINED)], ids=["stopped", "killed"])
def test_messages_whose_bodies_the_store_lacks_are_counted_in_the_log(
    clean: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = hand_node()
    for number in range(5):
        scene.node.queue("q").publish(BIG + b"%d" % number).wait()
    files = stopped(scene, clean=clean)
    path = f"{store_path()}/0.rdq"
    data = files.read(path)
    put(files, path, data[: len(data) * 3 // 5 + 100])
    again = hand_node(files)
    again.run()
    assert bodies(again.node.queue("q")) == [BIG + b"%d" % number for number in range(3)]
    assert events(caplog, "queue_messages_lost") == [(level, 2)]
    (record,) = [one for one in caplog.records if getattr(one, "event", None) == "queue_messages_lost"]
    assert (record.vhost, record.queue) == ("/", "q")  # type: ignore[attr-defined]
    assert [getattr(one, "path", None) for one in caplog.records if getattr(one, "event", None) == "vhost_damaged"] == [
        path
    ]
    again.forget()


def test_a_queue_that_was_emptied_has_lost_nothing_with_its_bodies(caplog: pytest.LogCaptureFixture) -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish(BIG).wait()
    queue.ack([next_of(queue)])
    scene.advance(60.0)  # the ack is written
    files = stopped(scene, clean=False)
    put(files, f"{store_path()}/0.rdq", b"")
    again = hand_node(files)
    again.run()
    assert not bodies(again.node.queue("q"))
    assert not events(caplog, "queue_messages_lost")
    again.forget()


def test_what_is_cut_off_behind_zeros_in_an_index_is_told(caplog: pytest.LogCaptureFixture) -> None:
    scene = hand_node()
    for number in range(9):
        scene.node.queue("q").publish(b"message %d" % number).wait()
    scene.advance(60.0)  # the journal goes into a segment
    files = stopped(scene, clean=False)
    (path,) = [one for one in files.contents() if one.startswith(queue_path("q")) and files.size(one) > 500]
    data = files.read(path)
    record_bytes = len(data) // 9
    put(files, path, data[: 4 * record_bytes] + bytes(record_bytes) + data[5 * record_bytes :])
    again = hand_node(files)
    again.run()
    assert bodies(again.node.queue("q")) == [b"message %d" % number for number in range(5, 9)]  # the last stands first
    assert events(caplog, "queue_index_cut") == [(EXPLAINED, None)]
    again.forget()


@pytest.mark.parametrize("end", [".delayed", "definitions.log"])
def test_a_torn_log_of_warrens_own_is_told(end: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    for number in range(3):
        queue.publish(b"late %d" % number, delay=3600.0).wait()
    files = stopped(scene, clean=True)
    (path,) = [one for one in files.contents() if one.endswith(end)]
    put(files, path, files.read(path)[:-5])
    again = hand_node(files)
    again.run()
    assert events(caplog, "log_torn") == [(EXPLAINED, None)]
    (record,) = [one for one in caplog.records if getattr(one, "event", None) == "log_torn"]
    assert record.path == path  # type: ignore[attr-defined]
    again.forget()


@pytest.mark.parametrize("hole", [(0, 3), (4, 6), (7, 10), (9, 10)])
def test_entries_of_a_topic_that_are_gone_after_a_clean_stop_are_built_anew(
    hole: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """A queue used to end at the first invalid entry, and what came after it was lost for good."""
    scene = hand_node(**SMALL)
    topic = scene.node.topic("events", queues=2)
    sent = [b"event %d" % number for number in range(20)]
    for number, body in enumerate(sent):
        topic.append(body, queue=number % 2).wait()
    files = stopped(scene, clean=True)
    path = f"{DATA}/topics/consumequeue/events/0/{0:020d}"
    data = bytearray(files.read(path))
    start, stop = (20 * number for number in hole)
    data[start:stop] = bytes(stop - start)
    put(files, path, bytes(data))
    again = hand_node(files, **SMALL)
    again.run()
    topic = again.node.topic("events", queues=2)
    topic.append(b"goes on", queue=0).wait()
    again.run()
    read = [record.body for record in topic.read("group") if record.queue_id == 0]
    assert read == [*sent[::2], b"goes on"]
    assert events(caplog, "topics_cut") == [(EXPLAINED, None)]
    again.forget()
