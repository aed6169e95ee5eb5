"""A stream's files, sound, torn and damaged: where a restarting broker ends the log, and what is read all the same.

Each case of an end is what Osiris 1.3 makes of the same files.
"""

from __future__ import annotations

import gzip
import itertools
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stream_tools import (
    TRACKING,
    StreamWriter,
    append,
    cut,
    damage_in,
    data,
    entry,
    findings_in,
    offsets_in,
    opened,
    overwrite,
    record,
    sub_batch,
)
from warren.queue_index.message.message_format import decode_message
from warren.salvage.queue_directory import IndexColumns, StoredMessage

SEGMENT, INDEX = f"{0:020}.segment", f"{0:020}.index"
INDEX_RECORD_BYTES = 29
TRAILER = b"\1\1p" + bytes(16)


def written(directory: Path, chunks: int = 5, segment_bytes: int = 1 << 30) -> StreamWriter:
    """A message a chunk."""
    stream = StreamWriter(directory / "stream", segment_bytes)
    for number in range(chunks):
        stream.chunk(entry(record(b"body %d" % number)), 1, 1, trailer=TRAILER)
    return stream


def bodies_in(stream: StreamWriter) -> list[bytes]:
    messages = [message for message in stream.opened().messages() if isinstance(message, StoredMessage)]
    return [decode_message(message.encoded).body for message in messages]


# ── sound streams ────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=5) | st.none(), max_size=12), st.integers(100, 900)
)
def test_what_is_written_is_read(chunks: list[list[bytes] | None], segment_bytes: int) -> None:
    """``None`` is a chunk of the broker's own, which takes an offset."""
    with tempfile.TemporaryDirectory() as directory:
        stream = StreamWriter(Path(directory) / "stream", segment_bytes)
        expected: list[tuple[int, bytes]] = []
        for bodies in chunks:
            if bodies is None:
                stream.chunk(entry(TRAILER), 1, 1, kind=TRACKING)
                continue
            expected += list(zip(itertools.count(stream.offset), bodies))
            stream.write(*map(record, bodies))
        queue = stream.opened()
        messages = [message for message in queue.messages() if isinstance(message, StoredMessage)]
        assert [(message.stream_offset, decode_message(message.encoded).body) for message in messages] == expected
        assert findings_in(queue) == []
        pieces = queue.extent().pieces
        assert [queue.count(range(number, number + 1)) for number in pieces] == [
            sum(1 for _ in queue.message_runs(only=range(number, number + 1))) for number in pieces
        ]
        columns = [
            row
            for rows in queue.index_columns()
            if isinstance(rows, IndexColumns)
            for row in zip(rows.seq_ids.tolist(), rows.sizes.tolist(), strict=True)
        ]
        assert columns == [(offset, len(body)) for offset, body in expected]
        summary = queue.summary()
        assert (summary.ready, summary.payload_bytes) == (len(expected), sum(len(body) for _, body in expected))


def test_a_filter_stands_before_the_entries(tmp_path: Path) -> None:
    stream = written(tmp_path, 1)
    stream.chunk(entry(record(b"filtered")), 1, 1, trailer=TRAILER, bloom=bytes(range(16)))
    stream.write(record(b"after"))
    assert bodies_in(stream) == [b"body 0", b"filtered", b"after"]
    assert findings_in(stream.opened()) == []


def test_retention_has_deleted_the_first_segments(tmp_path: Path) -> None:
    stream = written(tmp_path, 12, segment_bytes=300)
    first, second, *_ = stream.segments
    first.unlink()
    first.with_suffix(".index").unlink()
    assert offsets_in(stream.opened()) == list(range(int(second.stem), 12))
    assert findings_in(stream.opened()) == []


# ── sub-batches ──────────────────────────────────────────────────────────────────────────────────────────────────────


