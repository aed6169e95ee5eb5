"""What is appended to a CommitLog, and the part of its actor that takes it.

Single appends gather in the actor's inbox, whatever queue they go to, and share a confirm
(:class:`~warren.actors.node.backpressure.PublishBatch`); batches come as messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
from pykka._envelope import Envelope as Letter

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.node.backpressure import Intake, PublishBatch
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import InboxClosedError
from warren.msg_store.commit_log.commit_log import Appended, Batch
from warren.msg_store.commit_log.commit_log_format import Host


@attrs.frozen(eq=False, repr=False)
class AppendKey:
    """What single appends of one batch have in common. Compared by identity: a handle keeps its own."""

    topic: str
    born_host: Host
    store_host: Host
    born_timestamp: int | None = None
    """Milliseconds since 1970; ``None``: the time when they are appended."""
    flag: int = 0


@attrs.frozen
class AppendResult:
    """The position of an appended message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


class AppendConfirm:
    """One message on its way: answered once it is as safe as the store's mode promises."""

    __slots__ = ("_appended", "_row", "body", "confirm", "key", "properties", "queue_id")

    def __init__(self, key: AppendKey, queue_id: int, body: bytes, properties: bytes) -> None:
        self.key = key
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.confirm: Confirm
        """Shared with messages that came together; set when the message is handed over."""
        self._appended: Appended | None = None
        self._row = 0

    @property
    def size_bytes(self) -> int:
        """The bytes that the message takes on its way."""
        return MESSAGE_BYTES + len(self.body) + len(self.properties)

    @property
    def done(self) -> bool:
        """Whether it is safe, or never will be."""
        return self.confirm.done

    def wait(self, timeout: float | None = None) -> AppendResult:
        """Wait until it is safe; return its position. Raises ``TimeoutError``, or the error that failed it."""
        self.confirm.wait(timeout)
        return self.position()

    def position(self) -> AppendResult:
        """Return its position, once :attr:`confirm` is answered."""
        appended, row = self._appended, self._row
        if appended is None:
            raise RuntimeError("confirmed, and not written")
        return AppendResult(
            self.key.topic,
            self.queue_id,
            appended.queue_offset + row,
            int(appended.physical_offsets[row]),
            int(appended.sizes[row]),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.confirm.error else 'answered' if self.done else 'pending'}>"


def went_all(items: Iterable[AppendConfirm], appended: Appended) -> None:
    """Note the positions of written messages, and drop their bytes."""
    for row, item in enumerate(items):
        item._appended = appended
        item._row = row
        item.body = item.properties = b""


def size_of(batches: Iterable[Batch]) -> int:
    """Return the bytes that batches take on their way."""
    size_bytes = 0
    for batch in batches:
        count, properties = len(batch.bodies), batch.properties
        size_bytes += count * MESSAGE_BYTES + sum(map(len, batch.bodies))
        size_bytes += count * len(properties) if isinstance(properties, bytes) else sum(map(len, properties))
    return size_bytes


def batch_of_items(key: AppendKey, queue_id: int, items: list[AppendConfirm], now_ms: int) -> Batch:
    """Make a batch of messages for one queue that were appended one by one."""
    return Batch(
        topic=key.topic,
        queue_id=queue_id,
        bodies=[item.body for item in items],
        properties=[item.properties for item in items],
        born_timestamp=now_ms if key.born_timestamp is None else key.born_timestamp,
        born_host=key.born_host,
        store_host=key.store_host,
        flag=key.flag,
        as_one=False,
    )


@attrs.frozen
class AppendBatches:
    """The message of batches to append. ``confirm`` is answered with what was appended, in their order."""

    batches: Sequence[Batch]
    confirm: Future
    reserved_bytes: int = 0
    """Bytes that the gate counts for it (:mod:`warren.actors.node.gate`)."""


class LogIntake(Intake):
    """Takes what is appended."""

    __slots__ = ()

    def append(self, item: AppendConfirm, reserved_bytes: int | None = None) -> AppendConfirm:
        """Hand over one message, for which bytes are reserved; ``None``: not reserved, and its sender is not held."""
        if reserved_bytes is None:
            reserved_bytes = self.gate.enter(item.size_bytes)
        self.refuse_if_stopped(reserved_bytes)
        try:
            item.confirm = self.inbox.gather(
                item.key, item, self.new_batch, 1, size_bytes=item.size_bytes, reserved_bytes=reserved_bytes
            ).confirm
        except InboxClosedError:
            raise self.refusal(reserved_bytes) from None
        return item

    def join(self, item: AppendConfirm) -> bool:
        """The fast path for one message: add it to messages that wait already, if bytes are reserved for it."""
        batch = self.inbox.join(item.key, item, MESSAGE_BYTES + len(item.body) + len(item.properties))
        if not isinstance(batch, PublishBatch):
            return False
        item.confirm = batch.confirm
        return True

    def hand_over(self, batches: Sequence[Batch], confirm: Future, reserved_bytes: int | None = None) -> None:
        """Hand over batches; the confirm is answered with what was appended. ``None``: nothing is reserved for them.

        ``None`` is for messages that result from stored ones, whose sender is not held.
        """
        if reserved_bytes is None:
            reserved_bytes = self.gate.enter(size_of(batches))
        self.refuse_if_stopped(reserved_bytes)
        count = sum(len(batch.bodies) for batch in batches)
        try:
            self.inbox.put(Letter(AppendBatches(batches, confirm, reserved_bytes)), count, is_publish=True)
        except InboxClosedError:
            raise self.refusal(reserved_bytes) from None
