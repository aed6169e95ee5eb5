"""Classic queues v1, v2 and quorum queues of a real broker: an export of what it left is what it delivers again.

Random workloads (:mod:`tests.support.format_workloads`) fill queues of every format; then the broker is killed, or
stopped, in the act. Its directory is exported; it is started again in its place, which is the only one where its quorum
queues start, and everything is taken from it without acks. Both must be the same, queue by queue, in order.

The restart itself removes some messages, which no queue delivers: those that have expired, that came back more often
than their queue allows, or that exceed its limits now. They are in the files, and go to a dead-letter queue, after what
is there. So do, once more, some that a quorum queue had sent away before: a start goes through its log's end again.

Another seed: ``WARREN_SEED=7 pytest tests/test_interop_formats.py``.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import pika
import pytest

from tests.support.broker import Broker
from tests.support.effort import new_seed
from tests.support.format_workloads import CONVERTED, DEAD_KEY, QUORUM, Workload, churn
from warren.queue_index.message.amqp_tables import value_to_json
from warren.salvage.export import Selection, export_source
from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.quorum_directory import QuorumDirectory
from warren.salvage.source import open_source

pytestmark = pytest.mark.broker

WORKLOADS: Final = 5
"""For each of two runs of the broker."""

STEPS: Final = 100
QUIET_S: Final = 1.0
CHURN: Final = "churn"

Json = dict[str, Any]


class Row(NamedTuple):
    """A message, as far as both sides tell of it."""

    sha256: str
    redelivered: bool
    delivery_count: int | None
    exchange: str
    routing_key: str
    properties: str
    headers: str


@attrs.frozen
class Stored:
    """An exported message, when it expires, and whether the restart sends it away."""

    row: Row
    expiry_us: int | None
    leaves: bool = False


def _sorted(table: Json | None) -> str:
    return json.dumps(table or {}, sort_keys=True)


# ── what warren reads ────────────────────────────────────────────────────────────────────────────────────────────────


def _exported(directory: Path, *, include_acked: bool = False) -> dict[str, list[Stored]]:
    """Everything, by queue."""
    lines: list[bytes] = []
    problems: list[Finding] = []
    with open_source(str(directory)) as source:
        export_source(source, Selection(include_acked=include_acked), lines.append, problems.append)
        leaving = {
            (queue.name.decode(), seq_id)
            for vhost in source.vhosts
            for queue in vhost.queues
            if isinstance(queue, QuorumDirectory)
            for seq_id in _leaving(queue)
        }
    assert not problems, "\n".join(map(str, problems))
    queues: dict[str, list[Stored]] = {}
    for line in b"".join(lines).splitlines():
        message = json.loads(line)
        row = Row(
            message["body_sha256"],
            message["redelivered"],
            message.get("delivery_count"),
            message["exchange"],
            message["routing_keys"][0],
            _sorted(message["properties"]),
            _sorted(message["headers"]),
        )
        leaves = (message["queue"], message["seq_id"]) in leaving
        queues.setdefault(message["queue"], []).append(Stored(row, message["expiry_us"], leaves))
    return queues


def _leaving(queue: QuorumDirectory) -> set[int]:
    """Messages that a restart takes because of the queue's limits; an export leaves them in place."""
    machine = queue.chosen().replayed().machine
    return {*machine.past_limit, *machine.past_length}


# ── what the broker delivers ─────────────────────────────────────────────────────────────────────────────────────────


