"""A file system over one that is never changed, beside one that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.overlay import PAGE_BYTES, OverlayFileSystem

NAMES = ["/d/a", "/d/b", "/d/e/c"]
SIZES = st.one_of(st.integers(0, 40), st.integers(PAGE_BYTES - 3, PAGE_BYTES + 3), st.just(3 * PAGE_BYTES + 5))
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "pwrite", "truncate", "delete", "rename", "delete_tree"]),
        st.sampled_from(NAMES),
        SIZES,
        st.binary(max_size=50),
    ),
    max_size=12,
)


def filled(contents: list[bytes]) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories("/d/e")
    for name, content in zip(NAMES, contents, strict=False):
        handle = files.open_append(name)
        handle.append(content)
        handle.close()
    return files


def do(files: FileSystem, kind: str, path: str, size: int, data: bytes) -> str | None:
    """Do it; whether it was refused."""
    try:
        if kind in ("append", "pwrite", "truncate"):
            files.make_directories(path.rpartition("/")[0])
            handle = files.open_append(path)
            if kind == "append":
                handle.append(data)
            elif kind == "pwrite":
                handle.pwrite(data, size)
            else:
                handle.truncate(size)
            handle.close()
        elif kind == "delete":
            files.delete(path)
        elif kind == "rename":
            files.rename(path, NAMES[0])
        else:
            files.delete_tree("/d/e")
    except StorageError:
        return "refused"
    return None


def everything(files: FileSystem, place: str = "/d") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in files.list(place):
        path = f"{place}/{name}"
        if files.is_directory(path):
            found |= everything(files, path)
        else:
            found[path] = files.read(path)
            assert files.exists(path)
            assert files.size(path) == len(found[path])
    return found


@given(st.lists(st.binary(max_size=2 * PAGE_BYTES), max_size=3), OPERATIONS, st.data())
def test_it_looks_as_if_it_had_been_written_to_and_what_lies_below_is_as_it_was(
    contents: list[bytes], operations: list[tuple[str, str, int, bytes]], data: st.DataObject
) -> None:
    below, model = filled(contents), filled(contents)
    before = everything(below)
    files = OverlayFileSystem(below)
    for operation in operations:
        assert do(files, *operation) == do(model, *operation)
        assert everything(files) == everything(model)
    for path, content in everything(model).items():
        offset = data.draw(st.integers(0, len(content) + 5))
        size = data.draw(st.integers(0, len(content) + 5))
        assert files.open_read(path).pread(size, offset) == content[offset : offset + size]
    assert everything(below) == before
    files.close()


def test_what_was_changed_and_what_was_deleted_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "gone").write_bytes(b"gone")
    (tmp_path / "cut").write_bytes(b"cut off")
    os.utime(tmp_path / "kept", ns=(0, 5_000_000_000))
    files = OverlayFileSystem(RealFileSystem(), now_ms=77)
    files.read(f"{tmp_path}/kept")
    files.delete(f"{tmp_path}/gone")
    files.open_append(f"{tmp_path}/cut").truncate(3)
    files.open_append(f"{tmp_path}/new").append(b"new")
    assert files.deleted == [f"{tmp_path}/gone"]
    assert files.changed == [f"{tmp_path}/cut", f"{tmp_path}/new"]
    assert files.modified_ms(f"{tmp_path}/kept") == 5000
    assert files.modified_ms(f"{tmp_path}/new") == 77
    with pytest.raises(StorageError):
        files.read(f"{tmp_path}/gone")
    with pytest.raises(StorageError):
        files.modified_ms(f"{tmp_path}/gone")
    files.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "gone", "kept"]
    assert (tmp_path / "cut").read_bytes() == b"cut off"


def test_closing_it_leaves_no_file_open_not_even_of_what_was_deleted(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(30):
        (tmp_path / f"{number}").write_bytes(b"x" * number)
    files = OverlayFileSystem(RealFileSystem())
    for number in range(30):
        files.open_append(f"{tmp_path}/{number}").append(b"y")
        if number % 3 == 0:
            files.delete(f"{tmp_path}/{number}")
        elif number % 3 == 1:
            files.rename(f"{tmp_path}/{number}", f"{tmp_path}/2")
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
