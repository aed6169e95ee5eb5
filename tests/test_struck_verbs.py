"""Ctrl-C at every moment of every verb at which Python looks for signals: the program catches it, and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.effort import times
from tests.support.ends import Kept, Program, check_node
from tests.support.ends_of_verbs import VERBS, Scene
from tests.support.runtime_tools import HandNode, forget_actors, hand_node
from tests.support.striking import OURS, struck_at_look
from tests.support.tried import Count, Tried
from warren.storage.memory import MemoryFileSystem

STEP = times(5, quick=7, nightly=2)
"""The distance of the moments that are tried."""
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 16,
    "max_index_num": 200,
}


class HeldProgram(Program):
    """A program whose nodes are in the test's hands, one after the other on one disk."""

    def __init__(self) -> None:
        super().__init__(Path("/data"), 0)
        self.lines: list[str] = []
        self.files: MemoryFileSystem | None = None
        self.hands: list[HandNode] = []

    def tell(self, *words: object) -> None:
        self.lines.append(" ".join(map(str, words)))

    def open(self, **settings: Any) -> warren.Node:
        hand = hand_node(self.files, **SMALL)
        self.files = hand.files
        self.hands.append(hand)
        return hand.node


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def strike(verb: str, number: int) -> bool:
    """Interrupt a verb at its ``number``-th look, go on, end, and see what is there; whether it came so far."""
    p = HeldProgram()
    scene = Scene(p, "v")
    scene.fill()
    struck = struck_at_look(number, OURS, lambda: VERBS[verb](scene))
    if struck and verb == "close, open":
        for hand in p.hands:
            hand.node.close()
        scene = Scene(p, "w")
    scene.taken = []
    for name, use in VERBS.items():
        if name != "close, open":
            use(scene)
    scene.node.close()
    check_node(p.open(), p.lines, Kept.ALL)
    p.hands[-1].node.close()
    for hand in p.hands:
        forget_actors(hand.pool)
    return struck


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's way with one in a __del__
@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_in_a_verb_leaves_the_node_whole(verb: str, tried: Count) -> None:
    moments = range(1, 10_000, STEP)
    struck = next(count for count, number in enumerate(moments) if not strike(verb, number))
    assert struck, "nothing was struck"
    tried(Tried.INTERRUPTS, struck)
