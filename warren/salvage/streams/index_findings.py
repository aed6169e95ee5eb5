"""What is wrong with a segment's index: a record for each chunk, in order, says what the chunk's header says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from warren.salvage.queue_directory import Finding
from warren.salvage.streams.osiris_format import FILE_HEADER_BYTES, INDEX_HEADER, INDEX_RECORD, ChunkHeader, read_index
from warren.salvage.streams.stream_log import Segment


def index_findings(
    segment: Segment, data: bytes, chunks: Sequence[tuple[int, ChunkHeader]], damaged: Collection[int | None]
) -> Iterator[Finding]:
    """``data``: the index; ``chunks``: the sound ones, with their positions; ``damaged``: the positions of the others,
    already reported."""
    path, index = segment.index_path, read_index(data)
    positions = index["position"]
    if data and not data.startswith(INDEX_HEADER):
        yield Finding("damaged header", "damage", path, 0, "the file does not begin as an index")
    rows = [
        (header.offset, header.timestamp_ms, header.epoch, at, header.type) for at, header in chunks if not at >> 32
    ]
    expected = {int(row["position"]): row for row in np.array(rows, INDEX_RECORD)}
    of_chunks = np.flatnonzero(np.isin(positions, list(expected)))
    end = len(positions) if segment.end is None else int(of_chunks[-1]) + 1 if len(of_chunks) else 0
    for number, record in enumerate(index):
        position, record_at = int(record["position"]), FILE_HEADER_BYTES + number * INDEX_RECORD.itemsize
        row = expected.pop(position, None)
        if row is not None and row != record:
            detail = f"{_described(record)}; the chunk at {position:,} is {_described(row)}"
            yield Finding("damaged index record", "damage", path, record_at, detail)
        elif row is None and number >= end:
            yield Finding("leftover index record", "leftover", path, record_at, f"no chunk at {position:,}")
        elif row is None and position not in damaged:
            yield Finding("damaged index record", "damage", path, record_at, f"no chunk begins at {position:,}")
    for position in expected:
        yield Finding("missing index record", "damage", path, None, f"of the chunk at {position:,} in the segment")
    if data and (rest := (len(data) - FILE_HEADER_BYTES) % INDEX_RECORD.itemsize):
        yield Finding("leftover of a write", "leftover", path, len(data) - rest, f"{rest} bytes of a record")


def _described(record: np.void) -> str:
    return ", ".join(f"{name} {record[name]}" for name in ("offset", "timestamp_ms", "epoch", "type"))
