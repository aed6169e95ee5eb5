"""Messages in batches: what a queue's directory yields, with positions, envelopes and bodies, batch by batch.

JSON lines, Parquet and Spark's rows are written from these batches. There are two kinds. In a *uniform* batch messages
have one length and differ in body, id and what the index says; bodies and ids are matrices. A *mixed* batch holds any
other messages, one by one.

A *position* counts through a queue from 0. A message that exists but cannot be read has a position, and is in no batch:
so positions are known without reading messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import count, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message.message_template import MessageTemplate
from warren.salvage.envelopes import Envelope, Envelopes
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, MessageRun, StoredMessage
from warren.storage.errors import MessageError

ROW_BYTES = 256
"""About the size of a message without its body."""

_new = tuple.__new__
"""Makes a named tuple in half the time that calling its class takes; all of its fields must be given."""

Octets = npt.NDArray[np.uint8]
Body = bytes | memoryview


@attrs.frozen(eq=False, repr=False, kw_only=True)
class UniformBatch:
    """Messages with one envelope and bodies of one size. All are persistent and none is acked."""

    first_position: int
    """Of the first message; the others follow."""
    run: MessageRun
    """What the index says about them."""
    envelope: Envelope
    bodies: Octets
    """A row each."""

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def size(self) -> int:
        """Of each body."""
        return int(self.bodies.shape[1])

    @property
    def payload_bytes(self) -> int:
        return len(self) * self.size

    def digests(self) -> Octets:
        """SHA-256 of each body, a row each."""
        bodies: list[bytes] = np.ascontiguousarray(self.bodies).view(f"V{self.size}")[:, 0].tolist()
        octets = b"".join([sha256(body).digest() for body in bodies])
        return np.frombuffer(octets, np.uint8).reshape(len(bodies), -1)

    def first(self, count: int) -> UniformBatch:
        """The first ``count`` messages at most."""
        if count >= len(self):
            return self
        return attrs.evolve(self, run=self.run.first(count), bodies=self.bodies[:count])

    def mixed(self) -> MixedBatch:
        """The same messages one by one."""
        run = self.run
        rows = map(
            MessageRow,
            count(self.first_position),
            run.seq_ids.tolist(),
            (msg_id.tobytes() for msg_id in run.msg_ids),
            repeat(True),
            repeat(run.redelivered),
            repeat(False),
            run.expiries_us.tolist(),
            repeat(None),
            repeat(None),
            repeat(run.path),
            run.offsets.tolist(),
            repeat(self.envelope),
            repeat(self.size),
            (body.tobytes() for body in self.bodies),
        )
        return MixedBatch(list(rows))


class MessageRow(NamedTuple):
    """A message of a mixed batch."""

    position: int
    seq_id: int
    msg_id: bytes
    """Empty in a quorum queue and in a stream."""
    persistent: bool
    redelivered: bool
    acked: bool
    expiry_us: int
    """Microseconds since the epoch; 0: none."""
    delivery_count: int | None
    stream_offset: int | None
    path: str
    offset: int
    envelope: Envelope
    size: int
    body: Body
    """Empty if bodies are not requested."""


@attrs.define(eq=False, repr=False)
class MixedBatch:
    """Messages of any kinds."""

    rows: list[MessageRow] = attrs.Factory(list)
    held_bytes: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def payload_bytes(self) -> int:
        return sum(row.size for row in self.rows)

    def first(self, count: int) -> MixedBatch:
        """The first ``count`` messages at most."""
        return self if count >= len(self) else MixedBatch(self.rows[:count])

    def mixed(self) -> MixedBatch:
        return self

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return list(map(attrgetter(name), self.rows))


MessageBatch = UniformBatch | MixedBatch


@attrs.define
class Batcher:
    """Makes batches, and counts positions."""

    batch_bytes: int
    """Of a mixed batch, about."""
    with_bodies: bool = True
    """Whether mixed batches have bodies."""
    position: int = 0
    """Of the next message."""
    _envelopes: Envelopes = attrs.field(factory=Envelopes)

    def batches(self, runs: Iterable[StoredMessage | MessageRun | Finding]) -> Iterator[MessageBatch | Finding]:
        """The messages in order; a finding is yielded at once, before the batch in progress.

        A message that cannot be decoded is a finding, too.
        """
        mixed = MixedBatch()
        for run in runs:
            if isinstance(run, Finding):
                self.position += run.kind == UNREADABLE_BODY
                yield run
                continue
            uniform = self._uniform(run) if isinstance(run, MessageRun) else None
            if uniform is not None:
                if mixed.rows:
                    yield mixed
                    mixed = MixedBatch()
                self.position += len(uniform)
                yield uniform
                continue
            for message in run.messages() if isinstance(run, MessageRun) else (run,):
                if (unreadable := self._add(message, mixed)) is not None:
                    yield unreadable
                self.position += 1
            if mixed.held_bytes >= self.batch_bytes:
                yield mixed
                mixed = MixedBatch()
        if mixed.rows:
            yield mixed

    def _uniform(self, run: MessageRun) -> UniformBatch | None:
        """``None`` if they differ in more, and have to be read one by one."""
        bodies = _uniform_bodies(run)
        if bodies is None:
            return None
        try:
            envelope, _ = self._envelopes.split(run.encoded[0].tobytes())
        except MessageError:
            return None
        if self.with_bodies:
            bodies = np.ascontiguousarray(bodies)
        return UniformBatch(first_position=self.position, run=run, envelope=envelope, bodies=bodies)

    def _add(self, message: StoredMessage, batch: MixedBatch) -> Finding | None:
        """Add a row; return a finding if the message cannot be read."""
        seq_id, msg_id, persistent, redelivered, acked, expiry_us, encoded, path, offset, *counts = message
        try:
            envelope, body = self._envelopes.split(encoded)
        except MessageError as error:
            return Finding("unreadable message", "damage", path, offset, f"message {seq_id}: {error}")
        size = len(body)
        batch.held_bytes += ROW_BYTES
        if self.with_bodies:
            batch.held_bytes += size
        else:
            body = b""
        row = (
            self.position,
            seq_id,
            msg_id,
            persistent,
            redelivered,
            acked,
            expiry_us,
            *counts,
            path,
            offset,
            envelope,
            size,
            body,
        )
        batch.rows.append(_new(MessageRow, row))
        return None


def _uniform_bodies(run: MessageRun) -> Octets | None:
    """A row each; ``None``: the messages differ in more than body and id, or have no body."""
    template = MessageTemplate.of(run.encoded[0].tobytes())
    if template is None or not template.body_bytes or not template.fits(run.encoded):
        return None
    return template.bodies(run.encoded)
