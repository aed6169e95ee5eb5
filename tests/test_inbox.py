"""What waits for an actor: single acks that join the entry at the tail while another thread takes it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from warren.actors.runtime.inbox import Inbox, PendingBatch

WAIT_S = 60


class Overtaken(list[Any]):
    """Items to copy: right after the copy, or right before it, another thread adds one more."""

    def __init__(self, items: list[Any], inbox: Inbox, *, before: bool) -> None:
        super().__init__(items)
        self.answers: list[bool] = []
        self._came = threading.Event()
        self._before = before
        self.thread = threading.Thread(target=lambda: self.answers.append(inbox.note("key", "late")))

    def append(self, item: Any) -> None:
        super().append(item)
        self._came.set()

    def copy(self) -> list[Any]:
        made = list(self)
        self.thread.start()
        assert self._came.wait(WAIT_S)
        return list(self) if self._before else made


class Slow(PendingBatch):
    """An entry that is checked for having been taken just before it is taken."""

    __slots__ = ("seen",)

    def __init__(self, key: object) -> None:
        self.seen = False
        super().__init__(key)

    @property
    def taken(self) -> bool:
        seen, self.seen = self.seen, threading.current_thread() is not threading.main_thread()
        return seen or threading.current_thread() is threading.main_thread()

    @taken.setter
    def taken(self, taken: bool) -> None:
        pass


def inbox_of(*items: str, new: type[PendingBatch] = PendingBatch) -> tuple[Inbox, PendingBatch]:
    inbox = Inbox()
    for item in items:
        entry = inbox.gather("key", item, new, 0)
    return inbox, entry


def test_an_ack_joins_the_entry_at_the_tail() -> None:
    inbox, entry = inbox_of("first")
    assert inbox.note("key", "second")
    assert not inbox.note("another key", "third")
    taken = inbox.take()
    assert taken is entry
    assert entry.items == ["first", "second"]
    assert not inbox.note("key", "fourth")


@pytest.mark.parametrize("before", [True, False], ids=["before the copy", "behind the copy"])
def test_an_ack_that_comes_while_the_entry_is_taken_is_in_it_or_told_that_it_is_not(before: bool) -> None:
    inbox, entry = inbox_of("first", new=Slow)
    entry.items = items = Overtaken(entry.items, inbox, before=before)
    assert inbox._data is not None
    with inbox.lock:
        found = inbox._data.popleft()
        assert isinstance(found, PendingBatch)
        found.take()
    items.thread.join(WAIT_S)
    assert items.answers == [before]
    assert found.items == (["first", "late"] if before else ["first"])
