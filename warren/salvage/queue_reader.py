"""What inspect, export and verify ask of one queue's directory.

A format is one class that implements :class:`QueueDirectory`; :mod:`warren.salvage.vhost` chooses it by the files in a
directory. It provides the columns of its index, segment by segment, and reports damage. The rest is here: which
messages are delivered, their bodies (from the queue's own files or from the vhost's store), their number, and their
references to the store.

Each call reads everything again and returns a stream: a directory may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from warren.queue_index.index.record_format import Ints
from warren.queue_index.message.message_format import MSG_ID_BYTES, decode_message, locate_body
from warren.queue_index.message.message_template import MessageTemplate
from warren.salvage.classic.message_runs import RUN_MESSAGES, cut_runs
from warren.salvage.classic.needed_body import Reference, contents_of, contradictions, with_bodies
from warren.salvage.queue_directory import (
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MessageRun,
    MsgIds,
    OnFinding,
    SegmentColumns,
    StoredMessage,
    Summary,
    UnindexedMessage,
    missing_body,
)
from warren.storage.errors import MessageError

_NO_EXPIRY_US: Final = 1 << 63
"""No broker writes such an expiry, and columns cannot hold it."""


class QueueDirectory(Protocol):
    """One queue's directory. A level of a priority queue is a queue of its own."""

    # ── what a format brings ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def kind(self) -> str:
        """The format, for people and programs: ``rabbitmq-classic-v1``."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> bytes:
        """As it is stored: the name of a priority queue's level ends in NUL and the level."""

    @property
    def bodies(self) -> BodySource:
        """The vhost's persistent store."""

    def extent(self) -> Extent:
        """By the names and sizes of its files alone."""

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        """Counts what :meth:`messages` would give, without reading bodies.

        ``report`` is called with all damage that the count shows: messages may be missing from it.
        """

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        """All messages in its own files, by seq_ids, and all damage in these files that affects which there are.
        Nothing is looked up in the store. ``only``: these segments."""

    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        """The segments, each open until the next one comes, without a check for damage. Empty if it has no segments.

        ``stored``: only the messages in the vhost's store.
        """
        return iter(())

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        """What a restarted broker would deliver, in order: the columns of an open segment, or messages that had to be
        read anyway; and all damage in the queue's files that affects which messages are delivered."""

    def own_findings(self) -> Iterator[Finding | Reference]:
        """All damage and leftovers that this directory's own files show, and the references of unacked messages to the
        store."""

    def unindexed_messages(self) -> Iterator[UnindexedMessage]:
        """The messages in its own store without an index entry; empty if it has no such store."""
        return iter(())

    # ── what follows from it ─────────────────────────────────────────────────────────────────────────────────────────

    def messages(self, *, include_acked: bool = False) -> Iterator[StoredMessage | Finding]:
        """What a restarted broker would deliver, in order; a message that cannot be read is a finding in its place,
        and so is all damage in the queue's files that affects which messages are delivered.

        ``include_acked``: acked persistent messages too, as far as they are still there; missing ones are no finding.
        """
        for run in self.message_runs(include_acked=include_acked):
            if isinstance(run, MessageRun):
                yield from run.messages()
            else:
                yield run

    def message_runs(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | MessageRun | Finding]:
        """The same, with messages of one length together if there are many; ``only``: these segments."""
        for delivery in self.deliveries(only, include_acked=include_acked):
            if isinstance(delivery, SegmentColumns):
                yield from _runs_of(delivery, self.bodies, include_acked=include_acked)
            elif not isinstance(delivery, Finding) or delivery.severity == "damage":
                yield delivery

    def count(self, only: range) -> int:
        """How many messages in these segments a restarted broker would deliver, without reading bodies."""
        return sum(len(self.present_rows(columns)) for columns in self.segment_columns(only))

    def present_rows(self, columns: SegmentColumns) -> Ints:
        """The rows that would be delivered, as far as that is known without reading the messages."""
        present, stored = columns.ready & columns.inside, np.flatnonzero(columns.ready & columns.stored)
        if len(stored):
            present[stored] = self.bodies.contains_each(columns.rows(stored).store_ids())
        return np.flatnonzero(present)

    def ready_sizes(self, columns: SegmentColumns) -> Ints:
        """The payload sizes of the rows that :meth:`present_rows` returns."""
        return columns.sizes[self.present_rows(columns)]

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        """What a restarted broker would deliver, by segment: how many messages in the queue's own files, and the ids
        that it looks up in the store."""
        for columns in self.segment_columns(only):
            ready = columns.ready
            yield int((ready & columns.inside).sum()), columns.store_ids(ready & columns.stored)

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        """The bodies in the vhost's store (of persistent or of transient messages) that unacked messages need."""
        for columns in self.segment_columns(stored=True):
            yield columns.store_ids(columns.live & (columns.persistent == persistent))

    def knows_references(self) -> bool:
        """Whether :meth:`references` is complete: a file that cannot be read may have more."""
        return True

    def findings(self) -> Iterator[Finding]:
        """All that is damaged or left over in this directory, bodies that are missing in the store included."""
        return with_bodies(self.own_findings(), self.bodies)


