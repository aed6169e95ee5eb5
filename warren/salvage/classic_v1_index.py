"""The index of a classic queue's directory, version 1, as columns: journal and segments put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from warren.queue_index.entries import DELIVERED, NOTHING, PUBLISHED
from warren.queue_index.record_format import Ints
from warren.salvage.classic_v1_findings import walk
from warren.salvage.positions import Positions
from warren.salvage.queue_directory import Finding, IndexColumns

if TYPE_CHECKING:
    from warren.salvage.classic_v1 import ClassicV1Directory


def of_directory(queue: ClassicV1Directory, only: range | None = None) -> Iterator[IndexColumns | Finding]:
    """A row for each position that has a publish, segment by segment; ``only``: of these segments."""
    for one in walk(queue, only):
        if isinstance(one, Finding):
            yield one
            continue
        known = np.flatnonzero((one.facts & PUBLISHED != 0) | one.published_in_journal)
        if len(known):
            yield _columns(one, known)


def _columns(positions: Positions, rel_seqs: Ints) -> IndexColumns:
    count = len(rel_seqs)
    bodies = positions.bodies(rel_seqs)
    facts = positions.facts[rel_seqs]
    from_file = positions.from_file[rel_seqs]
    body_at = np.where(from_file, positions.in_file.body_at[rel_seqs], positions.in_journal.body_at[rel_seqs])
    heads = np.where(from_file, positions.file.layout.head_size, positions.journal.layout.head_size)
    gone = facts == NOTHING  # published, delivered and acked within the journal
    return IndexColumns(
        seq_ids=positions.first_seq_id + rel_seqs,
        msg_ids=np.ascontiguousarray(bodies["msg_id"]).view(np.uint8).reshape(count, -1),
        has_msg_id=np.ones(count, np.bool_),
        persistent=positions.persistent[rel_seqs],
        delivered=(facts & DELIVERED != 0) | gone,
        acked=positions.acked[rel_seqs],
        expiries_us=bodies["expiry_us"].astype(np.uint64),
        sizes=bodies["size"].astype(np.int64),
        embedded=positions.embedded_sizes[rel_seqs] > 0,
        in_journal=~from_file,
        paths=(positions.file.path, positions.journal.path),
        path_of=(~from_file).astype(np.int8),
        offsets=body_at - heads,
    )
