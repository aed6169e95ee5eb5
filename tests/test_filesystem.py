"""What every file system promises, held by the real one and by those in memory alike.

*Bounded* is the real one with one descriptor for all of its files: each of them is evicted all the time.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tape import RecordingFileSystem
from tests.support.effort import times
from warren.storage.counted import CountedFileSystem
from warren.storage.errors import DirectoryLockedError, DiskFullError, NoRoomError, StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem, append_whole, data_windows, write_file
from warren.storage.memory import MemoryFileSystem
from warren.storage.overlay import OverlayFileSystem


@pytest.fixture(params=["real", "bounded", "memory", "counted"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    if request.param == "memory":
        return MemoryFileSystem(0)
    if request.param == "counted":
        return CountedFileSystem()
    return RealFileSystem(max_open_files=1 if request.param == "bounded" else None)


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> str:
    files.make_directories(str(tmp_path))
    return str(tmp_path)


def put(files: FileSystem, path: str, data: bytes = b"") -> None:
    handle = files.open_append(path)
    handle.append(data)
    handle.close()


def test_both_file_systems_are_file_systems(files: FileSystem) -> None:
    assert isinstance(files, FileSystem)


def test_append_returns_where_the_data_begins(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    assert handle.append(b"abc") == 0
    assert handle.append(memoryview(b"defg")) == 3
    assert handle.append(bytearray()) == 7
    assert handle.size() == files.size(f"{root}/f") == 7
    assert files.read(f"{root}/f") == b"abcdefg"


def test_append_to_an_existing_file_goes_on_at_its_end(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f", b"old")
    assert files.open_append(f"{root}/f").append(b"new") == 3
    assert files.read(f"{root}/f") == b"oldnew"


def test_append_counts_an_arrays_bytes_not_its_items(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    handle.append(memoryview(array.array("Q", [1, 2])))
    assert handle.size() == 16
    assert handle.append(b"x") == 16


def test_a_write_that_the_system_cuts_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, view, offset: whole(descriptor, view[:3], offset))
    numbers = array.array("Q", range(5))
    handle = RealFileSystem().open_append(f"{tmp_path}/f")
    handle.append(memoryview(numbers))
    assert handle.pread(99, 0) == numbers.tobytes()


def piece_of(number: int, size: int) -> bytes | bytearray | memoryview:
    """Bytes, an array of bytes, or a view on some, in turns."""
    octets = bytes((number * 7 % 251,)) * size
    return (octets, bytearray(octets), memoryview(octets))[number % 3]


@settings(max_examples=times(20))
@given(st.lists(st.lists(st.sampled_from([0, 1, 30, 4095, 4096, 70_000]), max_size=6), max_size=4))
def test_pieces_are_written_as_if_they_were_one(appends: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number, system in enumerate(every_file_system()):
            path = f"{directory}/{number}"
            system.make_directories(directory)
            handle, expected = system.open_append(path), b""
            for sizes in appends:
                pieces = [piece_of(position, size) for position, size in enumerate(sizes)]
                assert handle.appendv(pieces) == len(expected)
                expected += b"".join(pieces)
                assert handle.size() == len(expected)
            assert handle.append(b"end") == len(expected)
            handle.close()
            assert system.read(path) == expected + b"end"


def every_file_system() -> list[FileSystem]:
    return [
        RealFileSystem(),
        RealFileSystem(max_open_files=1),
        MemoryFileSystem(0),
        CountedFileSystem(),
        OverlayFileSystem(MemoryFileSystem(0)),
        RecordingFileSystem("/"),
    ]


@pytest.mark.parametrize("size", [3, 5000], ids=["joined", "by themselves"])
def test_more_pieces_than_a_system_call_takes_are_written(files: FileSystem, root: str, size: int) -> None:
    pieces = [piece_of(number, size) for number in range(2500)]
    handle = files.open_append(f"{root}/f")
    assert handle.appendv(pieces) == 0
    assert files.read(f"{root}/f") == b"".join(pieces)


def test_a_gathered_write_that_the_system_cuts_short_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = os.pwritev, list[int]()

    def short(descriptor: int, pieces: list[bytes], offset: int) -> int:
        calls.append(offset)
        return whole(descriptor, [b"".join(pieces)[:7001]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    pieces = [piece_of(number, size) for number, size in enumerate((5000, 1, 9000, 0, 5000, 4999))]
    handle = RealFileSystem().open_append(f"{tmp_path}/f")
    handle.append(b"before")
    assert handle.appendv(pieces) == 6
    assert handle.pread(99_999, 0) == b"before" + b"".join(pieces)
    assert calls == [6, 7007, 14008, 21009]


def test_a_disk_that_is_full_within_a_gathered_write_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev

    def full(descriptor: int, pieces: list[bytes], offset: int) -> int:
        if offset > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(descriptor, [b"".join(pieces)[:7000]], offset)

    monkeypatch.setattr(os, "pwritev", full)
    handle = RealFileSystem().open_append(f"{tmp_path}/f")
    with pytest.raises(DiskFullError):
        handle.appendv([bytes(5000), bytes(5000)])
    assert handle.size() == 7000
    assert handle.append(b"behind") == 7000
    handle.truncate(0)
    with pytest.raises(NoRoomError):
        append_whole(handle, [[b"first"], [bytes(5000), bytes(5000)]])
    assert handle.size() == 0
    assert handle.append(b"next") == 0


def test_an_error_within_a_gathered_write_leaves_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, pieces: list[bytes], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    handle = RealFileSystem().open_append(f"{tmp_path}/f")
    handle.append(b"before")
    monkeypatch.setattr(os, "pwritev", broken)
    with pytest.raises(StorageError, match="error"):
        append_whole(handle, [[b"first"], [bytes(5000), bytes(5000)]])
    assert handle.pread(99, 0) == b"beforefirst"


def test_pwrite_overwrites_and_fills_a_gap_with_zeros(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    handle.append(b"abcdef")
    handle.pwrite(b"XY", 1)
    assert handle.append(b"g") == 6
    handle.pwrite(b"Z", 9)
    assert files.read(f"{root}/f") == b"aXYdefg\0\0Z"
    assert handle.append(b"!") == 10


def test_pwrite_of_nothing_beyond_the_end_does_not_extend(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    handle.pwrite(b"", 10)
    assert handle.size() == 0


def test_pread_is_short_only_at_the_end(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f", b"abcdef")
    handle = files.open_read(f"{root}/f")
    assert [handle.pread(2, 0), handle.pread(9, 4), handle.pread(1, 6), handle.pread(1, 99)] == [b"ab", b"ef", b"", b""]


def test_truncate_cuts_extends_with_zeros_and_moves_the_end(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    handle.append(b"abcdef")
    handle.truncate(2)
    assert handle.append(b"X") == 2
    handle.truncate(5)
    assert files.read(f"{root}/f") == b"abX\0\0"
    assert handle.append(b"Y") == 5


def test_a_reader_sees_its_file_grow(files: FileSystem, root: str) -> None:
    writer = files.open_append(f"{root}/f")
    reader = files.open_read(f"{root}/f")
    writer.append(b"abc")
    assert reader.size() == 3
    assert reader.pread(3, 0) == b"abc"


def test_a_handle_keeps_its_file_through_rename_and_delete(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    files.rename(f"{root}/f", f"{root}/g")
    handle.append(b"abc")
    assert files.read(f"{root}/g") == b"abc"
    files.delete(f"{root}/g")
    handle.append(b"def")
    assert handle.pread(6, 0) == b"abcdef"
    assert files.list(root) == []


def test_a_closed_handle_refuses_everything_but_close(files: FileSystem, root: str) -> None:
    handle = files.open_append(f"{root}/f")
    handle.close()
    handle.close()
    for use in (
        lambda: handle.append(b"x"),
        lambda: handle.pwrite(b"x", 0),
        lambda: handle.pread(1, 0),
        lambda: handle.truncate(0),
        handle.sync,
        handle.size,
    ):
        with pytest.raises(StorageError):
            use()


def test_a_handle_opened_for_reading_refuses_writes(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f", b"abc")
    handle = files.open_read(f"{root}/f")
    for write in (lambda: handle.append(b"x"), lambda: handle.pwrite(b"x", 0), lambda: handle.truncate(0)):
        with pytest.raises(StorageError):
            write()
    assert files.read(f"{root}/f") == b"abc"


def test_negative_positions_are_refused(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f", b"abc")
    handle = files.open_append(f"{root}/f")
    for use in (lambda: handle.pread(1, -1), lambda: handle.pwrite(b"x", -1), lambda: handle.truncate(-1)):
        with pytest.raises(StorageError):
            use()


def test_a_missing_file_is_an_error_that_names_it(files: FileSystem, root: str) -> None:
    path = f"{root}/nowhere"
    for use in (files.open_read, files.read, files.size, files.delete, lambda p: files.rename(p, f"{root}/f")):
        with pytest.raises(StorageError, match="nowhere"):
            use(path)
    assert not files.exists(path)


def test_nothing_can_be_created_in_a_missing_directory(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f")
    for use in (
        lambda: files.open_append(f"{root}/d/f"),
        lambda: files.rename(f"{root}/f", f"{root}/d/f"),
        lambda: files.sync_directory(f"{root}/d"),
        lambda: files.lock(f"{root}/d/lock", "me"),
    ):
        with pytest.raises(StorageError):
            use()


def test_a_file_is_no_directory_and_a_directory_no_file(files: FileSystem, root: str) -> None:
    put(files, f"{root}/f")
    files.make_directories(f"{root}/d")
    for use in (
        lambda: files.make_directories(f"{root}/f/d"),
        lambda: files.list(f"{root}/f"),
        lambda: files.open_append(f"{root}/f/g"),
        lambda: files.delete_tree(f"{root}/f"),
        lambda: files.sync_directory(f"{root}/f"),
        lambda: files.open_append(f"{root}/d"),
        lambda: files.read(f"{root}/d"),
        lambda: files.delete(f"{root}/d"),
        lambda: files.rename(f"{root}/f", f"{root}/d"),
    ):
        with pytest.raises(StorageError):
            use()
    assert (files.is_directory(f"{root}/d"), files.is_directory(f"{root}/f")) == (True, False)
    assert files.exists(f"{root}/f")
    assert files.exists(f"{root}/d")


def test_rename_replaces_what_had_the_name(files: FileSystem, root: str) -> None:
    put(files, f"{root}/a", b"new")
    put(files, f"{root}/b", b"old")
    files.rename(f"{root}/a", f"{root}/b")
    files.rename(f"{root}/b", f"{root}/b")
    assert files.list(root) == ["b"]
    assert files.read(f"{root}/b") == b"new"


def test_directories_are_made_listed_and_deleted_whole(files: FileSystem, root: str) -> None:
    files.make_directories(f"{root}/d/e")
    files.make_directories(f"{root}/d")
    for name in ("z", "a", "e/m"):
        put(files, f"{root}/d/{name}")
    assert files.list(f"{root}/d/") == ["a", "e", "z"]
    files.sync_directory(f"{root}/d")
    files.delete_tree(f"{root}/d")
    assert files.list(f"{root}/d") == []
    assert not files.exists(f"{root}/d/e/m")
    files.delete_tree(f"{root}/d")


def test_a_lock_is_held_once_and_says_by_whom(files: FileSystem, root: str) -> None:
    lock = files.lock(f"{root}/lock", "pid 1234")
    with pytest.raises(DirectoryLockedError, match="in use by pid 1234"):
        files.lock(f"{root}/lock", "pid 5")
    lock.release()
    lock.release()
    files.lock(f"{root}/lock", "x").release()
    assert files.read(f"{root}/lock") == b"x"


@pytest.mark.parametrize("sync", [False, True])
def test_write_file_replaces_and_leaves_no_scratch_behind(files: FileSystem, root: str, sync: bool) -> None:
    put(files, f"{root}/f.new", b"left by a crash")
    write_file(files, f"{root}/f", b"one", sync=sync)
    write_file(files, f"{root}/f", b"two", sync=sync)
    assert files.list(root) == ["f"]
    assert files.read(f"{root}/f") == b"two"


_offsets = st.integers(0, 40)
_data = st.binary(max_size=20)
_names = st.sampled_from(["a", "b", "d/a", "d/b"])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _names, _data),
        st.tuples(st.just("pwrite"), _names, _data, _offsets),
        st.tuples(st.just("truncate"), _names, _offsets),
        st.tuples(st.just("sync"), _names),
        st.tuples(st.just("rename"), st.sampled_from(["b", "d/a", "d/b"]), _names),
        st.tuples(st.just("delete"), _names),
        st.tuples(st.just("delete_tree"), st.just("d")),
        st.tuples(st.just("make_directories"), st.sampled_from(["d", "a/x"])),
        st.tuples(st.just("sync_directory"), st.sampled_from(["", "d"])),
        st.tuples(st.just("list"), st.sampled_from(["", "d"])),
        st.tuples(st.just("size"), st.sampled_from(["b", "d/a"])),
        st.tuples(st.just("read"), _names),
    ),
    max_size=25,
)


def perform(files: FileSystem, root: str, kind: str, name: str, *rest: object) -> object:
    """One step and what came of it: its result, or that it was refused."""
    try:
        if kind in ("append", "pwrite", "truncate", "sync"):
            handle = files.open_append(f"{root}/{name}")
            try:
                return getattr(handle, kind)(*rest), handle.size(), handle.pread(100, 0)
            finally:
                handle.close()
        targets = [f"{root}/{other}" for other in rest]
        return getattr(files, kind)(f"{root}/{name}", *targets)
    except StorageError:
        return "refused"


@pytest.mark.parametrize("kind", [MemoryFileSystem, CountedFileSystem])
@settings(max_examples=times(150))
@given(steps=_steps)
def test_memory_answers_as_the_real_file_system_does(
    kind: type[MemoryFileSystem] | type[CountedFileSystem], steps: list[tuple[str, str]]
) -> None:
    memory, real = kind(), RealFileSystem()
    with tempfile.TemporaryDirectory() as root:
        memory.make_directories(root)
        for step in steps:
            assert perform(memory, root, *step) == perform(real, root, *step), step
            memory.check_invariants()


@pytest.mark.parametrize("bound", [None, 1])
def test_what_is_no_file_is_refused_at_once(bound: int | None, tmp_path: Path) -> None:
    """To open a FIFO would wait for its other end."""
    files = RealFileSystem(max_open_files=bound)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    (tmp_path / "directory").mkdir()
    reasons = {
        "fifo": "a FIFO",
        "zero": "a (device|symbolic link)",
        "socket": "a socket",
        "directory": "Is a directory",
    }
    for name, reason in reasons.items():
        path = f"{tmp_path}/{name}"
        for opened in (files.open_read, files.open_append, files.read):
            with pytest.raises(StorageError, match=f"{name}: .*{reason}"):
                opened(path)


def test_what_gives_way_to_a_fifo_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a name and the opening, the name may be given to another."""
    (tmp_path / "f").touch()
    looked = os.stat(tmp_path / "f")
    (tmp_path / "f").unlink()
    os.mkfifo(tmp_path / "f")
    monkeypatch.setattr(os, "stat", lambda path: looked)
    with pytest.raises(StorageError, match="a FIFO"):
        RealFileSystem().open_read(f"{tmp_path}/f")


def test_holes_are_stepped_over_and_every_byte_is_in_a_window(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    written = [0, (1 << 20) - 1, 777 << 20, (1 << 40) - 1]
    for inner in (RealFileSystem(), RealFileSystem(max_open_files=1)):
        over = OverlayFileSystem(inner)
        for files in (inner, over):
            handle = files.open_append(str(path))
            for at in written:
                handle.pwrite(b"x", at)
            starts = list(data_windows(handle, 0, 1 << 40, 1 << 20, overlap=20))
            assert len(starts) <= 2 * len(written)
            assert all(any(start <= at < start + (1 << 20) for start in starts) for at in written)
            assert ((777 << 20) - (1 << 20)) in starts  # a record may begin with a hole's zeros
            assert list(data_windows(handle, (1 << 20) + 5000, 700 << 20, 10)) == []
            assert handle.next_data(1 << 40) == 1 << 40
            handle.close()
        over.close()
