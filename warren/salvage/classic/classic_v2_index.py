"""The index of a classic queue's directory, version 2: what its ``.qi`` files say about each position.

Positions are read segment by segment: memory is that of one segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import attrs
import numpy as np

from warren.queue_index.index import directory as disk
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.message.message_format import MSG_ID_BYTES
from warren.salvage.classic.classic_directory import ClassicIndex
from warren.salvage.classic.segment_v2 import SegmentV2
from warren.salvage.queue_directory import SegmentColumns
from warren.salvage.read_only import below
from warren.storage.errors import DataError, StorageError

_HEADERS_ASKED = 16
"""Number of a directory's segments whose headers are read to find how many entries a segment has."""


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicV2Index(ClassicIndex[SegmentV2]):
    """Reads the index; see :class:`~warren.salvage.classic.classic_v2.ClassicV2Directory`."""

    def numbers(self) -> list[int]:
        """The numbers of the segments that have a file, in order."""
        return sorted(set(self._files()))

    def segments(self, only: range | None = None) -> Iterator[SegmentV2]:
        """The segments that have a file, in order; each is open until the next. ``only``: those with these numbers."""
        entry_count = self.entry_count()
        for number in self.numbers():
            if only is not None and number not in only:
                continue
            segment = SegmentV2.open(self.files, self.path, number, entry_count)
            try:
                yield segment
            finally:
                segment.close()

    def entry_count(self) -> int:
        """Entries of a segment, as most headers say; 4096 if no header can be read."""
        counts: Counter[int] = Counter()
        for number in self.numbers()[:_HEADERS_ASKED]:
            for suffix, magic in ((v2.INDEX_SUFFIX, v2.INDEX_MAGIC), (v2.STORE_SUFFIX, v2.STORE_MAGIC)):
                path = below(self.path, f"{number}{suffix}")
                try:
                    with closing(self.files.open_read(path)) as file:
                        count = v2.decode_header(file.pread(v2.HEADER_SIZE, 0), magic, path).entry_count(number)
                except (DataError, StorageError):
                    continue
                if count is not None:
                    counts[count] += 1
        most = max(counts.values(), default=0)
        likely = {count for count, times in counts.items() if times == most}
        return v2.DEFAULT_ENTRIES if v2.DEFAULT_ENTRIES in likely or not likely else max(likely)

    def strange_files(self) -> list[str]:
        """The names of files that belong to no segment."""
        return sorted(set(self.files.list(self.path)) - {name for names in self._files().values() for name in names})

    def _files(self) -> dict[int, list[str]]:
        names: dict[int, list[str]] = {}
        for name in self.files.list(self.path):
            number = disk.segment_number_v2(name)
            if number is not None and (number + 1) * v2.MAX_ENTRIES <= v2.MAX_POSITION:
                names.setdefault(number, []).append(name)
        return names

    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        return (self.columns_of(segment, stored=stored) for segment in self.segments(only))

    def columns_of(self, segment: SegmentV2, *, stored: bool = False) -> SegmentColumns:
        """A row for each entry that was written; an acked one still has all of its bytes but the status."""
        written = segment.live | segment.acked
        rel_seqs = np.flatnonzero(written & segment.elsewhere if stored else written)
        count, entries, seq_ids = len(rel_seqs), segment.entries[rel_seqs], segment.first_seq_id + rel_seqs
        persistent, redelivered = segment.persistent[rel_seqs], self.redelivered(seq_ids)
        elsewhere = segment.elsewhere[rel_seqs]
        return SegmentColumns(
            seq_ids=seq_ids,
            msg_ids=np.ascontiguousarray(entries["msg_id"]).view(np.uint8).reshape(count, MSG_ID_BYTES),
            has_msg_id=elsewhere,
            persistent=persistent,
            delivered=redelivered,
            acked=segment.acked[rel_seqs],
            expiries_us=entries["expiry_us"].astype(np.uint64),
            sizes=entries["size"].astype(np.int64),
            embedded=segment.here[rel_seqs],
            in_journal=np.zeros(count, np.bool_),
            paths=(segment.path,),
            path_of=np.zeros(count, np.int8),
            offsets=segment.entry_offsets(rel_seqs),
            live=segment.live[rel_seqs],
            restored=persistent & self.seen(seq_ids),
            redelivered=redelivered,
            stored=elsewhere,
            inside=segment.inside[rel_seqs],
            encoded_sizes=entries["length"].astype(np.int64),
            segment=segment,
        )
