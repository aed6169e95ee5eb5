"""KeyTable and UniqueKeys by themselves: the table against a dict, and which positions of a queue have a message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.engines.key_table import (
    BOUND,
    IN_RAM,
    ROW,
    SAFE,
    KeyTable,
    TakenKey,
    digest_of,
    key_of,
    keys_in,
    lasting,
    packed,
    rows_of,
    unpacked,
)
from warren.actors.engines.unique_keys import LOG_KIND, UniqueKeys
from warren.storage.errors import DataError
from warren.storage.memory import MemoryFileSystem
from warren.storage.record_log import RecordLog

PATH = "/data/unique.log"


def key(name: str, seq_id: int = 1, until_us: int = 0, flags: int = BOUND) -> TakenKey:
    return TakenKey(digest_of(name.encode()), name.encode().rjust(16, b"."), seq_id, until_us, 3, flags)


def test_a_row_is_as_the_diagram_says() -> None:
    one = TakenKey(b"d" * 16, b"m" * 16, 0x0102, 0x0304, 5, BOUND | SAFE)
    row = packed(one)
    assert row == b"d" * 16 + b"m" * 16 + bytes(6) + b"\1\2" + bytes(6) + b"\3\4" + b"\5" + b"\x83"
    assert len(row) == ROW.size == 50
    assert unpacked(row) == one
    assert list(keys_in(rows_of([row, row]))) == [one, one]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=600), st.integers(0, 1 << 32))
def test_a_table_is_a_dict(puts: list[tuple[int, int]], seed: int) -> None:
    """Few places, so that rows follow each other, also past the last place."""
    table, model, rng = KeyTable(), dict[bytes, TakenKey](), random.Random(seed)
    for number, seq_id in puts:
        one = TakenKey(bytes([rng.choice([0, 255])] * 7) + digest_of(b"%d" % number)[7:], b"m" * 16, seq_id, 0, 0, 1)
        if not table.has_room(1):
            if rng.random() < 0.3:
                model = {digest: kept for digest, kept in model.items() if kept.seq_id}
            table.rebuild(rows_of([packed(kept) for kept in model.values()]), rng.randrange(3))
        table.put(packed(one))
        model[one.digest] = one
    table.check_invariants()
    assert {kept.digest: kept for kept in table} == model
    assert len(table) == len(model)
    assert {kept.digest: kept for kept in keys_in(table.rows())} == model
    assert table.get(digest_of(b"another")) is None


def test_what_is_over_is_left_out() -> None:
    some = [key("a"), key("b", until_us=10), key("c", until_us=11)]
    assert list(keys_in(lasting(rows_of(map(packed, some)), 10))) == [some[0], some[2]]


def test_a_key_that_gets_safe_has_a_row_of_its_own_only_for_a_time() -> None:
    table = KeyTable()
    waits, lasts, in_ram = key("w"), key("t", until_us=9, flags=0), key("r", until_us=9, flags=IN_RAM)
    for one in (waits, lasts, in_ram):
        table.put(packed(one))
    assert table.note_safe(waits.digest, waits.msg_id) is None
    assert table.note_safe(lasts.digest, b"another".rjust(16)) is None
    for one in (lasts, in_ram):
        row = table.note_safe(one.digest, one.msg_id)
        assert row is not None
        assert unpacked(row) == one._replace(flags=SAFE)
        assert table.note_safe(one.digest, one.msg_id) is None, "said once"
    found = table.get(waits.digest)
    assert found is not None
    assert found.safe


@pytest.mark.parametrize(
    ("value", "found"),
    [("a", b"ta"), (b"a", b"ta"), ("\udcff", b"t\xff"), (1, b"n1"), (1.5, b"n1.5"), (True, b"nTrue"), ([], None)],
)
def test_values_of_headers_as_keys(value: object, found: bytes | None) -> None:
    assert key_of(value) == found
    assert key_of(None) is None


@pytest.mark.slow
def test_a_million_keys_take_no_more_than_100_bytes_each() -> None:
    table = KeyTable()
    table.rebuild(rows_of(packed(key(f"{number}")) for number in range(100_000)))
    assert table.size_bytes <= 100.1 * len(table)
    while table.has_room(1):
        table.put(packed(key(f"more {len(table)}")))
    assert 66 < table.size_bytes / len(table) < 67


def test_a_log_of_something_else_is_refused() -> None:
    files = MemoryFileSystem(random.Random(1))
    log = RecordLog(files, PATH, LOG_KIND)
    log.append(b"short")
    log.write()
    keys = UniqueKeys(RecordLog(files, PATH, LOG_KIND), lambda _, seq_ids: [None] * len(seq_ids), lambda: 0)
    with pytest.raises(DataError, match=r"unique.log, offset 21: keys of 5 bytes"):
        keys.open()
