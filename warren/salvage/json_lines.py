"""Messages as JSON, an object on a line.

::

    {"vhost", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry_us", "size", "exchange", "routing_keys",
     "properties", "headers", "body", "body_sha256"}           and "acked": true or "orphan": true, if it is

For a quorum queue ``seq_id`` is the index in its log, and ``delivery_count`` follows ``expiry_us``: how often the
message came back; it is not put into the headers. For a stream ``seq_id`` is the offset, and ``stream_offset``, the
same, follows ``expiry_us``; it is not put into the headers either.

``msg_id`` (null in quorum queues and streams) and ``body_sha256`` are hexadecimal, ``body`` base64, ``expiry_us``
microseconds since the epoch or null. ``properties`` holds those that are set, under AMQP's names; ``headers`` an object
or null. What JSON cannot express is written as :func:`warren.queue_index.properties.to_json` does it; names:
:mod:`warren.salvage.names`. If the properties cannot be restored from that, byte for byte, ``encoded_properties``
follows the headers: all of them as AMQP encodes them, in base64.

With text, ``body_encoding`` follows the body: ``string`` for a body that is UTF-8 and is written as it is, else
``base64``.

The lines of a uniform batch differ in five columns: seq_id, msg_id, expiry, body and digest, and in ``position`` if
lines have one. They are written as a matrix of text, a row a line. The numbers of a column must have the same number of
digits in all rows; the batch is cut where it changes.
"""

from __future__ import annotations

from binascii import b2a_base64, hexlify
from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.envelopes import Envelope
from warren.salvage.message_batches import MessageBatch, MixedBatch, UniformBatch
from warren.salvage.names import to_json, to_text
from warren.salvage.rocketmq.record_lines import body_text, record_line

Text = npt.NDArray[np.uint8]
Write = Callable[[bytes | bytearray], object]

PIECE_BYTES: Final = 3 << 18
"""A larger body is turned into base64 in pieces of this size, a multiple of 3."""

WORDS: Final = (b"false", b"true")
FLAGS: Final = {
    (persistent, redelivered): b'", "persistent": %b, "redelivered": %b, "expiry_us": '
    % (WORDS[persistent], WORDS[redelivered])
    for persistent in (False, True)
    for redelivered in (False, True)
}
"""The text between the msg_id and the expiry."""
_FLAGS_WITHOUT_ID: Final = {flags: between.removeprefix(b'"') for flags, between in FLAGS.items()}
"""The same after ``null``."""
_BEFORE_ID: Final = b', "msg_id": "'


class JsonLines:
    """Writes lines, perhaps in pieces. ``node``: lines begin with it and their positions; ``None``: with neither.

    ``with_text``: bodies that are UTF-8 are written as text, and every line says how its body is written.
    """

    def __init__(self, write: Write, node: str | None = None, *, with_text: bool = False) -> None:
        self._write = write
        self._with_text = with_text
        self._node = None if node is None else b'{"node": %b, "position": ' % to_json(node)

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Messages of a queue."""
        begin = b"{" if self._node is None else b", "
        head = b'%b"vhost": %b, "queue": %b, "seq_id": ' % (begin, to_json(to_text(vhost)), to_json(to_text(queue)))
        if isinstance(batch, UniformBatch) and not self._with_text:
            self._uniform(head, batch)
        else:
            self._mixed(head, batch.mixed())

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to; it has no position."""
        msg_id = orphan.msg_id.hex() or None
        head = b'{"vhost": %b, "queue": %b, "seq_id": null, "msg_id": %b' % tuple(map(to_json, (*orphan.names, msg_id)))
        flags = b', "persistent": %b, "redelivered": null, "expiry_us": null' % WORDS[orphan.persistent]
        end = b'", "orphan": true}\n'
        for piece in json_line((head, flags), orphan.envelope, orphan.body, end, with_text=self._with_text):
            self._write(piece)

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""
        line = record_line(record, with_text=self._with_text)
        self._write(line if self._node is None else b"%b%d, %b" % (self._node, position, line[1:]))

    def line(self, line: bytes) -> None:
        """A line that is no message."""
        self._write(line)

    def flush(self) -> None:
        """Nothing is buffered."""

    def _mixed(self, head: bytes, batch: MixedBatch) -> None:
        node, write = self._node, self._write
        for row in batch.rows:
            start = (
                head if node is None else b"%b%d%b" % (node, row.position, head),
                b"%d" % row.seq_id,
                *((_BEFORE_ID, hexlify(row.msg_id)) if row.msg_id else (b', "msg_id": null',)),
                (FLAGS if row.msg_id else _FLAGS_WITHOUT_ID)[row.persistent, row.redelivered],
                b"%d" % row.expiry_us if row.expiry_us else b"null",
                b"" if row.delivery_count is None else b', "delivery_count": %d' % row.delivery_count,
                b"" if row.stream_offset is None else b', "stream_offset": %d' % row.stream_offset,
            )
            end = b'", "acked": true}\n' if row.acked else b'"}\n'
            for piece in json_line(start, row.envelope, row.body, end, with_text=self._with_text):
                write(piece)

    def _uniform(self, head: bytes, batch: UniformBatch) -> None:
        run = batch.run
        after_expiry = b', "size": %d, ' % batch.size + batch.envelope.json + b'"body": "'
        positions = np.arange(batch.first_position, batch.first_position + len(batch), dtype=np.int64)
        expiries = run.expiries_us.astype(np.int64)
        numbers = [run.seq_ids, expiries] if self._node is None else [positions, run.seq_ids, expiries]
        digests = batch.digests()
        for rows in _same_digits(*numbers):
            bodies = batch.bodies[rows]
            columns = [
                *(() if self._node is None else (self._node, _digits(positions[rows]))),
                head,
                _digits(run.seq_ids[rows]),
                _BEFORE_ID,
                _hexadecimal(run.msg_ids[rows]),
                FLAGS[True, run.redelivered],
                _digits(expiries[rows]) if expiries[rows][0] else b"null",
                after_expiry,
                *_base64(bodies),
                b'", "body_sha256": "',
                _hexadecimal(digests[rows]),
                b'"}\n',
            ]
            self._write(_side_by_side(len(bodies), columns))


