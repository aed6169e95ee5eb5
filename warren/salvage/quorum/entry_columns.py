"""A quorum queue's log as columns: the messages that were written to it, left in the queue or not.

The log is read twice: once to replay what is left in the queue, then for its messages. Memory is 16
bytes for each message that is left, beside what the replay needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message.message_format import MSG_ID_BYTES, message_facts
from warren.salvage.queue_directory import IndexColumns
from warren.salvage.quorum.fifo.commands import Enqueue, Requeue
from warren.salvage.quorum.member import Member, encoded_in
from warren.storage.errors import MessageError, TermError

if TYPE_CHECKING:
    from warren.salvage.quorum.fifo.machine import QuorumMachine
    from warren.salvage.quorum.ra.entry_runs import LogEntry

_ROWS: Final = 4096
_PATHS: Final = 64
"""Maximum number of files for the rows of one batch."""


@attrs.frozen(eq=False, repr=False)
class Left:
    """The messages that are left in the queue, by index."""

    indexes: npt.NDArray[np.int64]
    expiries_us: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, machine: QuorumMachine) -> Left:
        facts = ((queued.index, (queued.expiry_ms or 0) * 1000) for queued in machine.ready())
        table = np.fromiter(facts, [("index", np.int64), ("expiry_us", np.uint64)], machine.ready_count)
        table.sort(order="index")
        return cls(table["index"].copy(), table["expiry_us"].copy())

    def among(self, seq_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """Which messages are left, and when they expire."""
        at = np.searchsorted(self.indexes, seq_ids)
        inside = at < len(self.indexes)
        are_left = np.zeros(len(seq_ids), np.bool_)
        are_left[inside] = self.indexes[at[inside]] == seq_ids[inside]
        expiries_us = np.zeros(len(seq_ids), np.uint64)
        expiries_us[are_left] = self.expiries_us[at[are_left]]
        return are_left, expiries_us


@attrs.define
class _PendingEntries:
    """Entries that are collected for a batch."""

    seq_ids: list[int] = attrs.Factory(list)
    msg_ids: list[bytes] = attrs.Factory(list)
    persistent: list[bool] = attrs.Factory(list)
    sizes: list[int] = attrs.Factory(list)
    paths: dict[str, int] = attrs.Factory(dict)
    path_of: list[int] = attrs.Factory(list)
    offsets: list[int] = attrs.Factory(list)

    @property
    def is_full(self) -> bool:
        return len(self.seq_ids) >= _ROWS or len(self.paths) >= _PATHS

    def add(self, entry: LogEntry, command: Enqueue | Requeue) -> None:
        try:
            msg_id, persistent = message_facts(encoded_in(entry, command))
        except (MessageError, TermError):  # the reader of the message reports it
            msg_id, persistent = b"", True
        self.seq_ids.append(entry.index)
        self.msg_ids.append(msg_id)
        self.persistent.append(persistent)
        self.sizes.append(command.body.size)
        self.path_of.append(self.paths.setdefault(entry.path, len(self.paths)))
        self.offsets.append(entry.offset)

    def columns(self, left: Left) -> IndexColumns:
        count, seq_ids = len(self.seq_ids), np.array(self.seq_ids, np.int64)
        are_left, expiries_us = left.among(seq_ids)
        ids = b"".join(msg_id.ljust(MSG_ID_BYTES, b"\0")[:MSG_ID_BYTES] for msg_id in self.msg_ids)
        return IndexColumns(
            seq_ids=seq_ids,
            msg_ids=np.frombuffer(ids, np.uint8).reshape(count, MSG_ID_BYTES),
            has_msg_id=np.array([len(msg_id) == MSG_ID_BYTES for msg_id in self.msg_ids]),
            persistent=np.array(self.persistent),
            delivered=None,
            acked=~are_left,
            expiries_us=expiries_us,
            sizes=np.array(self.sizes, np.int64),
            embedded=np.ones(count, np.bool_),
            in_journal=np.zeros(count, np.bool_),
            paths=tuple(self.paths),
            path_of=np.array(self.path_of, np.int8),
            offsets=np.array(self.offsets, np.int64),
        )


def of_member(member: Member, left: Left) -> Iterator[IndexColumns]:
    """A row for each entry that holds a message, by index."""
    rows = _PendingEntries()
    for entry, command in member.commands():
        if isinstance(command, Enqueue | Requeue):
            rows.add(entry, command)
            if rows.is_full:
                yield rows.columns(left)
                rows = _PendingEntries()
    if rows.seq_ids:
        yield rows.columns(left)
