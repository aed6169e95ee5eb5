"""The table ``messages``: what a restarted broker would deliver, each position joined with its body.

Rows, values and order are those of ``warren export``; the code that finds and decodes them is the same. Many messages
of one length that differ in body and id alone become columns at once; all others are taken one by one.

``position`` counts through a queue, its levels included, from 0. A message whose body the store does not have is none
of it; one that is there and cannot be read leaves its number out, for only who decodes all messages before a part
knows of it. So the numbers are the same however the queue is cut into tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.errors import MessageError
from warren.pipeline.arrays import hexadecimal, repeated, rows_of
from warren.pipeline.bare_queues import Opening
from warren.pipeline.filters import Wanted
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Kind, Node
from warren.pipeline.schemas import MESSAGES
from warren.pipeline.table import Columns, Rows, Table, Task
from warren.pipeline.tables.counting import count
from warren.pipeline.tables.damage import Damage
from warren.pipeline.tables.envelopes import Envelope, Envelopes
from warren.pipeline.tables.index import queue_columns
from warren.pipeline.tables.queue_parts import QueuePart, plan_queues
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, QueueDirectory, StoredMessage, Stretch
from warren.salvage.stretch_lines import alike_bodies

_KEYS: Final = pa.list_(pa.field("element", pa.string()))
ROW_BYTES: Final = 256
"""Of a message, about, beside its body."""


def plan(node: Node, options: ReadOptions, wanted: Wanted) -> Iterator[Task]:
    """Segments together, with the bodies that they may need, up to ``partition_bytes``."""
    return plan_queues(node, options, wanted, messages=True)


def read(task: Task, options: ReadOptions, wanted: Wanted) -> Iterator[Rows]:
    """The messages of a task's parts, in order."""
    opening, damage = Opening(task.node.place().files), Damage(task.node, options)
    with_bodies = options.bodies and (wanted.asks("body") or wanted.asks("body_sha256"))
    envelopes = Envelopes()
    position = 0
    for part in task.work:
        if part.before is not None:
            position = count(task.node, opening, part.before) if wanted.asks("position") else 0
        directory = part.open(opening, task.node)
        if damage.stops:
            damage.look_at(directory, part.segments)
        reading = _Reading(task.node, part, damage, options.batch_bytes, envelopes, position, with_bodies)
        yield from reading.rows(directory)
        position = reading.position


@attrs.define
class _Gathered:
    """Messages one by one, until there are enough for a batch."""

    messages: list[StoredMessage] = attrs.Factory(list)
    positions: list[int] = attrs.Factory(list)
    envelopes: list[Envelope] = attrs.Factory(list)
    sizes: list[int] = attrs.Factory(list)
    bodies: list[bytes | memoryview] = attrs.Factory(list)
    held_bytes: int = 0


