"""A damaged entry of a quorum queue's log: what it costs is itself, and what may be back is said.

Every byte of an entry is changed in turn, in a write-ahead log and in a segment; a queue with a consumer that has half
of the messages, settles every third and is gone, then another one that settles the first that it gets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from quorum_commands import generate
from quorum_tools import OPENING, QuorumNode
from test_quorum_salvage import CONSUMER, ORDERS, PUBLISHER, checkout, enqueue, message, noop, records, settle, usr

from queue_index.quorum.config import read_config
from queue_index.quorum.log import LogEntry
from queue_index.quorum.replay import replay
from storage.erlang_terms import Atom, Term
from storage.errors import DataError
from storage.memory import MemoryFileSystem

TAG = (b"tag", CONSUMER)
SETTLED = (0, 3, 6, 9, 12, 15, 18)


def plain(settled: Sequence[int] = SETTLED, last: Sequence[bytes] = ()) -> list[bytes]:
    """24 messages, a consumer for twenty at a time, and its settles; what it holds at the end is out."""
    entries = [OPENING, noop(), usr((Atom("register_enqueuer"), PUBLISHER)), checkout(20)]
    entries += [enqueue(number + 1, b"body %d" % number) for number in range(24)]
    entries += [settle(number) for number in settled]
    return [*entries, *last]


FIRST_MESSAGE, FIRST_SETTLE = 4, 28


class Seen(NamedTuple):
    messages: list[int]
    """Indexes of those that can be read."""
    said: str


def seen(entries: Sequence[bytes], where: str, changed: int | None = None, at: int = 0) -> Seen:
    """What is left of a queue with that log, the byte ``at`` of the entry ``changed`` being another one."""
    node = QuorumNode(MemoryFileSystem(), "node")
    directory = node.queue(b"/", b"orders", ORDERS)
    if where == "segment":
        path = node.segment(ORDERS, 1, [(index, 1, entry) for index, entry in enumerate(entries)], room=64)
    else:
        path = node.wal(1, records(ORDERS, entries))
    if changed is not None:
        offset = next(
            one.offset for one in node.log(ORDERS).entries(-1) if isinstance(one, LogEntry) and one.index == changed
        )
        data = bytearray(node.files.open_read(path).pread(1 << 20, 0))
        data[offset + at] ^= 1 << at % 8
        node.write(path.removeprefix("node/"), bytes(data))
    log = node.log(ORDERS)
    replayed = replay(log, read_config(node.files, directory))
    replayed.machine.check_invariants()
    found = []
    for queued in replayed.machine.ready():
        try:
            found.append(log.read(queued.index).index)
        except DataError:
            continue
    return Seen(found, " ".join(problem.detail for problem in (*replayed.missing, *replayed.problems)))


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_any_changed_byte_of_a_message_costs_that_message_alone(where: str) -> None:
    entries = plain()
    sound = seen(entries, where).messages
    for index in (FIRST_MESSAGE + 5,):
        for at in range(len(entries[index])):
            found = seen(entries, where, index, at)
            assert sorted(found.messages) == sorted(set(sound) - {index}), at
            assert f"entry {index}: " in found.said, at


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_what_a_damaged_settle_settled_may_be_back_and_is_named(where: str) -> None:
    entries = plain()
    sound = set(seen(entries, where).messages)
    index = FIRST_SETTLE + 2
    for at in range(len(entries[index])):
        found = seen(entries, where, index, at)
        assert set(found.messages) >= sound, at
        assert len(found.messages) <= len(sound) + 1, at
        assert "what it settled may be back" in found.said, at
    assert "message 10" in found.said  # FIRST_MESSAGE + SETTLED[2]


def test_what_a_damaged_settle_names_is_not_delivered_again_before_the_end() -> None:
    """Else each message behind it would go to the next consumer under another number."""
    other = usr((Atom("checkout"), (b"second", CONSUMER), (Atom("auto"), 4, Atom("simple_prefetch")), {}))
    last = [usr((Atom("checkout"), TAG, Atom("cancel"), {})), other, usr((Atom("settle"), (b"second", CONSUMER), [1]))]
    entries = plain((0, 1), last)
    sound = set(seen(entries, "wal").messages)
    found = seen(entries, "wal", FIRST_SETTLE, len(entries[FIRST_SETTLE]) - 1)
    assert set(found.messages) == {*sound, FIRST_MESSAGE}


def test_a_later_settle_of_a_doubtful_message_is_believed() -> None:
    entries = plain((*SETTLED, SETTLED[1]))
    found = seen(entries, "wal", FIRST_SETTLE + 1, len(entries[FIRST_SETTLE + 1]) - 1)
    assert found.messages == seen(entries, "wal").messages


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_a_damaged_consumer_or_opening_loses_nothing(where: str) -> None:
    entries = plain()
    sound = set(seen(entries, where).messages)
    settled = len(SETTLED)
    for index in (1, 2, 3):
        for at in range(len(entries[index])):
            found = seen(entries, where, index, at)
            assert set(found.messages) >= sound, (index, at)
            assert len(found.messages) <= len(sound) + (settled if index == 3 else 0), (index, at)
            assert f"entry {index}: " in found.said, (index, at)


def test_settings_of_a_damaged_entry_do_not_count() -> None:
    config: Term = {Atom("max_length"): 1, Atom("overflow_strategy"): Atom("drop_head"), Atom("dead_letter_handler"): 0}
    entries = plain((), [usr((Atom("update_config"), config))])
    sound = [*range(FIRST_MESSAGE, FIRST_SETTLE)]
    assert sorted(seen(entries, "segment", FIRST_SETTLE, len(entries[FIRST_SETTLE]) - 1).messages) == sound


def test_a_message_whose_way_back_is_damaged_is_read_where_it_was() -> None:
    back = usr((Atom("requeue"), TAG, 0, FIRST_MESSAGE, 6, message(b"body 0")))
    entries = plain((), [back])
    for at in range(len(back) - 8, len(back)):
        found = seen(entries, "segment", FIRST_SETTLE, at)
        assert sorted(found.messages) == [*range(FIRST_MESSAGE, FIRST_SETTLE)]


def test_an_entry_whose_place_holds_something_else_is_taken_for_a_message() -> None:
    """One delivery too many leaves settled messages over; one too few would take sound ones."""
    entries = plain()
    sound = seen(entries, "segment").messages
    node = QuorumNode(MemoryFileSystem(), "node")
    directory = node.queue(b"/", b"orders", ORDERS)
    path = node.segment(ORDERS, 1, [(index, 1, entry) for index, entry in enumerate(entries)], room=64)
    data = bytearray(node.files.open_read(path).pread(1 << 20, 0))
    place = data.index(entries[FIRST_MESSAGE + 5])
    size = len(entries[FIRST_MESSAGE + 5])
    data[place : place + size] = bytes(size)
    node.write(path.removeprefix("node/"), bytes(data))
    replayed = replay(node.log(ORDERS), read_config(node.files, directory))
    left = {queued.index for queued in replayed.machine.ready()}
    assert left == {*sound, FIRST_MESSAGE + 5}


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_entry_leaves_a_random_historys_machine_sound(seed: int) -> None:
    chance = random.Random(seed)
    entries = [OPENING, *(entry for _, entry in generate(300 + seed, 60).entries)]
    for _ in range(12):
        index = chance.randrange(1, len(entries))
        seen(entries, "segment", index, chance.randrange(len(entries[index])))