def _drained(broker: Broker, queues: dict[str, Json]) -> dict[str, list[Row]]:
    """All that it delivers, by queue (which are given with their arguments); nothing is acked."""
    broker.wait_for_quorum_queues()
    rows: dict[str, list[Row]] = {queue: [] for queue in queues}
    count = 0

    def take(queue: str, _: object, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        nonlocal count
        count += 1
        is_quorum = queues[queue].get("x-queue-type") == "quorum"
        rows[queue].append(_row(method, properties, body, is_quorum=is_quorum))

    with broker.channel() as channel:
        for queue in queues:
            channel.basic_consume(queue, partial(take, queue))
        before, quiet_since = -1, time.monotonic()
        while before != count or time.monotonic() - quiet_since < QUIET_S:
            if before != count:
                before, quiet_since = count, time.monotonic()
            channel.connection.process_data_events(0.1)
    return rows


def _row(method: Any, properties: pika.BasicProperties, body: bytes, *, is_quorum: bool) -> Row:
    headers = dict(properties.headers or {})
    # A consumer is not informed that no message was left; basic.get is.
    delivery_count = headers.pop("x-delivery-count", 0) if is_quorum else None
    said = {name: value for name, value in vars(properties).items() if value is not None and name != "headers"}
    return Row(
        hashlib.sha256(body).hexdigest(),
        method.redelivered,
        delivery_count,
        method.exchange,
        method.routing_key,
        _sorted(value_to_json(said)),
        _sorted(value_to_json(headers)),
    )


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────


def _compare(
    stored: dict[str, list[Stored]],
    acked_too: dict[str, list[Stored]],
    delivered: dict[str, list[Row]],
    queues: dict[str, Json],
    started_us: int,
) -> None:
    assert set(stored) <= set(queues)
    could_die: dict[str, set[str]] = {}
    for queue, arguments in queues.items():
        bodies = {message.row.sha256 for message in acked_too.get(queue, [])}
        could_die.setdefault(arguments.get(DEAD_KEY, ""), set()).update(bodies)
    for queue in queues:
        expected = [message.row for message in stored.get(queue, []) if not _goes_with_the_restart(message, started_us)]
        found = delivered[queue]
        if queue in could_die:
            died_now = found[len(expected) :]
            assert {row.sha256 for row in died_now} <= could_die[queue], queue
            assert all("x-death" in row.headers for row in died_now), queue
            found = found[: len(expected)]
        for position, (ours, theirs) in enumerate(zip(expected, found, strict=False)):
            assert ours == theirs, f"{queue}, message {position} of {len(expected)} and {len(found)}"
        assert len(expected) == len(found), queue


def _goes_with_the_restart(message: Stored, started_us: int) -> bool:
    """Whether its time was over, or it does not fit into the queue's limits any longer."""
    return message.leaves or (message.expiry_us is not None and message.expiry_us <= started_us)


# ── the test ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _end(broker: Broker, how: str, workloads: list[Workload]) -> None:
    if how == "killed":
        broker.kill()
    else:
        broker.stop()
    for workload in workloads:
        with suppress(pika.exceptions.AMQPError, OSError):
            workload.let_go()


def _run(broker: Broker, how: str, workloads: list[Workload], draw: random.Random) -> int:
    """Work, end, export, start again, compare; returns the messages that were compared."""
    for workload in workloads:
        workload.begin()
        workload.go_on(STEPS)
    for version in (2, 1)[: draw.randint(1, 2)]:
        broker.set_queue_version(CONVERTED, version)
        for workload in workloads:
            workload.go_on(STEPS // 4)
    _end(broker, how, workloads)
    stored, acked_too = (_exported(broker.node_directory, include_acked=acked) for acked in (False, True))
    started_us = time.time_ns() // 1000
    broker.start()
    queues = {queue: arguments for workload in workloads for queue, arguments in workload.queues.items()}
    queues |= {queue: QUORUM for queue in stored if queue == CHURN}
    delivered = _drained(broker, queues)
    _compare(stored, acked_too, delivered, queues, started_us)
    return sum(map(len, delivered.values()))


def test_what_is_exported_is_what_the_broker_delivers_again(broker: Broker) -> None:
    seed = new_seed()
    draw = random.Random(seed)
    broker.start()
    # After the first run a small log: it is closed often, and what it held goes to segments.
    broker.raft = {"wal_max_size_bytes": 1 << 18, "segment_max_entries": 512}
    ends = draw.sample(["killed", "stopped"], 2)
    first = [Workload(broker, f"first-{number}", random.Random(draw.random())) for number in range(WORKLOADS)]
    assert _run(broker, ends[0], first, draw) > 100
    churn(broker, CHURN, 5000, 40)
    second = [Workload(broker, f"second-{number}", random.Random(draw.random())) for number in range(WORKLOADS)]
    assert _run(broker, ends[1], [*second, *first], draw) > 100
    assert list(broker.node_directory.glob("quorum/*/*/snapshots/*/snapshot.dat"))


def test_what_was_out_returns_as_the_new_leader_meets_who_had_it(broker: Broker) -> None:
    """A killed node tells late how far it had come with a queue, and begins there again."""
    broker.start()
    broker.declare("orders", arguments=QUORUM)
    with suppress(pika.exceptions.AMQPError, OSError), broker.channel() as first, broker.channel() as second:
        for channel in (second, first):  # the later process subscribes first
            channel.basic_qos(prefetch_count=2)
            channel.basic_consume("orders", lambda *_: None)
        first.confirm_delivery()
        for number in range(6):
            first.basic_publish("", "orders", b"%d" % number)
        broker.kill()
    expected = [message.row for message in _exported(broker.node_directory)["orders"]]
    broker.start()
    assert _drained(broker, {"orders": QUORUM})["orders"] == expected
    assert [row.delivery_count for row in expected] == [1, 1, 1, 1, 0, 0]
