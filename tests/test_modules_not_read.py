"""A module that is used for the first time while no descriptor is left, so that Python cannot read it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import pytest

from tests.support.runtime_tools import SMALL, HandNode, bodies, hand_node
from warren.errors import QueueDownError, TopicsDownError, WarrenError

BACK_WITHIN_S = 20
"""More than the waits between the first tries."""


class _Unreadable:
    """A finder of modules that fails where Python would open these."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.asked = 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in self._names:
            self.asked += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)


@contextmanager
def unreadable(*names: str) -> Iterator[_Unreadable]:
    """These modules have not been imported, and cannot be."""
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    finder = _Unreadable(names)
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(before)


def bring_topics_down(hand: HandNode) -> None:
    hand.files.fail("pwrite", "/data/topics/commitlog/*", times=1000)
    for _ in range(20):
        with pytest.raises(WarrenError):
            hand.node.topic("t").append(b"2").wait()
        hand.run()
    with pytest.raises(TopicsDownError):
        hand.node.topic("t").append(b"2")


def test_topics_that_go_down_while_no_module_can_be_read_come_up_again() -> None:
    """What keeps them down and tries them again is itself a module that is first used then."""
    hand = hand_node(sync="always", **SMALL)
    hand.node.topic("t", queues=1).append(b"1").wait()
    with unreadable("warren.actors.node.failed_parts") as finder:
        bring_topics_down(hand)
        hand.advance(5)
        assert finder.asked > 1
    hand.files.plan.failures.clear()
    hand.advance(BACK_WITHIN_S)
    hand.node.topic("t").append(b"3").wait()
    assert {record.body for record in hand.node.topic("t").read("g")} >= {b"1", b"3"}


def test_a_queue_that_goes_down_for_a_module_that_cannot_be_read_comes_up_again() -> None:
    hand = hand_node(sync="always")
    queue = hand.node.queue("q")
    queue.publish(b"1").wait()
    with unreadable("warren.queue_index.index.scan_losses") as finder:
        hand.files.fail("append", "*/journal.jif")
        with pytest.raises(WarrenError):
            queue.publish(b"2").wait()
        hand.advance(5)
        with pytest.raises(QueueDownError, match="Too many open files"):
            queue.publish(b"3").wait()
        assert finder.asked > 1
    hand.advance(BACK_WITHIN_S)
    queue.publish(b"4").wait()
    assert bodies(queue) in ([b"1", b"4"], [b"1", b"2", b"4"])
    assert hand.node.failed_queues == {}
