"""Both ways with a real broker: what RabbitMQ wrote warren reads, what warren wrote RabbitMQ delivers."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pika
import pytest

from tests.support.broker import Broker, Message
from warren.actors.vhost import Vhost
from warren.queue_index.index.directory import vhost_directory_name
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.filesystem import RealFileSystem
from warren.storage.settings import RABBITMQ_3_10

pytestmark = pytest.mark.broker
_BROKERS_VHOST = b"/"
_SEED = 20_221_101


def _open(broker: Broker, **changes: Any) -> Vhost:
    ticks = itertools.count(step=1_000_000)
    return Vhost.open(
        RealFileSystem(),
        str(broker.vhosts_directory / vhost_directory_name(_BROKERS_VHOST)),
        _BROKERS_VHOST,
        settings=attrs.evolve(RABBITMQ_3_10, **changes),
        clock=lambda: next(ticks),
        random=random.Random(_SEED).randbytes,
    )


def _envelope(queue: str, n: int) -> Envelope:
    properties = Properties(
        content_type="application/octet-stream",
        delivery_mode=2,
        message_id=f"warren-{n}",
        headers={"n": n, "name": "Kaninchenbau ✓", "deep": {"list": [1, "two", True]}},
        timestamp=1_700_000_000 + n,
    )
    return Envelope(_BROKERS_VHOST, b"", (queue.encode(),), encode_properties(properties), True)


def _body(n: int, size: int) -> bytes:
    return random.Random(n).randbytes(size)


def _what_warren_says(queue: VariableQueue) -> list[tuple[str, bytes, bool, str, str]]:
    """(sha256, routing key, redelivered, message_id, headers) of every message, as a broker would deliver them."""
    state = queue.state
    said = []
    for browsed in queue.browse():
        message = browsed.message
        said.append(
            (
                hashlib.sha256(message.body).hexdigest(),
                message.routing_keys[0],
                browsed.seq_id < state.next_deliver_seq_id,
                str(message.properties.message_id),
                str(message.properties.headers),
            )
        )
    return said


def _what_the_broker_delivers(broker: Broker, queue: str) -> list[tuple[str, bytes, bool, str, str]]:
    return [
        (
            hashlib.sha256(delivery.body).hexdigest(),
            delivery.routing_key.encode(),
            delivery.redelivered,
            str(delivery.properties.message_id),
            str(delivery.properties.headers),
        )
        for delivery in broker.drain(queue)
    ]


def _stopped_broker_with_messages(broker: Broker, queues: list[str], count: int) -> None:
    broker.start()
    for queue in queues:
        broker.declare(queue)
        broker.publish(
            Message(
                _body(n, 6000 if n % 10 == 0 else 40 + n % 50),
                queue,
                properties=pika.BasicProperties(delivery_mode=2, message_id=f"rabbit-{n}", headers={"n": n}),
            )
            for n in range(count)
        )
    broker.stop()


def test_a_broker_delivers_what_warren_published_into_its_stopped_directory(broker: Broker) -> None:
    queues = ["orders", "audit"]
    _stopped_broker_with_messages(broker, queues, 300)
    vhost = _open(broker, msg_store_file_size_limit=1 << 20)
    orders, audit = (vhost.queue(name.encode()) for name in queues)
    assert [len(orders), len(audit)] == [300, 300]
    # Embedded ones over more than three segments of 2048, in batches and singly.
    for start in range(1000, 8000, 500):
        envelope = _envelope("orders", start)
        orders.publish_many(envelope, vhost.msg_ids.many(500), [_body(n, 60) for n in range(start, start + 500)])
    for n in range(8000, 8100):
        orders.publish(_envelope("orders", n), vhost.msg_ids.one(), _body(n, n % 200))
    # Store-bound ones, and one body that both queues hold.
    for n in range(9000, 9600):
        msg_id, body, envelope = vhost.msg_ids.one(), _body(n, 5000 + n), _envelope("orders", n)
        orders.publish(envelope, msg_id, body)
        if n % 3 == 0:
            audit.publish(envelope, msg_id, body)
    # A message larger than a frame.
    orders.publish(_envelope("orders", 9999), vhost.msg_ids.one(), _body(9999, 300_000))
    vhost.sync()
    # Some are taken and acked, some only taken: these come back, marked.
    taken = [seq_id for part in orders.fetch_many(3000) for seq_id in part.seq_ids]
    orders.ack([seq_id for seq_id in taken if seq_id % 7])
    pending_high = orders.fetch_many(4500)
    orders.ack([part.seq_ids for part in pending_high])
    late = [seq_id for part in orders.fetch_many(400) for seq_id in part.seq_ids]
    orders.ack(late[::2])
    audit.fetch_many(50)
    vhost.compact()
    assert vhost.persistent_store.status().garbage_fraction < 0.9
    orders.flush()
    vhost.check_invariants()
    vhost.close()

    again = _open(broker)
    expected = {name: _what_warren_says(again.queue(name.encode())) for name in queues}
    assert len(expected["orders"]) == 429 + 200 + 101  # every seventh of 3000, half of 400, and those never taken
    again.close()

    broker.start()
    for name in queues:
        assert _what_the_broker_delivers(broker, name) == expected[name]
    broker.stop()


def test_a_compacted_store_is_read_by_a_broker(broker: Broker) -> None:
    _stopped_broker_with_messages(broker, ["bulk"], 10)
    vhost = _open(broker, msg_store_file_size_limit=1 << 20)
    bulk = vhost.queue(b"bulk")
    for n in range(1000):
        bulk.publish(_envelope("bulk", n), vhost.msg_ids.one(), _body(n, 8000))
    vhost.sync()
    files_before = vhost.persistent_store.status().files
    tags = [seq_id for part in bulk.fetch_many(1010) for seq_id in part.seq_ids]
    bulk.ack([tag for tag in tags if tag % 4])
    bulk.requeue([tag for tag in tags if not tag % 4])
    vhost.compact()
    assert vhost.persistent_store.status().files < files_before
    vhost.close()
    again = _open(broker)
    expected = _what_warren_says(again.queue(b"bulk"))
    again.close()
    broker.start()
    assert _what_the_broker_delivers(broker, "bulk") == expected
    broker.stop()


@pytest.mark.parametrize("killed", [False, True])
def test_a_drained_store_whose_file_was_replaced_is_read_by_a_broker(broker: Broker, killed: bool) -> None:
    _stopped_broker_with_messages(broker, ["orders"], 300)
    vhost = _open(broker)
    orders = vhost.queue(b"orders")
    tags = [seq_id for part in orders.fetch_many(300) for seq_id in part.seq_ids]
    orders.ack(tags)
    vhost.persistent_store.replace_current()
    assert sum(file.stat().st_size for file in Path(vhost.path).glob("msg_store_persistent/*.rdq")) == 0
    for n in range(100):
        orders.publish(_envelope("orders", n), vhost.msg_ids.one(), _body(n, 8000 if n % 2 else 30))
    vhost.sync()
    expected = [entry[:2] + entry[3:] for entry in _what_warren_says(orders)]
    if killed:
        vhost.abandon()
    else:
        vhost.close()
    broker.start()
    broker.publish([Message(b"after", "orders")])
    delivered = [entry[:2] + entry[3:] for entry in _what_the_broker_delivers(broker, "orders")]
    assert delivered[:-1] == expected
    assert delivered[-1][0] == hashlib.sha256(b"after").hexdigest()
    broker.stop()


@pytest.mark.parametrize("killed", [False, True])
def test_a_queue_of_which_messages_were_taken_from_the_middle_is_read_by_a_broker(broker: Broker, killed: bool) -> None:
    _stopped_broker_with_messages(broker, ["orders"], 300)
    vhost = _open(broker)
    orders = vhost.queue(b"orders")
    for start in range(1000, 8000, 500):
        envelope = _envelope("orders", start)
        orders.publish_many(envelope, vhost.msg_ids.many(500), [_body(n, 60) for n in range(start, start + 500)])
    for n in range(9000, 9200):
        orders.publish(_envelope("orders", n), vhost.msg_ids.one(), _body(n, 6000))
    orders.state.rates.ingress = 1.0
    orders.set_ram_duration_target(100.5)
    while orders.state.waiting_bump:
        orders.bump()
    assert orders.state.delta.count > 3000
    there = {one.seq_id: one.msg_id for one in orders.browse()}
    removed = orders.remove({n: msg_id for n, msg_id in there.items() if n % 5 == 1})
    assert sum(map(len, removed)) == len(there) // 5
    orders.flush()
    taken = [n for part in orders.take({n: there[n] for n in there if n % 5 == 2}) for n in part.seq_ids]
    orders.ack(taken[::2])
    vhost.sync()
    orders.requeue(taken[1::2])
    assert orders.remove({n: msg_id for n, msg_id in there.items() if n % 5 == 3 and n < 6000})
    vhost.sync()
    vhost.check_invariants()
    expected = _what_warren_says(orders)
    if killed:
        vhost.abandon()
    else:
        vhost.close()
    broker.start()
    delivered = _what_the_broker_delivers(broker, "orders")
    assert [one[:2] + one[3:] for one in delivered] == [one[:2] + one[3:] for one in expected]
    assert len(delivered) == len(there) - len(there) // 5 - len(taken[::2]) - len(
        [n for n in there if n % 5 == 3 and n < 6000]
    )
    broker.stop()


@pytest.mark.parametrize("recovery_terms", ["emptied", "removed"])
def test_a_directory_that_warren_was_killed_in_is_recovered_by_a_broker(broker: Broker, recovery_terms: str) -> None:
    _stopped_broker_with_messages(broker, ["orders"], 50)
    vhost = _open(broker)
    orders = vhost.queue(b"orders")
    for n in range(3000):
        orders.publish(_envelope("orders", n), vhost.msg_ids.one(), _body(n, 5000 if n % 20 == 0 else 30))
    vhost.sync()
    expected = [entry[:2] + entry[3:] for entry in _what_warren_says(orders)]
    vhost.abandon()
    if recovery_terms == "removed":
        os.unlink(Path(vhost.path) / "recovery.dets")
    broker.start()
    delivered = _what_the_broker_delivers(broker, "orders")
    assert all(entry[2] for entry in delivered), "after a crash everything counts as redelivered"
    assert [entry[:2] + entry[3:] for entry in delivered] == expected
    broker.stop()


def test_warren_takes_over_what_a_killed_broker_left(broker: Broker) -> None:
    broker.start()
    broker.declare("orders")
    broker.publish(Message(_body(n, 6000 if n % 9 == 0 else 100), "orders") for n in range(3000))
    broker.kill()
    vhost = _open(broker)
    orders = vhost.queue(b"orders")
    bodies = [body for part in orders.fetch_many(10_000) for body in part.bodies()]
    assert bodies == [_body(n, 6000 if n % 9 == 0 else 100) for n in range(3000)]
    orders.ack_up_to(1499)
    vhost.close()
    broker.start()
    delivered = broker.drain("orders")
    assert [delivery.body for delivery in delivered] == bodies[1500:]
    assert all(delivery.redelivered for delivery in delivered)
    broker.stop()


def _exported(broker: Broker, queue: str) -> list[tuple[str, str, bool, str | None, Any]]:
    """What the command line exports of a queue."""
    command = [sys.executable, "-m", "warren.cli", "export", str(broker.node_directory), "--queue", queue]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        (
            line["body_sha256"],
            line["routing_keys"][0],
            line["redelivered"],
            line["properties"].get("message_id"),
            line["headers"],
        )
        for line in lines
    ]


def _delivered(broker: Broker, queue: str) -> list[tuple[str, str, bool, str | None, Any]]:
    return [
        (
            hashlib.sha256(delivery.body).hexdigest(),
            delivery.routing_key,
            delivery.redelivered,
            delivery.properties.message_id,
            delivery.properties.headers or None,
        )
        for delivery in broker.drain(queue)
    ]


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_export_is_what_the_restarted_broker_delivers(broker: Broker, end: str) -> None:
    queues: dict[str, dict[str, Any]] = {
        "plain": {},
        "lazy": {"x-queue-mode": "lazy"},
        "levels": {"x-max-priority": 5},
        "Ω queue/with: odd % name": {},
    }
    broker.start()
    for name, arguments in queues.items():
        broker.declare(name, arguments=arguments)
        broker.publish(
            Message(
                _body(n, (n * 37) % 9000),
                name,
                properties=pika.BasicProperties(
                    delivery_mode=1 if n % 11 == 0 else 2,
                    message_id=str(n),
                    priority=n % 7,
                    headers={"n": n} if n % 3 else None,
                ),
            )
            for n in range(400)
        )
        with broker.channel() as channel:  # some are acked, some only delivered
            tags = [channel.basic_get(name)[0].delivery_tag for _ in range(60)]
            for tag in tags[::2]:
                channel.basic_ack(tag)
    if end == "stopped":
        broker.stop()
    else:
        broker.kill()
    exported = {name: _exported(broker, name) for name in queues}
    broker.start()
    for name in queues:
        delivered = _delivered(broker, name)
        assert len(delivered) > 300
        assert exported[name] == delivered
    broker.stop()
