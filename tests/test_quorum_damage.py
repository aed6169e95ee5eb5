"""A damaged entry of a quorum queue's log: it costs only itself, and a message that may be back is reported.

Every byte of an entry is changed in turn (in a quick run every sixth), in a write-ahead log and in a segment; a queue
with a consumer that has half of the messages, settles every third and is gone, then another one that settles the first
that it gets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli_tools import warren
from tests.support.effort import every
from tests.support.quorum_commands import generate
from tests.support.quorum_tools import (
    CONSUMER,
    OPENING,
    ORDERS,
    PUBLISHER,
    QuorumNode,
    checkout,
    enqueue,
    message,
    noop,
    records,
    settle,
    usr,
)
from warren.salvage.quorum.fifo.commands import Decoded
from warren.salvage.quorum.fifo.damaged_entries import UNKNOWN
from warren.salvage.quorum.fifo.decoding import EntryDecoder
from warren.salvage.quorum.fifo.replay import replay
from warren.salvage.quorum.ra.config import read_config
from warren.salvage.quorum.ra.entry_runs import LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import DataError
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem

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
    """Indexes of the readable ones."""
    said: str


def seen(entries: Sequence[bytes], where: str, changed: int | None = None, at: int = 0, bit: int | None = None) -> Seen:
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
        data[offset + at] ^= 1 << (at % 8 if bit is None else bit)
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
        for at in range(0, len(entries[index]), every(6)):
            found = seen(entries, where, index, at)
            assert sorted(found.messages) == sorted(set(sound) - {index}), at
            assert f"entry {index}: " in found.said, at


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_what_a_damaged_settle_settled_may_be_back_and_is_named(where: str) -> None:
    entries = plain()
    sound = set(seen(entries, where).messages)
    index = FIRST_SETTLE + 2
    for at in range(0, len(entries[index]), every(6)):
        found = seen(entries, where, index, at)
        assert set(found.messages) >= sound, at
        assert len(found.messages) <= len(sound) + 1, at
        assert "what it settled may be back" in found.said, at
    assert "message 10" in found.said  # FIRST_MESSAGE + SETTLED[2]


def test_what_a_damaged_settle_names_is_not_delivered_again_before_the_end() -> None:
    """Otherwise each message after it would go to the next consumer under another number."""
    other = usr((Atom("checkout"), (b"second", CONSUMER), (Atom("auto"), 4, Atom("simple_prefetch")), {}))
    last = [usr((Atom("checkout"), TAG, Atom("cancel"), {})), other, usr((Atom("settle"), (b"second", CONSUMER), [1]))]
    entries = plain((0, 1), last)
    sound = set(seen(entries, "wal").messages)
    found = seen(entries, "wal", FIRST_SETTLE, len(entries[FIRST_SETTLE]) - 1)
    assert set(found.messages) == {*sound, FIRST_MESSAGE}


def test_a_later_settle_of_a_doubtful_message_is_believed() -> None:
    entries = plain((*SETTLED, SETTLED[1]))
    found = seen(entries, "wal", FIRST_SETTLE + 1, len(entries[FIRST_SETTLE + 1]) - 1)
    assert sorted(found.messages) == sorted(seen(entries, "wal").messages)


@pytest.mark.parametrize("where", ["wal", "segment"])
def test_a_damaged_consumer_or_opening_loses_nothing(where: str) -> None:
    entries = plain()
    sound = set(seen(entries, where).messages)
    settled = len(SETTLED)
    for index in (1, 2, 3):
        for at in range(0, len(entries[index]), every(6)):
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


def test_an_entry_whose_place_holds_something_else_is_taken_for_a_message_and_said_to_be_unknown() -> None:
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
    assert [problem.detail.partition("; ")[2] for problem in replayed.missing] == [UNKNOWN]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_entry_leaves_a_random_historys_machine_sound(seed: int) -> None:
    chance = random.Random(seed)
    entries = [OPENING, *(entry for _, entry in generate(300 + seed, 60).entries)]
    for _ in range(12):
        index = chance.randrange(1, len(entries))
        seen(entries, "segment", index, chance.randrange(len(entries[index])))


@pytest.mark.parametrize("first", [3, FIRST_MESSAGE, FIRST_SETTLE])
def test_the_first_entry_of_a_write_ahead_log_with_nothing_known_before_it_costs_itself(first: int) -> None:
    """A consumer's start, a message, a settle: the next record says which entry it was."""
    entries = plain()
    sound = set(replayed_over(entries, first).messages)
    for at in range(0, len(entries[first]), every(6)):
        found = replayed_over(entries, first, at)
        assert set(found.messages) >= sound - {first}, at
        assert len(set(found.messages) - sound) <= (len(SETTLED) if first == 3 else 1), at
        assert f"entry {first}: " in found.said, at


def replayed_over(entries: Sequence[bytes], first: int, changed: int | None = None) -> Seen:
    """What is left where a segment has the entries before ``first`` and a write-ahead log the others."""
    node = QuorumNode(MemoryFileSystem(), "node")
    directory = node.queue(b"/", b"orders", ORDERS)
    node.segment(ORDERS, 1, [(index, 1, entry) for index, entry in enumerate(entries[:first])], room=64)
    path = node.wal(2, records(ORDERS, entries)[first:])
    if changed is not None:
        data = bytearray(node.files.read(path))
        data[data.index(entries[first]) + changed] ^= 1 << changed % 8
        node.write(path.removeprefix("node/"), bytes(data))
    log = node.log(ORDERS)
    replayed = replay(log, read_config(node.files, directory))
    said = " ".join(problem.detail for problem in (*replayed.missing, *replayed.problems))
    found = [queued.index for queued in replayed.machine.ready()]
    return Seen([index for index in found if is_readable(log, index)], said)


