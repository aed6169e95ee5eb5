"""The bytes of a CommitLog record, and what they mean; both directions of the codec.

::

    0   total size 4     | 4   magic 0xDAA320A7 | 8  body CRC 4      | 12 queue id 4      | 16 flag 4
    20  queue offset 8   | 28  physical offset 8                     | 36 system flags 4
    40  born timestamp 8 | 48  born host 4+4 or 16+4 | store timestamp 8 | store host 4+4 or 16+4
    ..  reconsume times 4 | prepared transaction offset 8
    ..  body length 4, body | topic length 1, topic | properties length 2, properties

All integers are big-endian. A host is an address and a port; a system flag gives its width. Version 2 of the format,
which RocketMQ 5 writes for topics of more than 127 bytes, has the magic 0xDAA320AB and a topic length of 2 bytes. It is
read, and never written for a new message. The end of a file is a *blank record*: 4 bytes with the number of bytes left
in the file, and 4 bytes magic 0xCBD43194.

Properties are ``name \\x01 value`` joined by ``\\x02``. Their order cannot be reconstructed, so their bytes are kept as
they are.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from typing import Final

import attrs
import numpy as np
from zlib_ng.zlib_ng import crc32

from warren.storage.errors import WarrenError
from warren.storage.java_hash import java_text

MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
MESSAGE_MAGIC_V2: Final = 0xDAA320AB
MESSAGE_MAGICS: Final = (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
MESSAGE_MAGIC_PREFIX: Final = MESSAGE_MAGIC.to_bytes(4, "big")[:3]
"""The common prefix of the magics of all versions."""
BLANK_MAGIC_BYTES: Final = BLANK_MAGIC.to_bytes(4, "big")
BLANK_HEADER_BYTES: Final = 8
"""The size of a blank record's header, and the room that every file keeps for one."""

FIXED_BYTES: Final = 91
"""The size of a record with IPv4 hosts, an empty body, no topic and no properties."""
HOST_BYTES: Final = 8
"""The size of an IPv4 host."""
IPV6_EXTRA_BYTES: Final = 12

PREPARED: Final = 0x4
COMMIT: Final = 0x8
ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

MAX_TOPIC_BYTES: Final = 127
MAX_TOPIC_BYTES_V2: Final = 32767
MAX_PROPERTIES_BYTES: Final = 32767

NAME_VALUE_SEPARATOR: Final = b"\x01"
PROPERTY_SEPARATOR: Final = b"\x02"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"

_HOST_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6
_HEAD = struct.Struct(">IIIiiqqiq")
_BEGIN = struct.Struct(">iIIiiqqi44xi")
"""Up to the system flags, and where hosts are IPv4 the body's length."""
_TAIL = struct.Struct(">iqi")
_BLANK = struct.Struct(">II")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BYTE = struct.Struct(">b")
MAGIC_AT: Final = 4
CRC_AT: Final = 8
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
_PORTS: Final = range(1 << 16)

HEAD_BYTES: Final = _HEAD.size
"""Up to the born host."""
STORE_TIMESTAMP_STOP: Final = HEAD_BYTES + HOST_BYTES + IPV6_EXTRA_BYTES + _LONG.size
"""A record's store timestamp ends here at the latest; :func:`decode_store_timestamp` needs no more bytes."""

_FIXED = {
    flags: struct.Struct(f">iIIiiqqiq{20 if flags & BORN_HOST_V6 else 8}sq{20 if flags & STORE_HOST_V6 else 8}siqi")
    for flags in (0, BORN_HOST_V6, STORE_HOST_V6, _HOST_FLAGS)
}
"""The fields up to and including the body's length, by the flags that determine the hosts' widths."""
_FIXED_BYTES: Final = {flags: fixed.size for flags, fixed in _FIXED.items()}
_BEGIN_BYTES: Final = _BEGIN.size

if _FIXED_BYTES[0] != _BEGIN_BYTES or HEAD_BYTES != 48 or HEAD_BYTES + 8 + 8 + 8 + _TAIL.size + 1 + 2 != FIXED_BYTES:
    raise RuntimeError("the record's layout does not add up")


@attrs.frozen
class Host:
    """An address and a port, as a record keeps them."""

    address: bytes
    """4 or 16 bytes."""
    port: int

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    @property
    def packed(self) -> bytes:
        return self.address + self.port.to_bytes(4, "big", signed=True)

    def __str__(self) -> str:
        """``10.1.2.3:50123``; ``[2001:db8:0:0:0:0:0:1]:50555``: eight groups, no leading zeros."""
        if not self.is_v6:
            return f"{'.'.join(map(str, self.address))}:{self.port}"
        groups = (f"{self.address[at] << 8 | self.address[at + 1]:x}" for at in range(0, 16, 2))
        return f"[{':'.join(groups)}]:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Host:
        """The other way round; raises ``ValueError``."""
        address, _, port = text.rpartition(":")
        number = int(port)
        if number not in _PORTS:
            raise ValueError(f"no port: {port}")
        return cls(ipaddress.ip_address(address.strip("[]")).packed, number)


