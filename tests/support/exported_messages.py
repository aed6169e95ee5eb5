"""Messages with everything that properties, bodies and names can have; and what stands in a directory."""

from __future__ import annotations

import struct
from pathlib import Path

from warren import engine
from warren.queue_index.properties import encode_values
from warren.shovel.letter import Letter, from_term


def string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


EVERY_TYPE = [
    field(b"t", b"t\1"),
    field(b"t2", b"t\2"),
    field(b"b", b"b\xff"),
    field(b"B", b"B\xff"),
    field(b"s", b"s\xff\xfe"),
    field(b"u", b"u\xff\xfe"),
    field(b"I", b"I\xff\xff\xff\xfe"),
    field(b"i", b"i\xff\xff\xff\xfe"),
    field(b"l", b"l" + struct.pack(">q", 5)),
    field(b"big", b"l" + struct.pack(">q", -(1 << 62))),
    field(b"f", b"f" + struct.pack(">f", 0.1)),
    field(b"d", b"d" + struct.pack(">d", 0.1)),
    field(b"nan", b"d" + struct.pack(">d", float("nan"))),
    field(b"D", b"D\2" + struct.pack(">i", -1234)),
    field(b"T", b"T" + struct.pack(">Q", (1 << 64) - 1)),
    field(b"S", b"S" + string("сто ☃".encode())),
    field(b"not UTF-8", b"S" + string(b"\xff\x00")),
    field(b"x", b"x" + string(b"\xff\x00")),
    field(b"x of text", b"x" + string(b"text")),
    field(b"V", b"V"),
    field(b"F", b"F" + string(field(b"in", b"A" + string(b"I\0\0\0\1" + b"V" + b"F" + string(b""))))),
    field(b"A", b"A" + string(b"")),
    field(b"\xff", b"V"),
    field(b"like base64", b"F" + string(field(b"base64", b"S" + string(b"/w==")))),
    field(b"", b"S" + string(b"")),
]
"""Every type that a header can have, and what JSON cannot tell from something else."""


def with_headers(*fields: bytes) -> bytes:
    return b"\x20\x00" + string(b"".join(fields))


RESERVED_BITS = b"\x00\x03"
"""Bits without a meaning."""
PROPERTIES = [
    b"\x00\x00",
    RESERVED_BITS,
    b"\x10\x00\x02",
    *(with_headers(each) for each in EVERY_TYPE),
    with_headers(*EVERY_TYPE),
    with_headers(field(b"twice", b"V"), field(b"twice", b"t\0")),
    with_headers(),
    encode_values(
        {
            "content_type": "text/ж",
            "content_encoding": "gzip",
            "headers": {"a": "b"},
            "delivery_mode": 2,
            "priority": 7,
            "correlation_id": b"\xff",
            "reply_to": "",
            "expiration": "86400000",
            "message_id": "x\n\",'\r\n",
            "timestamp": (1 << 64) - 1,
            "type": "t",
            "user_id": "guest",
            "app_id": "a" * 255,
            "cluster_id": "c",
        }
    ),
]
FOR_BROKERS = [each for each in PROPERTIES if each != RESERVED_BITS and b"nan" not in each]
FOR_BROKERS.append(with_headers(*(each for each in EVERY_TYPE if b"nan" not in each)))
"""Properties that a RabbitMQ reads: no header holds a NaN."""
TEXTS = [b"", b"text", "snow ☃\r\nman\n".encode(), b'"quoted", \\ and \x00', b" ", b"a,b\r"]
BODIES = [*TEXTS, b"\xff\x00", bytes(range(256))]
NAMES = [b"q", b"", b"key.with,comma", b'quo"te', b"\xff\xfe", "ключ".encode()]


def found_in(directory: Path, queue: bytes = b"q", vhost: str = "/") -> list[Letter]:
    """The messages of a queue as they stand there."""
    with engine.open_vhost(directory, vhost, sync=False) as opened:
        while opened.recover_step():
            continue
        return [from_term(browsed.term, 0, (0, 0)) for browsed in opened.queue(queue).browse()]
