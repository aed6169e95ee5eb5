"""What producers sent: clients compress bodies, and a broker of version 5 keeps a batch of messages in one record.

A record's system flags say so::

    0x1              its body is compressed, by what 0x700 says: 0x000 and 0x300 zlib (4.9.3 has nothing else),
                     0x100 lz4 in frames, 0x200 zstd
    0x40 and 0x80    its body, once decompressed, is a batch: messages one after the other

A message of a batch; its queue offset is its place in the batch after the record's::

    0  size 4 | 4  0 | 8  0 | 12 flag 4 | 16 body length 4, body | properties length 2, properties

A record's size and checksum are those of the stored bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.compression import Compression, decompressed
from warren.storage.errors import MessageError

COMPRESSED: Final = 0x1
_COMPRESSION_MASK, _COMPRESSION_SHIFT = 0x700, 8
_COMPRESSIONS: Final[tuple[Compression, ...]] = ("zlib", "lz4", "zstd", "zlib")
BATCH: Final = 0x40 | 0x80
MOST_BODY_BYTES: Final = 64 << 20
"""Of a body, decompressed: 16 times what a producer may send by default. With more, few bytes fill the memory."""

_MESSAGE = struct.Struct(">i8xii")
"""Up to the body's length."""
_PROPERTIES_SIZE = struct.Struct(">h")


@attrs.frozen(kw_only=True)
class SentRecord(Record):
    """A message as its producer sent it, out of a record that holds it in another form."""

    stored_body: bytes
    """As it is in the record."""
    is_sound: bool
    """Whether the record's body fits its checksum."""

    @property
    def crc_ok(self) -> bool:
        return self.is_sound


def sent_body(sys_flag: int, body: bytes) -> bytes:
    """Return the body of a record with these flags, decompressed. Raises :class:`MessageError`."""
    if not sys_flag & COMPRESSED or not body:
        return body
    number = (sys_flag & _COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    if number >= len(_COMPRESSIONS):
        raise MessageError(f"the body has the unknown compression {number}")
    try:
        return decompressed(body, _COMPRESSIONS[number], MOST_BODY_BYTES)
    except MessageError as error:
        raise MessageError(f"the body is {error}") from error


def sent_records(record: Record) -> Sequence[Record]:
    """Return the messages of a record as they were sent: nearly always the record itself.

    Raises :class:`MessageError` if its body is not what its flags say.
    """
    if not record.sys_flag & (COMPRESSED | BATCH) or isinstance(record, SentRecord):
        return (record,)
    body = sent_body(record.sys_flag, record.body)
    fields = {field.name: getattr(record, field.name) for field in attrs.fields(Record)} | {"is_sound": record.crc_ok}
    if record.sys_flag & BATCH != BATCH:
        return (SentRecord(**(fields | {"body": body, "stored_body": record.body})),)
    messages = [
        {"size": size, "flag": flag, "body": body, "stored_body": body, "properties": properties}
        for size, flag, body, properties in batch_messages(body)
    ]
    return [
        SentRecord(**(fields | message | {"queue_offset": record.queue_offset + number}))
        for number, message in enumerate(messages)
    ]


def stored_body(record: Record) -> bytes:
    """The body as it is in the CommitLog."""
    return record.stored_body if isinstance(record, SentRecord) else record.body


def batch_messages(data: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Size, flag, body and properties of each message of a batch. Raises :class:`MessageError`."""
    position = 0
    while position < len(data):
        try:
            _, flag, body_size = _MESSAGE.unpack_from(data, position)
            body_start = position + _MESSAGE.size
            properties_start = body_start + body_size + _PROPERTIES_SIZE.size
            (properties_size,) = _PROPERTIES_SIZE.unpack_from(data, body_start + max(body_size, 0))
        except struct.error:
            raise MessageError("a message of the batch in the body is not all there") from None
        stop = properties_start + properties_size
        if body_size < 0 or properties_size < 0 or stop > len(data):
            raise MessageError("a message of the batch in the body is not all there")
        yield stop - position, flag, data[body_start : body_start + body_size], data[properties_start:stop]
        position = stop