def snappy(content: bytes) -> bytes:
    frames = [b"\xff\x06\0\0sNaPpY", b"\xfe\x02\0\0\0\0"]
    for start in range(0, len(content), 1 << 16):
        part = content[start : start + (1 << 16)]
        packed = pa.compress(part, codec="snappy", asbytes=True)
        is_smaller = len(packed) < len(part)
        frame = bytes(4) + (packed if is_smaller else part)
        frames.append(bytes([0 if is_smaller else 1]) + struct.pack("<I", len(frame))[:3] + frame)
    return b"".join(frames)


COMPRESSIONS: dict[int, Callable[[bytes], bytes]] = {
    1: gzip.compress,
    2: snappy,
    3: lambda content: pa.compress(content, codec="lz4", asbytes=True),
    4: lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("compression", [0, *COMPRESSIONS])
def test_sub_batches_are_read(tmp_path: Path, compression: int) -> None:
    stream = StreamWriter(tmp_path / "stream")
    bodies = [bytes([number]) * 3000 + os.urandom(3000) for number in range(40)]
    records = [data(body) for body in bodies]
    compressed = None if not compression else COMPRESSIONS[compression](b"".join(map(entry, records)))
    stream.chunk(sub_batch(compression, records, compressed) + entry(data(b"last")), 2, len(records) + 1)
    assert bodies_in(stream) == [*bodies, b"last"]
    assert offsets_in(stream.opened()) == list(range(41))
    assert findings_in(stream.opened()) == []


@pytest.mark.parametrize("compression", [*COMPRESSIONS, 5])
def test_a_sub_batch_that_cannot_be_read_loses_no_other_message(tmp_path: Path, compression: int) -> None:
    stream = StreamWriter(tmp_path / "stream")
    stream.chunk(entry(data(b"a")) + sub_batch(compression, [data(b"lost")] * 3, b"no such") + entry(data(b"b")), 3, 5)
    assert offsets_in(stream.opened()) == [0, 4]
    assert damage_in(stream.opened()) == [("unreadable entry", SEGMENT, 8)]
    assert stream.opened().count(range(9)) == 2


def test_a_compressed_sub_batch_says_which_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamWriter(tmp_path / "stream")
    stream.chunk(sub_batch(4, [data(b"a")], COMPRESSIONS[4](entry(data(b"a")))), 1, 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (finding,) = stream.opened().messages()
    assert "install warrenmq[parquet]" in str(finding)


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spoil", "offsets", "findings"),
    [
        pytest.param(lambda stream: cut(stream.segments[0], len(TRAILER)), 5, set(), id="trailer cut off"),
        pytest.param(
            lambda stream: cut(stream.segments[0], len(TRAILER) + 1),
            4,
            {"leftover of a write", "leftover index record"},
            id="entry cut short",
        ),
        pytest.param(
            lambda stream: cut(stream.segments[0], stream.segments[0].stat().st_size - stream.chunk_positions[2] - 60),
            2,
            {"leftover of a write", "leftover index record"},
            id="several chunks cut off",
        ),
        pytest.param(
            lambda stream: overwrite(stream.segments[0], stream.segments[0].stat().st_size - 50, bytes(50)),
            4,
            {"leftover zeros", "leftover index record"},
            id="zeros",
        ),
        pytest.param(
            lambda stream: cut(stream.indexes[0], INDEX_RECORD_BYTES),
            4,
            {"missing index records"},
            id="last index record missing",
        ),
        pytest.param(
            lambda stream: cut(stream.indexes[0], 10),
            4,
            {"missing index records", "leftover of a write"},
            id="index record torn",
        ),
        pytest.param(
            lambda stream: overwrite(stream.indexes[0], 8 + 4 * INDEX_RECORD_BYTES, bytes(INDEX_RECORD_BYTES)),
            4,
            {"missing index records", "leftover index record"},
            id="index ends in zeros",
        ),
        pytest.param(
            lambda stream: cut(stream.indexes[0], 2 * INDEX_RECORD_BYTES),
            3,
            {"missing index records"},
            id="index cut off",
        ),
        pytest.param(
            lambda stream: overwrite(stream.segments[0], stream.chunk_positions[-1] + 60, b"\xee"),
            4,
            {"damaged chunk", "leftover index record"},
            id="last checksum wrong",
        ),
        pytest.param(
            lambda stream: append(stream.indexes[0], bytes(29)), 5, {"leftover index record"}, id="zeros after"
        ),
        pytest.param(
            lambda stream: append(stream.segments[0], b"P" * 30), 5, {"leftover of a write"}, id="half a header"
        ),
        pytest.param(lambda stream: stream.segments[0].write_bytes(b""), 0, {"leftover index record"}, id="empty"),
    ],
)
def test_the_log_ends_where_a_broker_ends_it(
    tmp_path: Path, spoil: Callable[[StreamWriter], object], offsets: int, findings: set[str]
) -> None:
    stream = written(tmp_path)
    spoil(stream)
    assert offsets_in(stream.opened()) == list(range(offsets))
    assert {kind for kind, _, _ in findings_in(stream.opened())} == findings


def test_messages_without_an_index_record_are_orphans(tmp_path: Path) -> None:
    stream = written(tmp_path)
    cut(stream.indexes[0], 2 * INDEX_RECORD_BYTES)
    orphans = [decode_message(orphan.encoded).body for orphan in stream.opened().unindexed_messages()]
    assert orphans == [b"body 3", b"body 4"]


def test_a_segment_without_chunks_is_dropped_and_the_one_before_it_ends_the_log(tmp_path: Path) -> None:
    stream = written(tmp_path, 6, segment_bytes=300)
    last = stream.segments[-1]
    last.write_bytes(last.read_bytes()[:8])
    last.with_suffix(".index").write_bytes(b"OSII\0\0\0\1")
    assert offsets_in(stream.opened()) == list(range(int(last.stem)))
    assert findings_in(stream.opened()) == []


def test_a_chunk_of_zeros_and_a_header_ends_the_log(tmp_path: Path) -> None:
    """Osiris 1.3 takes this for a chunk at offset 0, and serves no other message."""
    stream = written(tmp_path)
    position = stream.chunk_positions[-1] + 24
    overwrite(stream.segments[0], position, bytes(stream.segments[0].stat().st_size - position))
    assert offsets_in(stream.opened()) == [0, 1, 2, 3]
    assert damage_in(stream.opened()) == []


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_checksum_loses_its_chunk_alone(tmp_path: Path) -> None:
    stream = written(tmp_path)
    overwrite(stream.segments[0], stream.chunk_positions[2] + 60, b"\xee")
    assert offsets_in(stream.opened()) == [0, 1, 3, 4]
    assert damage_in(stream.opened()) == [("damaged chunk", SEGMENT, stream.chunk_positions[2])]
    assert findings_in(stream.opened()) == damage_in(stream.opened())
    (finding,) = (finding for finding in stream.opened().findings())
    assert finding.detail.endswith("offsets 2 to 2 are lost")


def test_after_a_damaged_header_the_index_says_where_the_next_chunk_is(tmp_path: Path) -> None:
    stream = written(tmp_path)
    overwrite(stream.segments[0], stream.chunk_positions[1], bytes(48))
    assert offsets_in(stream.opened()) == [0, 2, 3, 4]
    assert damage_in(stream.opened()) == [("damaged chunk", SEGMENT, stream.chunk_positions[1])]


def test_zeros_in_the_middle_lose_what_they_cover(tmp_path: Path) -> None:
    stream = written(tmp_path, 8)
    start = stream.chunk_positions[2] + 30
    overwrite(stream.segments[0], start, bytes(stream.chunk_positions[5] - 10 - start))
    assert offsets_in(stream.opened()) == [0, 1, 5, 6, 7]
    (finding,) = (finding for finding in stream.opened().findings() if finding.kind == "damaged chunk")
    assert finding.detail.endswith("offsets 2 to 4 are lost")


def test_a_damaged_offset_in_a_header_is_taken_from_the_index(tmp_path: Path) -> None:
    stream = written(tmp_path)
    overwrite(stream.segments[0], stream.chunk_positions[2] + 24, struct.pack(">Q", 77))
    assert offsets_in(stream.opened()) == [0, 1, 2, 3, 4]
    assert damage_in(stream.opened()) == [("wrong offset", SEGMENT, stream.chunk_positions[2])]


def test_a_missing_segment_is_a_gap(tmp_path: Path) -> None:
    stream = written(tmp_path, 12, segment_bytes=300)
    gone, following = stream.segments[1:3]
    gone.unlink()
    kinds = {(kind, name) for kind, name, _ in findings_in(stream.opened())}
    assert kinds == {("missing segment", gone.name)}
    gone.with_suffix(".index").unlink()
    assert damage_in(stream.opened()) == [("missing segment", gone.name, None)]
    expected = [offset for offset in range(12) if not int(gone.stem) <= offset < int(following.stem)]
    assert offsets_in(stream.opened()) == expected


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_segment_whose_index_is_missing_is_read(tmp_path: Path, place: int) -> None:
    stream = written(tmp_path, 12, segment_bytes=300)
    index = stream.indexes[place]
    index.unlink()
    assert offsets_in(stream.opened()) == list(range(12))
    assert damage_in(stream.opened()) == [("missing index", index.name, None)]


def test_a_directory_without_any_index_is_read(tmp_path: Path) -> None:
    stream = written(tmp_path)
    stream.indexes[0].unlink()
    assert offsets_in(stream.opened()) == [0, 1, 2, 3, 4]
    assert damage_in(stream.opened()) == [("missing index", INDEX, None)]


@pytest.mark.parametrize(
    ("position", "content", "kind"),
    [(8 + 2 * 29, b"\xff", "damaged index record"), (8 + 2 * 29 + 25, b"\x01", "damaged index record")],
)
def test_an_index_record_that_contradicts_its_chunk(tmp_path: Path, position: int, content: bytes, kind: str) -> None:
    stream = written(tmp_path)
    overwrite(stream.indexes[0], position, content)
    assert offsets_in(stream.opened()) == [0, 1, 2, 3, 4]
    assert (kind, INDEX, 8 + 2 * 29) in findings_in(stream.opened())


def test_headers_of_files_that_are_not_theirs(tmp_path: Path) -> None:
    stream = written(tmp_path)
    overwrite(stream.segments[0], 0, b"X")
    overwrite(stream.indexes[0], 0, b"X")
    assert offsets_in(stream.opened()) == [0, 1, 2, 3, 4]
    assert findings_in(stream.opened()) == [("damaged header", SEGMENT, 0), ("damaged header", INDEX, 0)]


def test_a_strange_file_is_left_over(tmp_path: Path) -> None:
    stream = written(tmp_path)
    (stream.directory / "notes.txt").write_bytes(b"")
    assert findings_in(stream.opened()) == [("leftover file", "notes.txt", None)]


@given(st.data())
def test_a_single_flipped_bit_is_never_silent(drawn: st.DataObject) -> None:
    """Whatever it hits: no message is changed, and what is lost, verify reports."""
    with tempfile.TemporaryDirectory() as directory:
        stream = written(Path(directory), 6, segment_bytes=300)
        expected = [(offset, b"body %d" % offset) for offset in range(6)]
        path = drawn.draw(st.sampled_from([*stream.segments, *stream.indexes]))
        position = drawn.draw(st.integers(0, path.stat().st_size - 1))
        written_byte = path.read_bytes()[position]
        overwrite(path, position, bytes([written_byte ^ 1 << drawn.draw(st.integers(0, 7))]))
        queue = opened(stream.directory)
        messages = [message for message in queue.messages() if isinstance(message, StoredMessage)]
        found = [(message.seq_id, decode_message(message.encoded).body) for message in messages]
        assert [row for row in found if row not in expected] == [] or damage_in(queue)
        if len(found) < len(expected):
            assert findings_in(queue)
