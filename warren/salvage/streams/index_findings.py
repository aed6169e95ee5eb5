"""What is wrong with a segment's index: a record for each chunk, in order, says what the chunk's header says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from warren.salvage.queue_directory import Finding
from warren.salvage.streams.osiris_format import FILE_HEADER_BYTES, INDEX_RECORD, ChunkHeader
from warren.salvage.streams.stream_log import Segment


def index_findings(
    segment: Segment, chunks: Sequence[tuple[int, ChunkHeader]], damaged: Collection[int | None]
) -> Iterator[Finding]:
    """``chunks``: the sound ones, with their positions; ``damaged``: the positions of the others, already reported."""
    if not segment.has_index:
        return
    path, positions = segment.index_path, segment.index["position"]
    rows = [
        (header.offset, header.timestamp_ms, header.epoch, at, header.type) for at, header in chunks if not at >> 32
    ]
    expected = {int(row["position"]): row for row in np.array(rows, INDEX_RECORD)}
    of_chunks = np.flatnonzero(np.isin(positions, list(expected)))
    end = len(positions) if segment.end is None else int(of_chunks[-1]) + 1 if len(of_chunks) else 0
    for number, record in enumerate(segment.index):
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
    if segment.index_bytes and (rest := (segment.index_bytes - FILE_HEADER_BYTES) % INDEX_RECORD.itemsize):
        yield Finding("leftover of a write", "leftover", path, segment.index_bytes - rest, f"{rest} bytes of a record")


def _described(record: np.void) -> str:
    return ", ".join(f"{name} {record[name]}" for name in ("offset", "timestamp_ms", "epoch", "type"))