@attrs.frozen(kw_only=True)
class Record:
    """A message in the CommitLog. Times in milliseconds since 1970."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    """According to the record; not necessarily its actual offset."""
    size: int
    store_timestamp: int
    born_timestamp: int
    born_host: Host
    store_host: Host
    sys_flag: int
    flag: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes
    properties: bytes
    magic: int = MESSAGE_MAGIC
    """Of the version in which the record is stored: one of :data:`MESSAGE_MAGICS`."""

    @property
    def crc_ok(self) -> bool:
        """Whether the body is what it was when it was stored; one of no bytes always is."""
        return not self.body or body_crc(self.body) == self.body_crc

    def message_id(self) -> str:
        """Store host and physical offset, in upper-case hexadecimal digits; :func:`parse_message_id` reads it."""
        return (self.store_host.packed + (self.physical_offset & _MASK_64).to_bytes(8, "big")).hex().upper()


_MASK_64 = (1 << 64) - 1
CRC_MASK: Final = 0x7FFFFFFF
_ID_BYTES: Final = (4 + 4 + 8, 16 + 4 + 8)


def parse_message_id(message_id: str) -> tuple[Host, int]:
    """Store host and physical offset of a message with this id; raises :class:`RecordError`."""
    try:
        packed = bytes.fromhex(message_id)
    except ValueError:
        packed = b""
    if len(packed) not in _ID_BYTES:
        raise RecordError(f"no message id: {message_id!r:.100}; one has 32 or 56 hexadecimal digits")
    return _host(packed[:-8]), int.from_bytes(packed[-8:], "big", signed=True)


@attrs.frozen
class Blank:
    """The filler at the end of a file: ``size`` bytes, as its header says, at ``physical_offset``."""

    physical_offset: int
    size: int


class RecordError(WarrenError):
    """Bytes that are no record; the text says why."""


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 of a body as a record keeps it: 31 bits; 0 for no body."""
    return crc32(body) & CRC_MASK if body else 0


def head_type(sys_flag: int) -> list[tuple[str, str]]:
    """The fields of a record up to and with its body's length, as numpy knows them."""
    return [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V20" if sys_flag & BORN_HOST_V6 else "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V20" if sys_flag & STORE_HOST_V6 else "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]


_FIELDS: Final = dict(np.dtype(head_type(0)).fields or {})
_OFFSETS: Final = {"magic": MAGIC_AT, "crc": CRC_AT, "physical_offset": PHYSICAL_OFFSET_AT, "sys_flag": SYS_FLAG_AT}
if any(_FIELDS[name][1] != offset for name, offset in _OFFSETS.items()):
    raise RuntimeError("the offsets of a record's fields do not fit its layout")


def header_bytes(sys_flag: int) -> int:
    """Bytes of a record up to and with its body's length."""
    extra = IPV6_EXTRA_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    return FIXED_BYTES - 3 + extra


def topic_length_bytes(magic: int) -> int:
    """The width of a record's topic length."""
    return 2 if magic == MESSAGE_MAGIC_V2 else 1


