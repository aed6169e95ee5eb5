"""Transactional messages: invisible until their producer commits them.

A *prepared* message is a *half message*: it is stored in ``RMQ_SYS_TRANS_HALF_TOPIC``, and its properties name its real
topic and the producer group that may decide it. When it is *committed*, it is appended again, to its real topic; the
copy names the half message's physical offset. When it is *rolled back*, it is not. Either way an *op message* in
``RMQ_SYS_TRANS_OP_HALF_TOPIC`` then names the half message's queue offset: it is *decided*. Nothing is ever changed in
place, and half messages stay until their CommitLog file is deleted.

*Pending* after a start is what is in the first topic and not named in the second. So that neither has to be read from
its beginning, a group of the store's own has two offsets: half messages before the one, and op messages before the
other, need not be read any more. These are offsets like any consumer's, and may lag. Half messages are read first, then
op messages.

What a crash leaves: a half message without its op message is pending, and its producer decides again. A commit appends
the copy first, then the op message: after a crash between them the message comes twice, but is never lost.

RocketMQ's broker rewrites a half message while it asks the producer about it; such a *renewed* one may name the queue
offset of the first. It replaces that one, and is decided by an op message for either.

Invariants: pending half messages are not named by a stored op message; offsets only grow.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

from warren.actors.engines.topics.errors import TransactionError
from warren.actors.engines.topics.names import (
    DELAY,
    HALF_TOPIC,
    OP_TOPIC,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_PREPARED,
    WAIT,
    check_group_name,
)
from warren.actors.engines.topics.record_copies import all_with_properties, copy_of, real_place
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import (
    COMMIT,
    TRANSACTION_MASK,
    Host,
    Record,
    decode_properties,
    encode_properties,
)

HALF_QUEUE_ID: Final = 0
DECIDED_TAG: Final = "d"

_DELAY_BYTES: Final = DELAY.encode("ascii")
_OP_PROPERTIES: Final = encode_properties({WAIT: "true", TAGS: DECIDED_TAG})


def prepare(batch: Batch, producer_group: str) -> Batch:
    """Return messages as half messages. Each is put singly, and decided on its own.

    Raises :class:`TransactionError` for messages with a delay, which transactions do not support.
    """
    check_group_name(producer_group)
    columns = [batch.properties] if isinstance(batch.properties, bytes) else batch.properties
    if any(_DELAY_BYTES in raw and decode_properties(raw).get(DELAY, "0") != "0" for raw in columns):
        raise TransactionError("a message of a transaction cannot have a delay")
    changes = {
        TRANSACTION_PREPARED: "true",
        PRODUCER_GROUP: producer_group,
        REAL_TOPIC: batch.topic,
        REAL_QUEUE_ID: str(batch.queue_id),
    }
    return attrs.evolve(
        batch,
        topic=HALF_TOPIC,
        queue_id=HALF_QUEUE_ID,
        properties=all_with_properties(batch.properties, changes),
        sys_flag=batch.sys_flag & ~TRANSACTION_MASK,
        as_one=False,
    )


def committed(half: Record, producer_group: str | None = None) -> Batch:
    """Return what to append to the real topic of a half message. Raises :class:`TransactionError` if it is not a half
    message (of the group), and :class:`RecordError` if it does not name its topic."""
    _check_half(half, producer_group)
    topic, queue_id = real_place(half)
    flags = half.sys_flag & ~TRANSACTION_MASK | COMMIT
    batch = copy_of(half, topic=topic, queue_id=queue_id, properties=half.properties, sys_flag=flags)
    return attrs.evolve(batch, prepared_transaction_offset=half.physical_offset)


def decision(half: Record, now_ms: int, host: Host, producer_group: str | None = None) -> Batch:
    """Return the op message of a half message. On a commit it must follow the copy. ``host``: the store's.

    Raises :class:`TransactionError` as :func:`committed` does.
    """
    _check_half(half, producer_group)
    return Batch(
        topic=OP_TOPIC,
        queue_id=half.queue_id,
        bodies=(str(half.queue_offset).encode("ascii"),),
        properties=_OP_PROPERTIES,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
    )


def _check_half(half: Record, producer_group: str | None) -> None:
    label = f"the record at physical offset {half.physical_offset}"
    if half.topic != HALF_TOPIC:
        raise TransactionError(f"{label} (topic {half.topic!r}) is not a half message")
    group = decode_properties(half.properties).get(PRODUCER_GROUP)
    if producer_group is not None and group != producer_group:
        raise TransactionError(f"{label} is a half message of the group {group!r}, not of {producer_group!r}")


@attrs.frozen(kw_only=True)
class Half:
    """A half message, without its body."""

    queue_offset: int
    physical_offset: int
    size: int
    topic: str
    """Its real topic."""
    queue_id: int
    producer_group: str | None
    born_timestamp: int
    origin: int | None
    """The queue offset of the half message that this one replaced."""

    @classmethod
    def of(cls, record: Record) -> Half:
        """Raise :class:`RecordError` if the record does not name its topic."""
        properties = decode_properties(record.properties)
        topic, queue_id = real_place(record, properties)
        return cls(
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            size=record.size,
            topic=topic,
            queue_id=queue_id,
            producer_group=properties.get(PRODUCER_GROUP),
            born_timestamp=record.born_timestamp,
            origin=_number(properties.get(PREPARED_QUEUE_OFFSET, "")),
        )

    def renews(self, before: Half | None) -> bool:
        """Whether it can have replaced ``before``, or one that is no longer known (``None``)."""
        if self.origin is None or self.origin >= self.queue_offset:
            return False
        return before is None or _identity(self) == _identity(before)


def _identity(half: Half) -> tuple[str, int, str | None, int]:
    """The fields that a renewed half message shares with the first."""
    return half.topic, half.queue_id, half.producer_group, half.born_timestamp


def named_by(op: Record) -> int | None:
    """Return the queue offset of the half message that an op message decides, ``None`` for a meaningless op message."""
    if decode_properties(op.properties).get(TAGS) != DECIDED_TAG:
        return None
    return _number(op.body.decode("utf-8", "replace"))


_MOST_DIGITS = 19


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


@attrs.define
class PendingTransactions:
    """The undecided half messages of one queue."""

    half_offset: int = 0
    """Half messages before this queue offset are decided or gone, so that a start need not read them."""
    op_offset: int = 0
    """Op messages before this queue offset name only such half messages."""
    _pending: dict[int, Half] = attrs.field(factory=dict, init=False)
    _order: deque[int] = attrs.field(factory=deque, init=False)
    """Queue offsets of the pending half messages, ascending, and of some that were decided meanwhile."""
    _next_half: int = attrs.field(init=False)
    _ops: deque[tuple[int, int | None]] = attrs.field(factory=deque, init=False)
    """Op messages from ``op_offset`` on: their queue offset, and that of the half message."""
    _named: set[int] = attrs.field(factory=set, init=False)
    """The half messages that these name."""
    _renewed: dict[int, int] = attrs.field(factory=dict, init=False)
    """The first queue offset of each pending renewed half message, and its present one."""

    def __attrs_post_init__(self) -> None:
        self._next_half = self.half_offset

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> tuple[Half, ...]:
        """The undecided half messages, in order."""
        return tuple(self._pending.values())

    def get(self, queue_offset: int) -> Half:
        """Return an undecided half message; raises :class:`TransactionError`."""
        half = self._pending.get(queue_offset)
        if half is None:
            raise TransactionError(f"half message {queue_offset} does not exist or is already decided")
        return half

    def prepared(self, half: Half) -> None:
        """Note a half message that was stored or read. Call this in order of queue offsets; a known one has no
        effect."""
        if half.queue_offset < self._next_half:
            return
        self._next_half = half.queue_offset + 1
        if half.origin is not None:
            before = self._renewed.get(half.origin, half.origin)
            if half.renews(self._pending.get(before)):
                self._drop(before)
            else:  # its origin cannot be right
                half = attrs.evolve(half, origin=None)
        if not {half.queue_offset, half.origin} & self._named:
            self._pending[half.queue_offset] = half
            self._order.append(half.queue_offset)
            if half.origin is not None:
                self._renewed[half.origin] = half.queue_offset
        self._advance()

    def passed_over(self, queue_offset: int) -> None:
        """Skip an entry in the queue of half messages that is not a half message."""
        self._next_half = max(self._next_half, queue_offset + 1)
        self._advance()

    def decided(self, op_queue_offset: int, half_queue_offset: int | None) -> None:
        """Note an op message that was stored or read. Call this in order of queue offsets. It may name a half message
        that comes later, one that is decided, or (``None``) nothing."""
        if op_queue_offset < self.op_offset or (self._ops and op_queue_offset <= self._ops[-1][0]):
            return
        self._ops.append((op_queue_offset, half_queue_offset))
        if half_queue_offset is not None:
            self._named.add(half_queue_offset)
            self._drop(self._renewed.get(half_queue_offset, half_queue_offset))
        self._advance()

    def expired(self, half_minimum: int, op_minimum: int) -> list[Half]:
        """Set the queues' new minimums; return the pending half messages that were deleted undecided."""
        expired = [half for half in self._pending.values() if half.queue_offset < half_minimum]
        for half in expired:
            self._drop(half.queue_offset)
        self._next_half = max(self._next_half, half_minimum)
        while self._ops and self._ops[0][0] < op_minimum:
            self._forget_op()
        self.op_offset = max(self.op_offset, op_minimum)
        self._advance()
        return expired

    def _drop(self, queue_offset: int) -> None:
        half = self._pending.pop(queue_offset, None)
        if half is not None and half.origin is not None:
            self._renewed.pop(half.origin, None)

    def _advance(self) -> None:
        while self._order and self._order[0] not in self._pending:
            self._order.popleft()
        self.half_offset = max(self.half_offset, self._order[0] if self._order else self._next_half)
        while self._ops and ((named := self._ops[0][1]) is None or named < self.half_offset):
            self._forget_op()

    def _forget_op(self) -> None:
        queue_offset, named = self._ops.popleft()
        self.op_offset = queue_offset + 1
        if named is not None:
            self._named.discard(named)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if pending half messages, op messages and offsets contradict one another."""
        offsets = list(self._pending)
        if offsets != sorted(offsets) or not set(offsets) <= set(self._order) or self._named & set(offsets):
            raise RuntimeError(f"pending {offsets}, in the order {list(self._order)}, named {sorted(self._named)}")
        if self.half_offset != (offsets[0] if offsets else self._next_half):
            raise RuntimeError(f"half messages up to {self.half_offset} are decided, pending {offsets}")
        if any(op < self.op_offset for op, _ in self._ops):
            raise RuntimeError(f"op messages up to {self.op_offset} are done, kept {list(self._ops)}")
        if any(self._pending[place].origin != origin for origin, place in self._renewed.items()):
            raise RuntimeError(f"renewed {self._renewed}, pending {offsets}")