def _runs_of(
    columns: SegmentColumns, bodies: BodySource, *, include_acked: bool
) -> Iterator[StoredMessage | MessageRun | Finding]:
    """The messages of a segment that are delivered."""
    selected = columns.restored & (columns.live | columns.acked) if include_acked else columns.ready
    chosen = columns if selected.all() else columns.rows(np.flatnonzero(selected))
    sizes = np.where(chosen.stored, chosen.sizes, chosen.encoded_sizes)
    single = chosen.acked | ~(chosen.stored | chosen.inside)
    for part, is_run in cut_runs(sizes, single, chosen.stored, (chosen.redelivered, chosen.path_of)):
        its_columns = chosen.rows(part)
        run = _run(its_columns, bodies) if is_run else None
        if run is not None:
            yield run
        else:
            for _, message in messages_of(its_columns, bodies):
                yield message


def _run(columns: SegmentColumns, bodies: BodySource) -> MessageRun | None:
    """Uniform messages as columns; ``None``: they are better read one by one."""
    if len(columns) < RUN_MESSAGES or int(columns.expiries_us.max()) >= _NO_EXPIRY_US:
        return None
    is_stored = columns.stored[0]
    encoded = bodies.read_uniform(columns.store_ids()) if is_stored else columns.segment.read_uniform(columns)
    if encoded is None:
        return None
    msg_ids = columns.msg_ids
    if not columns.has_msg_id[0]:
        template = MessageTemplate.of(encoded[0].tobytes())
        if template is None or not template.fits(encoded):
            return None
        msg_ids = template.msg_ids(encoded)
    return MessageRun(
        seq_ids=columns.seq_ids,
        msg_ids=msg_ids,
        expiries_us=columns.expiries_us,
        redelivered=bool(columns.redelivered[0]),
        encoded=encoded,
        path=columns.paths[int(columns.path_of[0])],
        offsets=columns.offsets,
    )


