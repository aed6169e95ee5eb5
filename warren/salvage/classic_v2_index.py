"""The index of a classic queue's directory, version 2, as columns: what its ``.qi`` files say of each position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from warren.queue_index.message_format import MSG_ID_BYTES
from warren.salvage.classic_v2_findings import walk
from warren.salvage.queue_directory import Finding, IndexColumns
from warren.salvage.segment_v2 import SegmentV2

if TYPE_CHECKING:
    from warren.salvage.classic_v2 import ClassicV2Directory


def of_directory(queue: ClassicV2Directory, only: range | None = None) -> Iterator[IndexColumns | Finding]:
    """A row for each entry that was written, segment by segment; ``only``: of these segments.

    Of an acked entry all bytes but the status are still there.
    """
    for one in walk(queue, only):
        if isinstance(one, Finding):
            yield one
            continue
        columns = _columns(queue, one)
        if len(columns):
            yield columns


def _columns(queue: ClassicV2Directory, segment: SegmentV2) -> IndexColumns:
    rel_seqs = np.flatnonzero(segment.live | segment.acked)
    count, entries = len(rel_seqs), segment.entries[rel_seqs]
    seq_ids = segment.first_seq_id + rel_seqs
    return IndexColumns(
        seq_ids=seq_ids,
        msg_ids=np.ascontiguousarray(entries["msg_id"]).view(np.uint8).reshape(count, MSG_ID_BYTES),
        has_msg_id=segment.elsewhere[rel_seqs],
        persistent=segment.persistent[rel_seqs],
        delivered=queue.redelivered(seq_ids),
        acked=segment.acked[rel_seqs],
        expiries_us=entries["expiry_us"].astype(np.uint64),
        sizes=entries["size"].astype(np.int64),
        embedded=segment.here[rel_seqs],
        in_journal=np.zeros(count, np.bool_),
        paths=(segment.path,),
        path_of=np.zeros(count, np.int8),
        offsets=segment.entry_offsets(rel_seqs),
    )