def json_line(
    start: tuple[bytes, ...], envelope: Envelope, body: bytes | memoryview, end: bytes, *, with_text: bool = False
) -> Iterable[bytes]:
    """A message as a line, in pieces, between ``start`` and ``end``."""
    size = len(body)
    if with_text:
        text, encoding = body_text(body)
        start = (*start, b', "size": %d, ' % size, envelope.json, b'"body": ', to_json(text))
        middle_of_end = b', "body_encoding": "%b", "body_sha256": "' % encoding.encode()
        return (b"".join((*start, middle_of_end, sha256(body).hexdigest().encode(), end)),)
    start = (*start, b', "size": %d, ' % size, envelope.json, b'"body": "')
    end = b"".join((b'", "body_sha256": "', sha256(body).hexdigest().encode(), end))
    if size <= PIECE_BYTES:
        return (b"".join((*start, b2a_base64(body, newline=False), end)),)
    middle = (b2a_base64(body[at : at + PIECE_BYTES], newline=False) for at in range(0, size, PIECE_BYTES))
    return chain(start, middle, (end,))


def _same_digits(*columns: npt.NDArray[np.int64]) -> list[slice]:
    """Slices of rows whose numbers have the same number of digits in every column."""
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        powers = np.searchsorted(_POWERS, column, "right")
        changes |= powers[1:] != powers[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in pairwise(edges)]


_POWERS: Final = 10 ** np.arange(19, dtype=np.int64)
_FOUR_DIGITS: Final = (
    (np.arange(10_000)[:, None] // _POWERS[3::-1] % 10 + ord("0")).astype(np.uint8).view(np.uint32)[:, 0]
)
"""The numbers below 10,000 as text, each in the four bytes of an integer."""


def _digits(numbers: npt.NDArray[np.int64]) -> Text:
    """Numbers with the same number of digits, in decimal: four digits at a time, the last ones first."""
    count = len(str(int(numbers[0])))
    words = -(-count // 4)
    text = np.empty((len(numbers), words), np.uint32)
    for word in reversed(range(words)):
        numbers, last = np.divmod(numbers, 10_000)
        text[:, word] = _FOUR_DIGITS[last]
    return text.view(np.uint8)[:, 4 * words - count :]


def _hexadecimal(rows: Text) -> Text:
    return np.frombuffer(hexlify(rows.data), np.uint8).reshape(len(rows), -1)


def _base64(bodies: Text) -> tuple[Text, bytes]:
    """All rows in one call, padded with zeros to a multiple of 3; and the padding signs that replace the last
    letters."""
    missing = -bodies.shape[1] % 3
    padded = np.pad(bodies, ((0, 0), (0, missing))) if missing else bodies
    text = np.frombuffer(b2a_base64(padded.data, newline=False), np.uint8).reshape(len(bodies), -1)
    return text[:, : text.shape[1] - missing], b"=" * missing


def _side_by_side(count: int, columns: list[bytes | Text]) -> bytearray:
    """The parts that all lines share are written in one copy; then the columns are written into the gaps."""
    line = b"".join([column if isinstance(column, bytes) else bytes(column.shape[1]) for column in columns])
    lines = bytearray(line) * count
    at = 0
    for column in columns:
        if isinstance(column, bytes):
            at += len(column)
        else:
            width = column.shape[1]
            np.ndarray((count, width), np.uint8, lines, at, (len(line), 1))[:] = column
            at += width
    return lines