def messages_of(columns: SegmentColumns, bodies: BodySource) -> Iterator[tuple[int, StoredMessage | Finding]]:
    """All rows one by one, each with its seq_id; acked messages that cannot be read are left out."""
    stored = columns.stored
    from_store = bodies.read_each(columns.store_ids(stored)) if stored.any() else iter(())
    own = columns.segment.read_each(columns if not stored.any() else columns.rows(np.flatnonzero(~stored)))
    rows = zip(
        columns.seq_ids.tolist(),
        _as_bytes(columns),
        stored.tolist(),
        columns.redelivered.tolist(),
        columns.acked.tolist(),
        columns.expiries_us.tolist(),
        [columns.paths[path] for path in columns.path_of.tolist()],
        columns.offsets.tolist(),
        strict=True,
    )
    for seq_id, msg_id, is_stored, redelivered, acked, expiry_us, path, offset in rows:
        encoded = next(from_store) if is_stored else next(own)
        if isinstance(encoded, bytes):
            its_id = _msg_id_of(encoded) if msg_id is None else msg_id
            yield seq_id, StoredMessage(seq_id, its_id, True, redelivered, acked, expiry_us, encoded, path, offset)
        elif acked:
            continue
        elif isinstance(encoded, Finding):
            yield seq_id, encoded
        elif msg_id is not None:
            yield seq_id, missing_body(path, offset, seq_id, msg_id, encoded)


def compared(columns: SegmentColumns, *, is_durable: bool) -> Iterator[Finding | Reference]:
    """Compare each message in the queue's own files with its record; yield a reference for each body in the vhost's
    store."""
    for part, is_run in cut_runs(columns.encoded_sizes, columns.stored, columns.stored, (columns.path_of,)):
        its_columns = columns.rows(part)
        if not is_run or not _all_agree(its_columns, is_durable=is_durable):
            yield from _compared_one_by_one(its_columns, is_durable=is_durable)


def _all_agree(columns: SegmentColumns, *, is_durable: bool) -> bool:
    """Whether these messages have one template and length, and each is the one that its record describes."""
    encoded = columns.segment.read_uniform(columns)
    template = None if encoded is None else MessageTemplate.of(encoded[0].tobytes())
    if encoded is None or template is None or not template.fits(encoded):
        return False
    first = contents_of(template.sample)
    ids_differ = (template.msg_ids(encoded) != columns.msg_ids).any(axis=1) & columns.has_msg_id
    return bool(
        first.problem is None
        and (columns.sizes == template.body_bytes).all()
        and not ids_differ.any()
        and (not is_durable or (columns.persistent == first.persistent).all())
    )


def _compared_one_by_one(columns: SegmentColumns, *, is_durable: bool) -> Iterator[Finding | Reference]:
    own = columns.segment.read_each(columns.rows(np.flatnonzero(~columns.stored)))
    rows = zip(
        columns.seq_ids.tolist(),
        _as_bytes(columns),
        columns.stored.tolist(),
        columns.persistent.tolist(),
        columns.sizes.tolist(),
        [columns.paths[path] for path in columns.path_of.tolist()],
        columns.offsets.tolist(),
        strict=True,
    )
    for seq_id, msg_id, is_stored, is_persistent, size, path, offset in rows:
        if is_stored and msg_id is not None:
            yield Reference(msg_id, is_persistent, seq_id, size, path, offset)
            continue
        encoded = next(own)
        if isinstance(encoded, Finding):
            yield encoded
            continue
        contents = contents_of(encoded)
        its_id = contents.msg_id if msg_id is None else msg_id
        for kind, detail in contradictions(contents, its_id, size, is_persistent if is_durable else None):
            yield Finding(kind, "damage", path, offset, f"message {seq_id}: {detail}")


def _as_bytes(columns: IndexColumns) -> list[bytes | None]:
    """The ids, as far as the index has them."""
    ids = np.ascontiguousarray(columns.msg_ids).reshape(-1).view(f"V{MSG_ID_BYTES}").tolist()
    if columns.has_msg_id.all():
        return ids
    return [msg_id if has_id else None for msg_id, has_id in zip(ids, columns.has_msg_id.tolist(), strict=True)]


def _msg_id_of(encoded: bytes) -> bytes:
    """The id in an encoded message; empty if it cannot be decoded, which the reader of the message reports."""
    place = locate_body(encoded)
    if place is not None:
        return encoded[place[2] : place[2] + MSG_ID_BYTES]
    try:
        return decode_message(encoded).msg_id
    except MessageError:
        return b""
