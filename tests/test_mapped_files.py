"""Files of one size, each named by the logical offset of its first byte."""

from __future__ import annotations

import pytest

from warren.storage.errors import DataError, StorageError
from warren.storage.mapped_files import MappedFiles, file_name, parse_file_name
from warren.storage.memory import MemoryFileSystem


def test_names_are_twenty_digits() -> None:
    assert file_name(1 << 30) == "00000000001073741824"
    assert parse_file_name(file_name(123)) == 123
    for name in ("1", "0" * 19, "0" * 21, "x" * 20, "0" * 19 + "x", "٣" * 20):
        assert parse_file_name(name) is None


def test_bytes_lie_where_their_offset_says() -> None:
    files = MemoryFileSystem()
    mapped = MappedFiles.load(files, "/log", 100)
    mapped.add(0)
    mapped.add(100)
    mapped.add(300)
    mapped.write(90, b"0123456789")
    mapped.write(100, b"next")
    assert mapped.read(95, 50) == b"56789"  # a read ends with its file
    assert mapped.read(100, 6) == b"next\0\0"
    assert (mapped.read(250, 10), mapped.read(400, 1)) == (b"", b"")
    assert [mapped.holding(offset) for offset in (0, 99, 100, 200, 399, 400)] == [0, 0, 100, None, 300, None]
    assert [mapped.after(base) for base in (0, 100, 300)] == [100, 300, None]
    with pytest.raises(RuntimeError):
        mapped.write(95, b"over the end")
    with pytest.raises(RuntimeError):
        mapped.add(350)
    mapped.clear_from(94)
    assert mapped.read(88, 12) == b"\0\x000123" + bytes(6)
    assert (mapped.min_offset, mapped.file_end) == (0, 400)
    mapped.delete(0)
    assert (mapped.min_offset, mapped.bases) == (100, [100, 300])
    assert files.list("/log") == [file_name(100), file_name(300)]


def test_a_file_of_another_length_is_refused_or_gets_its_zeros() -> None:
    files = MemoryFileSystem()
    mapped = MappedFiles.load(files, "/log", 100)
    for base in (0, 100):
        mapped.add(base)
    mapped.write(0, b"first")
    mapped.close()
    handle = files.open_append(f"/log/{file_name(100)}")
    handle.truncate(40)
    handle.close()
    with pytest.raises(DataError, match="wrong file length: 40 bytes, and not 100"):
        MappedFiles.load(files, "/log", 100)
    mended = MappedFiles.load(files, "/log", 100, lengthen=True)
    assert mended.read(100, 100) == bytes(100)
    assert mended.read(0, 5) == b"first"
    mended.close()
    with pytest.raises(DataError, match="wrong file length: 100 bytes, and not 50"):
        MappedFiles.load(files, "/log", 50, lengthen=True)


def test_what_was_synced_outlives_a_power_loss_names_included() -> None:
    files = MemoryFileSystem()
    files.make_directories("/log")
    files.sync_directory("/")
    mapped = MappedFiles.load(files, "/log", 100)
    mapped.add(0)
    mapped.write(0, b"safe")
    assert mapped.has_unsynced
    mapped.sync()
    assert not mapped.has_unsynced
    mapped.add(100)
    mapped.write(100, b"perhaps")
    after = MappedFiles.load(files.after_power_loss(files.rng), "/log", 100, lengthen=True)
    assert after.read(0, 4) == b"safe"


def test_a_file_that_is_written_anew_is_on_the_disk_and_half_a_copy_is_deleted() -> None:
    files = MemoryFileSystem()
    mapped = MappedFiles.load(files, "/log", 100)
    mapped.add(0)
    mapped.write(0, b"0123456789")
    files.fail("sync")
    with pytest.raises(StorageError):
        mapped.sync()
    files.sync_directory("/")
    mapped.write_anew(0, 6)
    mapped.write(8, b"!")
    mapped.sync()
    assert MappedFiles.load(files.after_power_loss(None), "/log", 100).read(0, 10) == b"012345\0\0!\0"
    half = files.after_process_crash()
    half.open_append(f"/log/{file_name(0)}.new").append(b"0")
    half.open_append("/log/others.new").append(b"0")
    assert MappedFiles.load(half, "/log", 100, writable=False).bases == [0]
    assert MappedFiles.load(half, "/log", 100).bases == [0]
    assert half.list("/log") == [file_name(0), "others.new"]
