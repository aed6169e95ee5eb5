"""Reading many bodies of a store that is not to be touched: each one as reading it alone gives it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.msg_store.rdq.rdq_format import encode_record, path_of
from warren.msg_store.rdq.store_reader import StoreReader
from warren.storage.errors import StorageError, WarrenError
from warren.storage.memory import MemoryFileSystem

DIRECTORY = "/store"


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes([number % 3]) * 8  # some ids end in zeros


def store_of(files: list[list[tuple[int, bytes]]]) -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directories(DIRECTORY)
    for number, records in enumerate(files):
        file = system.open_append(path_of(DIRECTORY, number))
        for name, body in records:
            file.append(encode_record(key(name), body))
        file.close()
    return system


def spoil(system: MemoryFileSystem, number: int, offset: int) -> None:
    file = system.open_append(path_of(DIRECTORY, number))
    file.pwrite(b"\x7f", offset % max(file.size(), 1))
    file.close()


def one_by_one(store: StoreReader, numbers: list[int]) -> list[object]:
    found: list[object] = []
    for number in numbers:
        try:
            found.append(store.read(key(number)))
        except WarrenError as error:
            found.append((type(error), str(error)))
    return found


records = st.tuples(st.integers(0, 12), st.sampled_from([b"a" * 10, b"b" * 10, b"", b"longer"]))


@given(
    st.lists(st.lists(records, max_size=12), min_size=1, max_size=3),
    st.lists(st.integers(0, 14), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), max_size=2),
)
def test_many_are_read_as_one_by_one(
    files: list[list[tuple[int, bytes]]], numbers: list[int], spoilt: list[tuple[int, int]]
) -> None:
    system = store_of(files)
    store = StoreReader.open(system, DIRECTORY)
    for number, offset in spoilt:  # after the scan
        if number < len(files):
            spoil(system, number, offset)
    ids = np.frombuffer(b"".join(map(key, numbers)), "S16")
    expected = one_by_one(store, numbers)
    each = [(type(one), str(one)) if isinstance(one, WarrenError) else one for one in store.read_each(ids)]
    assert each == expected
    assert store.contains_each(ids).tolist() == [store.contains(key(number)) for number in numbers]
    found = store.read_uniform(ids)
    if found is not None:
        assert [row.tobytes() for row in found] == expected
    elif not spoilt:
        assert len({len(one) if isinstance(one, bytes) else None for one in expected} - {None}) != 1 or any(
            not isinstance(one, bytes) for one in expected
        )


def test_bodies_of_one_length_come_as_rows() -> None:
    system = store_of([[(n, b"%04d" % n) for n in range(50)], [(n, b"%04d" % n) for n in range(50, 90)]])
    store = StoreReader.open(system, DIRECTORY)
    numbers = [*range(20, 80), 3]
    found = store.read_uniform(np.frombuffer(b"".join(map(key, numbers)), "S16"))
    assert found is not None
    assert [row.tobytes() for row in found] == [b"%04d" % n for n in numbers]


def test_of_a_store_with_one_file_that_cannot_be_read_the_others_are() -> None:
    system = store_of([[(1, b"one")], [(2, b"two")], [(3, b"three")]])
    system.delete(path_of(DIRECTORY, 1))
    system.make_directories(path_of(DIRECTORY, 1))
    with pytest.raises(StorageError, match=r"1\.rdq"):
        StoreReader.open(system, DIRECTORY)
    refused: dict[str, StorageError] = {}
    store = StoreReader.open(system, DIRECTORY, refused=refused)
    assert list(refused) == [path_of(DIRECTORY, 1)]
    assert [store.contains(key(number)) for number in (1, 2, 3)] == [True, False, True]
    assert [store.read(key(number)) for number in (3, 1)] == [b"three", b"one"]
