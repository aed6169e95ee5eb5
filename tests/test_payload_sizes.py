"""A size in a queue's index that is not its message's: counters of bytes stay what they can be, and no message goes."""

from __future__ import annotations

import logging
import struct

import pytest

from tests.support.runtime_tools import BIG, SMALL, HandNode, hand_node, put, queue_path
from tests.support.waiting import events
from warren.storage.memory import MemoryFileSystem

HUGE = 0x7FFFFFFF
COUNT = 40


def filled(body: bytes, *, clean: bool) -> tuple[MemoryFileSystem, list[bytes]]:
    scene = hand_node(**SMALL)
    sent = [body + b"%04d" % number for number in range(COUNT)]
    scene.node.queue("q").publish_many(sent).wait()
    scene.advance(60.0)
    scene.run()
    if not clean:
        return scene.kill(), sent
    scene.node.close()
    return scene.files.after_process_crash(), sent


def resize(files: MemoryFileSystem, old: int, new: int, *, most: int = 1) -> int:
    """Have records of size ``old`` in the index say ``new``; returns how many."""
    changed = 0
    for path in sorted(files.contents()):
        if not path.startswith(queue_path("q")) or not path.endswith((".idx", ".jif")):
            continue
        data = bytearray(files.read(path))
        at = data.find(said := struct.pack(">QL", 0, old))
        while at >= 0 and changed < most:
            struct.pack_into(">L", data, at + 8, new)
            changed += 1
            at = data.find(said, at + 1)
        put(files, path, bytes(data))
    return changed


def counted(scene: HandNode) -> tuple[int, int]:
    told = scene.node.queue("q").stats()
    return told["message_bytes"], told["message_bytes_persistent"]


def left_over(files: MemoryFileSystem, sent: list[bytes]) -> tuple[int, int]:
    """Fetch and ack all, looking at the counters meanwhile; returns what they say at the end."""
    scene = hand_node(files, **SMALL)
    scene.run()
    queue = scene.node.queue("q")
    assert all(0 <= one <= COUNT * 2 * len(sent[0]) for one in counted(scene))
    for body in sent:
        message = queue.get()
        assert message is not None
        assert message.body == body
        queue.ack([message])
        assert all(0 <= one <= COUNT * 2 * len(sent[0]) for one in counted(scene))
    found = counted(scene)
    scene.node.close()
    scene.forget()
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("body", [b"small", BIG], ids=["in the index", "in the store"])
def test_a_huge_size_in_a_segment_makes_no_counter_negative_or_absurd(
    clean: bool, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files, sent = filled(body, clean=clean)
    assert resize(files, len(sent[0]), HUGE) == 1
    assert left_over(files, sent) == (0, 0)
    assert not events(caplog, "queue_restarted")


@pytest.mark.parametrize("by", [-4, 7, 60])
def test_a_size_that_is_not_what_was_counted_is_told_once_and_leaves_no_bytes_behind(
    by: int, caplog: pytest.LogCaptureFixture
) -> None:
    files, sent = filled(b"small", clean=True)
    assert resize(files, len(sent[0]), len(sent[0]) + by, most=3) == 3
    assert left_over(files, sent) == (0, 0)
    assert events(caplog, "queue_sizes_wrong") == [(logging.ERROR, None)]
    assert not events(caplog, "queue_restarted")


def test_sizes_that_are_right_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    for body in (b"small", BIG):
        for clean in (True, False):
            assert left_over(*filled(body, clean=clean)) == (0, 0)
    assert not events(caplog, "queue_sizes_wrong")