def encode(record: Record) -> bytes:
    """A record's bytes; ``size`` and ``body_crc`` are taken from what it holds."""
    topic = record.topic.encode("utf-8")
    body, properties = record.body, record.properties
    topic_size = len(topic).to_bytes(topic_length_bytes(record.magic), "big")
    size = header_bytes(record.sys_flag) + len(body) + len(topic_size) + len(topic) + 2 + len(properties)
    head = _HEAD.pack(
        size,
        record.magic,
        body_crc(body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
    )
    return b"".join(
        (
            head,
            record.born_host.packed,
            _LONG.pack(record.store_timestamp),
            record.store_host.packed,
            _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(body)),
            body,
            topic_size,
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def encode_blank(size: int) -> bytes:
    """The header of a blank record of ``size`` bytes."""
    return _BLANK.pack(size, BLANK_MAGIC)


def peek(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return size (as a signed number) and magic of the record at ``position``; 8 bytes must be there."""
    size, magic = _BLANK.unpack_from(data, position)
    return (size - (1 << 32) if size >> 31 else size), magic


Located = tuple[int, int, int, int, int, int, int, int, int]
"""Size, body CRC, queue id, queue offset, system flags, start and size of the body, start of the topic, start of the
properties. The topic ends 2 bytes before the properties. (A plain tuple, because each message that is read makes
one.)"""


def locate(data: bytes | memoryview, position: int = 0) -> Located:
    """Where the parts of the record that begins at ``position`` of ``data`` lie in it.

    Raises :class:`RecordError` if its fields do not fit into ``data`` or do not add up to its size. The body's CRC
    is not compared: see :attr:`Record.crc_ok`.
    """
    try:
        size, magic, crc, queue_id, _, queue_offset, _, sys_flag, body_size = _BEGIN.unpack_from(data, position)
        body_start = position + _BEGIN_BYTES
        if sys_flag & _HOST_FLAGS:
            body_start = position + _FIXED_BYTES[sys_flag & _HOST_FLAGS]
            (body_size,) = _INT.unpack_from(data, body_start - 4)
        body_stop = body_start + body_size if body_size > 0 else body_start
        if magic == MESSAGE_MAGIC_V2:
            topic_start = body_stop + 2
            (topic_size,) = _SHORT.unpack_from(data, body_stop)
        else:
            topic_start = body_stop + 1
            (topic_size,) = _BYTE.unpack_from(data, body_stop)
        properties_start = topic_start + topic_size + 2
        (properties_size,) = _SHORT.unpack_from(data, properties_start - 2)
    except struct.error:
        raise RecordError("its fields do not fit into the file") from None
    stop = properties_start + (properties_size if properties_size > 0 else 0)
    if magic not in MESSAGE_MAGICS or topic_size < 0 or stop - position != size or stop > len(data):
        raise RecordError(_what_is_wrong(magic, topic_size, stop - position, size))
    body_size = body_stop - body_start
    return size, crc, queue_id, queue_offset, sys_flag, body_start, body_size, topic_start, properties_start


def _what_is_wrong(magic: int, topic_size: int, field_bytes: int, size: int) -> str:
    if magic not in MESSAGE_MAGICS:
        return f"its magic is 0x{magic:08X}"
    if size < 0:
        return f"its size is {size}"
    if topic_size < 0:
        return f"its topic's length is {topic_size}"
    if field_bytes != size:
        return f"its fields take {field_bytes} bytes, its size says {size}"
    return "its fields do not fit into the file"


def decode(data: bytes | memoryview, position: int = 0) -> Record:
    """The record that begins at ``position`` of ``data``; raises as :func:`locate` does."""
    located = size, crc, queue_id, queue_offset, sys_flag, body_start, body_size, _, _ = locate(data, position)
    topic_start, properties_start = located[-2:]
    fields = _FIXED[sys_flag & _HOST_FLAGS].unpack_from(data, position)
    _, magic, _, _, flag, _, physical_offset, _, born_timestamp, born_host, store_timestamp, store_host = fields[:12]
    reconsume_times, prepared_transaction_offset, _ = fields[12:]
    return Record(
        topic=topic_text(data, topic_start, properties_start - 2),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        size=size,
        store_timestamp=store_timestamp,
        born_timestamp=born_timestamp,
        born_host=_host(born_host),
        store_host=_host(store_host),
        sys_flag=sys_flag,
        flag=flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=crc,
        body=bytes(data[body_start : body_start + body_size]),
        properties=bytes(data[properties_start : position + size]),
        magic=magic,
    )


def topic_text(data: bytes | memoryview, start: int, stop: int) -> str:
    """The topic that lies there; few are distinct."""
    return _topic(bytes(data[start:stop]))


@functools.lru_cache(maxsize=1024)
def _host(packed: bytes) -> Host:
    return Host(packed[:-4], int.from_bytes(packed[-4:], "big", signed=True))


@functools.lru_cache(maxsize=1024)
def _topic(encoded: bytes) -> str:
    return java_text(encoded)


def decode_properties(properties: bytes) -> dict[str, str]:
    """Names and values as RocketMQ reads them: those without name or value vanish, the last of equal names wins."""
    decoded: dict[str, str] = {}
    for entry in java_text(properties).split("\x02"):
        name, separator, value = entry.partition("\x01")
        if separator and name and value:
            decoded[name] = value
    return decoded


def encode_properties(properties: dict[str, str]) -> bytes:
    """In the order given, without a separator at the end, as 4.9.3's clients do it. Raises :class:`RecordError`."""
    for name, value in properties.items():
        if not name or not value or {"\x01", "\x02"} & {*name, *value}:
            raise RecordError(f"the property {name!r} is empty or holds a separator")
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode("utf-8")


def decode_physical_offset(data: bytes | memoryview, position: int = 0) -> int:
    """The physical offset that the record at ``position`` gives for itself."""
    physical_offset: int = _LONG.unpack_from(data, position + PHYSICAL_OFFSET_AT)[0]
    return physical_offset


def decode_store_timestamp(data: bytes | memoryview, position: int = 0) -> int:
    """Return when the record at ``position`` was stored; only its head and born host need be there."""
    sys_flag = _HEAD.unpack_from(data, position)[7]
    stored_ms: int = _LONG.unpack_from(data, position + HEAD_BYTES + (20 if sys_flag & BORN_HOST_V6 else 8))[0]
    return stored_ms