def is_readable(log: QuorumLog, index: int) -> bool:
    try:
        log.read(index)
    except DataError:
        return False
    return True


@pytest.mark.slow
def test_any_changed_byte_of_a_records_head_costs_that_record_at_most() -> None:
    """No checksum covers its id and its length: the directories give the name, and the next record the length."""
    entries, others = plain(), plain((0, 1))
    other = b"OTHERS"
    ours, theirs = records(ORDERS, entries), records(other, others)
    mixed = [record for pair in zip(ours, theirs, strict=False) for record in pair] + ours[len(theirs) :]
    node = QuorumNode(MemoryFileSystem(), "node")
    directories = {uid: node.queue(b"/", uid.lower(), uid) for uid in (ORDERS, other)}
    path = node.wal(1, mixed)
    whole = node.files.read(path)

    def left() -> dict[bytes, set[int]]:
        machines = {
            uid: replay(node.log(uid), read_config(node.files, directories[uid])).machine for uid in directories
        }
        return {
            uid: {queued.index for queued in machine.ready() if is_readable(node.log(uid), queued.index)}
            for uid, machine in machines.items()
        }

    sound = left()
    starts = [whole.index(record.entry) for record in (ours[0], ours[3], theirs[3], ours[9], theirs[9])]
    for start in starts:
        head = 27 + (2 + len(other) if start == starts[0] else 0)
        for at in range(start - head, start, every(6)):
            data = bytearray(whole)
            data[at] ^= 1 << at % 7
            node.write("00000001.wal", bytes(data))
            found = left()
            assert sum(len(sound[uid] - found[uid]) for uid in sound) <= 1, (start, at - start)
            assert any(problem.severity == "damage" for problem in node.scan().problems), (start, at - start)


@pytest.mark.parametrize("kind", ["settle", "return"])
def test_a_delivery_that_a_later_command_names_is_not_a_damaged_commands(kind: str) -> None:
    """Five single gets; the damaged command says that of another one, which a sound one settles later."""

    def get(number: int) -> bytes:
        meta: Term = (Atom("dequeue"), Atom("unsettled"))
        return usr((Atom("checkout"), (b"%d" % number, CONSUMER), meta, {}))

    gets = [get(number) for number in range(1, 6)]
    named = [usr((Atom("settle"), (b"%d" % number, CONSUMER), [0])) for number in range(2, 6)]
    damaged = usr((Atom(kind), (b"1", CONSUMER), [0]))
    entries = [
        OPENING,
        noop(),
        *(enqueue(number + 1, b"body %d" % number) for number in range(8)),
        *gets,
        damaged,
        *named,
    ]
    sound, index = seen(entries, "wal").messages, entries.index(damaged)
    at = damaged.index(b"1", damaged.index(kind.encode()))
    found = seen(entries, "wal", index, at, bit=1)  # "1" becomes "3"
    assert set(found.messages) >= set(sound)
    assert set(found.messages) - set(sound) <= {2}, "only what the damaged command itself named may be back"


def test_damaged_settles_read_the_log_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40
    node = QuorumNode(MemoryFileSystem(), "node")
    directory = node.queue(b"/", b"orders", ORDERS)
    entries = [OPENING, noop(), checkout(2 * count), *(enqueue(number + 1, b"") for number in range(2 * count))]
    entries += [settle(number) for number in range(2 * count)]
    path = node.wal(1, records(ORDERS, entries))
    places = [entry for entry in node.log(ORDERS).entries() if isinstance(entry, LogEntry)]
    data = bytearray(node.files.read(path))
    for entry in places[-2 * count :: 2]:
        data[entry.offset + len(entry.data) - 1] ^= 1
    node.write("00000001.wal", bytes(data))

    decoded: list[bytes] = []
    decode = EntryDecoder.decode

    def counted(self: EntryDecoder, data: bytes) -> Decoded:
        decoded.append(data)
        return decode(self, data)

    monkeypatch.setattr(EntryDecoder, "decode", counted)
    replayed = replay(node.log(ORDERS), read_config(node.files, directory))
    assert len(replayed.missing) == count
    assert len(decoded) < 2 * len(entries), "once by the replay, once ahead of it"


def test_the_last_record_of_a_log_with_a_wrong_checksum_is_told(tmp_path: Path) -> None:
    """It is dropped, as the broker does; the export says so."""
    node = QuorumNode(RealFileSystem(), str(tmp_path / "quorum" / "rabbit@localhost"))
    node.queue(b"/", b"orders", ORDERS)
    path = Path(node.wal(1, records(ORDERS, plain()), zeros=1000))
    assert warren("export", tmp_path).exit_code == 0
    data = bytearray(path.read_bytes())
    data[-1010] ^= 1
    path.write_bytes(bytes(data))
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert "the last record's checksum is wrong" in result.stderr
    assert "may be back" in result.stderr
    assert len(result.stdout.splitlines()) == 24 - len(SETTLED) + 1
