"""The lines of many messages of one length at once: a matrix of text, a row a line.

Messages of one publisher and one length differ in body and id alone. Then their lines of JSON differ in five columns:
seq_id, msg_id, expiry, body and digest; all else is written once, for all rows. Lines that are numbered have a sixth.
Numbers have one number of digits in a matrix; where they have not, the stretch is cut.
"""

from __future__ import annotations

from binascii import b2a_base64, hexlify
from hashlib import sha256
from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from queue_index.message_format import MSG_ID_BYTES, locate_body
from storage.errors import MessageError
from warren.salvage.message_json import FLAGS, MessageJson
from warren.salvage.queue_directory import Stretch

Text = npt.NDArray[np.uint8]
_BETWEEN: Final = b', "msg_id": "'


@attrs.frozen
class Lines:
    """Finished lines, in pieces, and what they hold."""

    count: int
    payload_bytes: int
    pieces: list[bytes]


def stretch_lines(
    queue: bytes, stretch: Stretch, shapes: MessageJson, numbered: tuple[bytes, int] | None = None
) -> Lines | None:
    """The lines of a stretch, each beginning with ``queue``; ``None``: its messages differ in more than body and id.

    ``numbered``: what stands in front of that, and the number behind it of the first line.
    """
    bodies_of_all = alike_bodies(stretch)
    if bodies_of_all is None:
        return None
    size = bodies_of_all.shape[1]
    try:
        envelope, _ = shapes.split(stretch.encoded[0].tobytes())
    except MessageError:
        return None
    after_expiry = b', "size": %d, ' % size + envelope + b'"body": "'
    pieces = []
    expiries = stretch.expiries_us.astype(np.int64)
    before, first_number = (b"", 0) if numbered is None else numbered
    numbers = np.arange(first_number, first_number + len(stretch.seq_ids), dtype=np.int64)
    varying = [stretch.seq_ids, expiries] if numbered is None else [numbers, stretch.seq_ids, expiries]
    for rows in _same_digits(*varying):
        bodies = np.ascontiguousarray(bodies_of_all[rows])
        columns = [
            *((before, _digits(numbers[rows])) if numbered is not None else ()),
            queue,
            _digits(stretch.seq_ids[rows]),
            _BETWEEN,
            _hexadecimal(stretch.msg_ids[rows]),
            FLAGS[True, stretch.redelivered],
            _digits(expiries[rows]) if expiries[rows][0] else b"null",
            after_expiry,
            _base64(bodies),
            b'", "body_sha256": "',
            _digests(bodies),
            b'"}\n',
        ]
        pieces.append(_side_by_side(len(bodies), columns))
    return Lines(len(stretch.seq_ids), size * len(stretch.seq_ids), pieces)


def alike_bodies(stretch: Stretch) -> Text | None:
    """A row each; ``None``: the messages differ in more than body and id, or have no body."""
    first = stretch.encoded[0].tobytes()
    place = locate_body(first)
    if place is None or not place[1]:
        return None
    body_at, size, id_at = place
    for low, high in ((0, body_at), (body_at + size, id_at), (id_at + MSG_ID_BYTES, len(first))):
        if not (stretch.encoded[:, low:high] == stretch.encoded[0, low:high]).all():
            return None
    return stretch.encoded[:, body_at : body_at + size]


def _same_digits(*columns: npt.NDArray[np.int64]) -> list[slice]:
    """Stretches of rows whose numbers have as many digits, in every column, as those of the row before."""
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        powers = np.searchsorted(_POWERS, column, "right")
        changes |= powers[1:] != powers[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in pairwise(edges)]


_POWERS: Final = 10 ** np.arange(19, dtype=np.int64)


def _digits(numbers: npt.NDArray[np.int64]) -> Text:
    """Numbers of as many digits each, in decimal."""
    count = len(str(int(numbers[0])))
    return (numbers[:, None] // _POWERS[count - 1 :: -1] % 10 + ord("0")).astype(np.uint8)


def _hexadecimal(rows: Text) -> Text:
    return np.frombuffer(hexlify(rows.tobytes()), np.uint8).reshape(len(rows), -1)


def _digests(bodies: Text) -> Text:
    data, size = bodies.tobytes(), bodies.shape[1]
    digests = b"".join([sha256(data[at : at + size]).digest() for at in range(0, len(data), size)])
    return np.frombuffer(hexlify(digests), np.uint8).reshape(len(bodies), -1)


def _base64(bodies: Text) -> Text:
    """All rows in one go: padded with zeros to a multiple of 3, whose last letters then are the padding sign's."""
    missing = -bodies.shape[1] % 3
    padded = np.pad(bodies, ((0, 0), (0, missing))) if missing else bodies
    text = np.frombuffer(b2a_base64(padded.tobytes(), newline=False), np.uint8).reshape(len(bodies), -1)
    if missing:
        text = text.copy()
        text[:, -missing:] = ord("=")
    return text


def _side_by_side(count: int, columns: list[bytes | Text]) -> bytes:
    widths = [len(column) if isinstance(column, bytes) else column.shape[1] for column in columns]
    lines = np.empty((count, sum(widths)), np.uint8)
    at = 0
    for column, width in zip(columns, widths, strict=True):
        lines[:, at : at + width] = np.frombuffer(column, np.uint8) if isinstance(column, bytes) else column
        at += width
    return lines.tobytes()