@attrs.define
class _Reading:
    """Makes rows of one part."""

    _node: Node
    _part: QueuePart
    _damage: Damage
    _batch_bytes: int
    _envelopes: Envelopes
    position: int
    """Of the next message."""
    _with_bodies: bool

    def rows(self, directory: QueueDirectory) -> Iterator[Rows]:
        """Of everything that the directory gives."""
        gathered = _Gathered()
        for one in directory.stretches(only=self._part.segments):
            if isinstance(one, Finding):
                self._damage.finding(one)
                self.position += one.kind == UNREADABLE_BODY
                continue
            columns = self._stretch_columns(one) if isinstance(one, Stretch) else None
            if gathered.messages and (columns is not None or gathered.held_bytes >= self._batch_bytes):
                yield self._gathered_columns(gathered)
                gathered = _Gathered()
            if columns is not None:
                yield columns
                continue
            for message in one.messages() if isinstance(one, Stretch) else (one,):
                self._take(message, gathered)
        if gathered.messages:
            yield self._gathered_columns(gathered)

    def _take(self, message: StoredMessage, gathered: _Gathered) -> None:
        position = self.position
        self.position += 1
        try:
            envelope, body = self._envelopes.split(message.encoded)
        except MessageError as error:
            reason = f"unreadable message: message {message.seq_id}: {error}"
            self._damage.found(message.path, message.offset, reason)
            return
        gathered.messages.append(message._replace(encoded=b""))
        gathered.positions.append(position)
        gathered.envelopes.append(envelope)
        gathered.sizes.append(len(body))
        gathered.held_bytes += ROW_BYTES
        if self._with_bodies:
            gathered.bodies.append(body)
            gathered.held_bytes += len(body)

    def _gathered_columns(self, gathered: _Gathered) -> Columns:
        count = len(gathered.messages)
        seq_ids, msg_ids, persistent, redelivered, _, expiries_us, _, paths, offsets, deliveries = zip(
            *gathered.messages, strict=True
        )
        exchanges, routing_keys, properties, headers = zip(*gathered.envelopes, strict=True)
        bodies = gathered.bodies
        return Columns(
            count,
            {
                **queue_columns(self._node, self._part, count),
                "position": lambda: pa.array(gathered.positions, pa.int64()),
                "seq_id": lambda: pa.array(seq_ids, pa.int64()),
                "msg_id": lambda: pa.array([msg_id.hex() or None for msg_id in msg_ids], pa.string()),
                "persistent": lambda: pa.array(persistent, pa.bool_()),
                "redelivered": lambda: pa.array(redelivered, pa.bool_()),
                "expiry_us": lambda: _expiries(np.array(expiries_us, np.uint64)),
                "delivery_count": lambda: pa.array(deliveries, pa.int64()),
                "size": lambda: pa.array(gathered.sizes, pa.int64()),
                "exchange": lambda: pa.array(exchanges, pa.string()),
                "routing_keys": lambda: pa.array(routing_keys, _KEYS),
                "properties": lambda: pa.array(properties, pa.string()),
                "headers": lambda: pa.array(headers, pa.string()),
                "body": lambda: pa.array(bodies, pa.binary()) if bodies else pa.nulls(count, pa.binary()),
                "body_sha256": lambda: _digests(bodies) if bodies else pa.nulls(count, pa.string()),
                "file": lambda: pa.array(paths, pa.string()),
                "file_offset": lambda: pa.array(offsets, pa.int64()),
            },
        )

    def _stretch_columns(self, stretch: Stretch) -> Columns | None:
        """``None``: its messages are to be taken one by one."""
        alike = alike_bodies(stretch)
        if alike is None:
            return None
        try:
            envelope, _ = self._envelopes.split(stretch.encoded[0].tobytes())
        except MessageError:
            return None
        (count, size), first = alike.shape, self.position
        self.position += count
        bodies = np.ascontiguousarray(alike) if self._with_bodies else None
        return Columns(
            count,
            {
                **queue_columns(self._node, self._part, count),
                "position": lambda: pa.array(np.arange(first, first + count)),
                "seq_id": lambda: pa.array(stretch.seq_ids),
                "msg_id": lambda: hexadecimal(stretch.msg_ids),
                "persistent": lambda: repeated(True, count, pa.bool_()),
                "redelivered": lambda: repeated(stretch.redelivered, count, pa.bool_()),
                "expiry_us": lambda: _expiries(stretch.expiries_us),
                "delivery_count": lambda: pa.nulls(count, pa.int64()),
                "size": lambda: repeated(size, count, pa.int64()),
                "exchange": lambda: repeated(envelope.exchange, count, pa.string()),
                "routing_keys": lambda: repeated(envelope.routing_keys, count, _KEYS),
                "properties": lambda: repeated(envelope.properties, count, pa.string()),
                "headers": lambda: repeated(envelope.headers, count, pa.string()),
                "body": lambda: pa.nulls(count, pa.binary()) if bodies is None else rows_of(bodies, pa.binary()),
                "body_sha256": lambda: pa.nulls(count, pa.string()) if bodies is None else _digests(bodies),
                "file": lambda: repeated(stretch.path, count, pa.string()),
                "file_offset": lambda: pa.array(stretch.offsets),
            },
        )


def _expiries(expiries_us: npt.NDArray[np.uint64]) -> pa.Array:
    return pa.array(expiries_us.view(np.int64), mask=expiries_us == 0)


def _digests(bodies: Sequence[bytes | memoryview] | npt.NDArray[np.uint8]) -> pa.Array:
    digests = b"".join([sha256(body).digest() for body in bodies])
    return hexadecimal(np.frombuffer(digests, np.uint8).reshape(len(bodies), -1))


TABLE: Final = Table(name="messages", kinds=Kind.QUEUES, schema=MESSAGES, plan=plan, read=read)
