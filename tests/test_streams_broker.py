"""Streams of a live RabbitMQ: what it delivers after a kill is what its directory exports, byte for byte."""

from __future__ import annotations

import random
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.waiting import PATIENCE_S
from warren.queue_index.properties import NAMES, decode_properties, headers_as_written
from warren.salvage.envelopes import Envelopes
from warren.salvage.queue_directory import StoredMessage
from warren.salvage.source import open_source

pytestmark = requires_broker

STREAM = {"x-queue-type": "stream"}
POLL_INTERVAL_S = 0.5
Row = tuple[Any, ...]


class Encoded(pika.BasicProperties):
    """Properties as bytes, which the client library does not encode."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        return [self.encoded]


def keep(properties: Any, encoded: bytes, offset: int = 0) -> Any:
    """In place of the client library's decoder, which fails at some times."""
    properties.encoded = bytes(encoded[offset:])
    return properties


def counted(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def drawn_value(chance: random.Random) -> bytes:
    """A header's value of a type that a stream keeps, or loses."""
    text = chance.randbytes(chance.choice((0, 3, 254, 255, 256)))
    return chance.choice(
        [
            b"S" + counted(text),
            b"x" + counted(text),
            b"V",
            b"t" + bytes([chance.randrange(2)]),
            b"b" + chance.randbytes(1),
            b"B" + chance.randbytes(1),
            b"s" + chance.randbytes(2),
            b"u" + chance.randbytes(2),
            b"I" + chance.randbytes(4),
            b"i" + chance.randbytes(4),
            b"l" + chance.randbytes(8),
            b"l" + struct.pack(">q", chance.randrange(-200, 200)),
            b"T" + chance.randbytes(8),
            b"d" + struct.pack(">d", chance.uniform(-1e9, 1e9)),
            b"f" + struct.pack(">f", chance.uniform(-1e9, 1e9)),
            b"A" + counted(b"t\1"),
            b"F" + counted(b"\1at\1"),
        ]
    )


def drawn_properties(chance: random.Random) -> bytes:
    flags, parts = 0, []
    for place, name in enumerate(NAMES):
        if chance.random() < 0.5:
            continue
        flags |= 0x8000 >> place
        match name:
            case "headers":
                names = chance.sample(range(20), chance.randrange(5))
                parts.append(counted(b"".join(b"\3h%02d" % number + drawn_value(chance) for number in names)))
            case "delivery_mode":
                parts.append(bytes([chance.choice((1, 2))]))
            case "priority":
                parts.append(chance.randbytes(1))
            case "timestamp":
                parts.append(chance.choice((chance.randbytes(8), struct.pack(">Q", 1_600_000_000))))
            case "expiration":
                parts.append(b"\x0560000")
            case "user_id":
                parts.append(b"\5guest")
            case _:
                text = chance.randbytes(chance.choice((0, 1, 40, 255)))
                parts.append(bytes([len(text)]) + text)
    return struct.pack(">H", flags) + b"".join(parts)


def fill(broker: Broker, queue: str, vhost: str, chance: random.Random, count: int) -> None:
    with broker.channel(vhost) as channel:
        channel.exchange_declare("éx", "fanout")
        channel.queue_bind(queue, "éx")
        channel.confirm_delivery()
        for _ in range(count):
            exchange, key = chance.choice((("", queue), ("éx", "any.kéy")))
            body = chance.randbytes(chance.choice((0, 1, 200, 5000, 140_000)))
            channel.basic_publish(exchange, key, body, Encoded(drawn_properties(chance)))


def delivered(broker: Broker, queue: str, vhost: str, count: int) -> list[Row]:
    """All messages from the first offset on, ``count`` at least; the stream may still have to start."""
    deadline, rows = time.monotonic() + PATIENCE_S, list[Row]()
    while True:
        try:
            with broker.channel(vhost) as channel:
                channel.basic_qos(prefetch_count=5000)
                start = {"x-stream-offset": "first"}
                for method, properties, body in channel.consume(queue, arguments=start, inactivity_timeout=1):
                    if method is not None:
                        rows.append(row_of(method.exchange, method.routing_key, properties.encoded, body))
                    elif len(rows) >= count or time.monotonic() > deadline:
                        return rows
        except pika.exceptions.AMQPError:
            if rows or time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_S)


def row_of(exchange: str, key: str, encoded: bytes, body: bytes) -> Row:
    """What a consumer gets: the offset is among the headers."""
    headers = headers_as_written(encoded)
    offset = headers.pop("x-stream-offset", None)
    plain = {name: getattr(decode_properties(encoded), name) for name in NAMES if name != "headers"}
    return (None if offset is None else int.from_bytes(offset[1:]), exchange, key, [*headers.items()], plain, body)


def exported(directory: Path, queue: str, vhost: str) -> list[Row]:
    envelopes, rows = Envelopes(), list[Row]()
    with open_source(str(directory)) as source:
        (stream,) = (
            each
            for of in source.vhosts
            if of.name == vhost.encode()
            for each in of.queues
            if each.name == queue.encode()
        )
        for message in stream.messages():
            assert isinstance(message, StoredMessage), message
            envelope, body = envelopes.split(message.encoded)
            row = row_of(envelope.exchange, envelope.routing_keys[0], envelope.encoded or b"", bytes(body))
            rows.append((message.stream_offset, *row[1:]))
    return rows


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_broker_delivers_after_a_kill_is_exported(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    streams = [("s.ünï/1", "/"), ("small", "/"), ("s.ünï/1", "öther")]
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        broker.ctl("add_vhost", "öther")
        broker.ctl("set_permissions", "-p", "öther", "guest", ".*", ".*", ".*")
        for name, vhost in streams:
            sizes = {"x-stream-max-segment-size-bytes": 200_000} if name != "small" else {}
            broker.declare(name, arguments=STREAM | sizes, vhost=vhost)
            fill(broker, name, vhost, chance, 150)
        broker.eval("[dets:sync(Table) || Table <- dets:all()], ok")  # else a start may know no stream
        broker.kill()
        if seed == 2:
            last = max((broker.node_directory / "stream").glob("__small_*/*.segment"))
            last.write_bytes(last.read_bytes()[: -chance.randrange(1, 3000)])
        copy = tmp_path / "copy"
        shutil.copytree(broker.node_directory, copy)
        broker.start()
        monkeypatch.setattr(pika.BasicProperties, "decode", keep)
        for name, vhost in streams:
            rows = exported(copy, name, vhost)
            assert len(rows) > 100
            assert delivered(broker, name, vhost, len(rows)) == rows
        broker.stop()
