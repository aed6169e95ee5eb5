"""The bodies of a store that messages refer to: those with a reference count, which is not on disk, above 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import attrs
import numpy as np

from warren.msg_store.rdq.rdq_format import MSG_ID_BYTES, EndReason, Record
from warren.msg_store.rdq.store_reader import StoreReader
from warren.queue_index.index.record_format import Bools, Ints
from warren.salvage.queue_directory import MSG_IDS, MsgIds
from warren.salvage.vhost import Vhost
from warren.storage.columns import distinct

_BATCH = 8192


def _is_empty(store: StoreReader) -> bool:
    """Whether it has no records, and no bytes that a scan did not reach."""
    are_clean = all(end.reason is EndReason.CLEAN for end in store.ends.values())
    return are_clean and next(store.records(), None) is None


@attrs.define
class FileTally:
    """A store file in numbers."""

    messages: int = 0
    """Good records."""
    valid_bytes: int = 0
    """Of the records that are needed; each message counts once, in the file where it would be read: the last one."""


@attrs.frozen(eq=False, repr=False)
class NeededBodies:
    """A set of msg_ids: 16 bytes each, sorted."""

    _ids: MsgIds

    @classmethod
    def of(cls, vhost: Vhost, store: str) -> NeededBodies:
        """The bodies in that store of the vhost that unacked messages of its queues refer to.

        If the store is empty, the queues are not read. Both stores are empty if all messages are small, and the one of
        transient messages nearly always is.
        """
        if _is_empty(vhost.store(store)):
            return cls(np.empty(0, MSG_IDS))
        return cls(distinct(vhost.needed(store, all_or_none=True)))

    def are_all_in(self, store: StoreReader) -> bool:
        """Whether the store has every one of them. This makes it search for those that no scan reached."""
        return bool(store.contains_each(self._ids).all())

    def mark(self, records: Iterable[tuple[str, Record]]) -> Iterator[tuple[str, Record, bool]]:
        """Every record of a store (file name, record), and whether its message is needed."""
        for batch, is_needed, _ in self._looked_up(records):
            for (name, record), needed in zip(batch, is_needed.tolist(), strict=True):
                yield name, record, needed

    def orphans(self, store: StoreReader) -> Iterator[tuple[str, Record]]:
        """The unreferenced good records in a store, with the names of their files; each message once."""
        self.are_all_in(store)
        ids = bytearray()
        for _, record in self._orphans(store):
            ids += record.msg_id
        ordered = np.sort(np.frombuffer(ids, MSG_IDS))
        repeated = ordered[1:][ordered[1:] == ordered[:-1]].tobytes()
        repeated_ids = {repeated[at : at + MSG_ID_BYTES]: False for at in range(0, len(repeated), MSG_ID_BYTES)}
        for name, record in self._orphans(store):
            if not repeated_ids.get(record.msg_id, False):
                if record.msg_id in repeated_ids:
                    repeated_ids[record.msg_id] = True
                yield name, record

    def _orphans(self, store: StoreReader) -> Iterator[tuple[str, Record]]:
        return (
            (name, record) for name, record, is_needed in self.mark(store.records()) if record.good and not is_needed
        )

    def tally(self, store: StoreReader) -> dict[str, FileTally]:
        """The store's files by name, oldest first."""
        self.are_all_in(store)
        names = list(store.ends)
        numbers = {name: number for number, name in enumerate(names)}
        tallies = [FileTally() for _ in names]
        file_of, size_of = np.zeros(len(self._ids), np.int64), np.zeros(len(self._ids), np.int64)
        good = ((name, record) for name, record in store.records() if record.good)
        for batch, is_needed, rows in self._looked_up(good):
            files = [numbers[name] for name, _ in batch]
            for file, count in enumerate(np.bincount(files, minlength=len(names)).tolist()):
                tallies[file].messages += count
            # if a row comes twice, the last assignment counts
            file_of[rows[is_needed]] = np.array(files, np.int64)[is_needed]
            size_of[rows[is_needed]] = np.array([record.size for _, record in batch], np.int64)[is_needed]
        for file, tally in enumerate(tallies):
            tally.valid_bytes = int(size_of[file_of == file].sum())
        return dict(zip(names, tallies, strict=True))

    def _looked_up(
        self, records: Iterable[tuple[str, Record]]
    ) -> Iterator[tuple[list[tuple[str, Record]], Bools, Ints]]:
        """Records in batches: which of them are needed, and their ids' places in the set."""
        pending = iter(records)
        while batch := list(islice(pending, _BATCH)):
            ids = np.frombuffer(b"".join([record.msg_id for _, record in batch]), MSG_IDS)
            if not len(self._ids):
                yield batch, np.zeros(len(batch), np.bool_), np.zeros(len(batch), np.int64)
                continue
            rows: Ints = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            yield batch, self._ids[rows] == ids, rows
