"""Ctrl-C at every moment of an opening and of a closing: nothing is left open without an owner, and nothing hangs."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.effort import times
from tests.support.runtime_tools import bodies, forget_actors, hand_node
from tests.support.striking import OURS, struck_at_look
from tests.support.tried import Count, Tried
from warren.errors import DirectoryLockedError
from warren.hosting import open_nodes

STEP = times(5, quick=23, nightly=1)
"""The distance of the moments that are tried."""
PLACES = (*OURS, threading.__file__)
"""Where interrupts strike: a thread that is just starting is a moment of its own."""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def every_moment(work: Callable[[int], bool]) -> int:
    """Call ``work`` with the number of each moment until it says that it was not struck; how many were."""
    struck = next(count for count, number in enumerate(range(1, 10_000, STEP)) if not work(number))
    assert struck > 1, "hardly anything was struck"
    return struck


WAYS: dict[str, dict[str, Any]] = {"alone": {}, "shared": {"share": True}, "no socket": {"attach": False}}


@pytest.mark.parametrize("how", WAYS)
def test_ctrl_c_in_an_opening_leaves_no_lock_no_thread_and_no_socket(tmp_path: Path, how: str, tried: Count) -> None:
    """The node used to stay open until the program's end, and the same program could not open it again."""
    data, ways = tmp_path / "data", WAYS[how]
    with warren.open(data, **ways) as node:
        node.queue("q").publish(b"kept").wait()
    threads = set(threading.enumerate())

    def strike(number: int) -> bool:
        opened: list[warren.Node] = []
        struck = struck_at_look(number, PLACES, lambda: opened.append(warren.open(data, **ways)))
        assert bool(opened) is not struck
        for node in opened:
            node.close()
        assert not [one for one in (data / "warren.lock", data / "warren.sock") if one.exists()]
        assert set(threading.enumerate()) <= threads
        return struck

    tried(Tried.INTERRUPTS, every_moment(strike))
    with warren.open(data, **ways) as node:
        assert bodies(node.queue("q")) == [b"kept"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's way with one in a __del__
def test_ctrl_c_in_close_is_raised_when_the_node_is_closed(tmp_path: Path, tried: Count) -> None:
    """The next ``close()``, which the program's end calls too, used to wait forever for an interrupted one."""
    for how, ways in WAYS.items():
        data = tmp_path / how

        def strike(number: int, data: Path = data, ways: dict[str, Any] = ways) -> bool:
            node = warren.open(data, **ways)
            node.queue("q").publish(b"%d" % number)
            struck = struck_at_look(number, PLACES, node.close)
            assert not (data / "warren.lock").exists()
            node.close()
            return struck

        struck = every_moment(strike)
        with warren.open(data, **ways) as node:
            assert len(bodies(node.queue("q"))) == struck + 1
        tried(Tried.INTERRUPTS, struck)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
def test_a_closing_that_two_interrupts_broke_off_is_gone_on_with(tried: Count) -> None:
    """The first one strikes nothing here: what is struck is what ``close()`` then still does."""

    def strike(number: int) -> bool:
        hand = hand_node()
        hand.node.queue("q").publish(b"x")
        running = hand.node._running
        closing = running._closing
        struck = struck_at_look(number, PLACES, lambda: closing.attempt(running._close))
        hand.node.close()
        again = hand_node(hand.files)
        assert bodies(again.node.queue("q")) == [b"x"]
        again.node.close()
        for one in (hand, again):
            forget_actors(one.pool)
        return struck

    tried(Tried.INTERRUPTS, every_moment(strike))


@pytest.mark.slow
def test_ctrl_c_in_a_guests_opening_leaves_no_thread(tmp_path: Path, tried: Count) -> None:
    """Its host goes on, and lets it in the next time."""
    with warren.open(tmp_path / "data", share=True) as host:
        host.queue("q").publish(b"kept").wait()
        threads = set(threading.enumerate())

        def strike(number: int) -> bool:
            opened: list[warren.Node] = []
            struck = struck_at_look(number, PLACES, lambda: opened.append(warren.open(tmp_path / "data", share=True)))
            assert bool(opened) is not struck
            for node in opened:
                assert node.is_guest
                assert len(node.queue("q")) == 1
                node.close()
            assert set(threading.enumerate()) <= threads
            return struck

        tried(Tried.INTERRUPTS, every_moment(strike))


def test_a_node_that_nobody_has_is_no_garbage_it_stays_open_until_the_program_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    warren.open(data).queue("q").publish(b"kept")
    gc.collect()
    with pytest.raises(DirectoryLockedError):
        warren.open(data)
    [left] = [one for one in open_nodes._TO_CLOSE if one.path == str(data)]
    left.close()  # as the interpreter's exit does
    with warren.open(data) as node:
        assert bodies(node.queue("q")) == [b"kept"]
