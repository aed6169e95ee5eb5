"""QueueArrivals: how messages get from a queue's inbox into the queue. All methods are called in the queue's turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warren.actors import messages as m
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.early_deliveries import EarlyBatch
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Inbox
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.message.msg_ids import MsgIds

if TYPE_CHECKING:
    from warren.actors.queue.unique_publisher import Key, KeyedQueue, UniquePublisher


class QueueArrivals:
    """The arriving messages of one queue."""

    __slots__ = ("_actor", "_context", "_inbox", "has_files", "keys_path", "msg_ids", "unique")

    def __init__(self, actor: KeyedQueue, context: NodeContext, inbox: Inbox) -> None:
        self._actor = actor
        self._context = context
        self._inbox = inbox
        self.msg_ids = MsgIds(context.random(8))
        self.has_files = False
        """Whether a message was published to the queue since it was started."""
        self.keys_path: str | None = None
        """Where the keys of its messages are on disk; ``None`` if nothing of the queue outlives the process."""
        self.unique: UniquePublisher | None = None
        """The keys of its messages, once there is one."""

    def publish(self, message: m.Publish) -> None:
        """Take in a batch."""
        keys: Sequence[Key | None] | None = None
        if type(message) is not m.Publish:
            from warren.actors.queue.unique_publisher import PublishUnique

            keys = message.keys if isinstance(message, PublishUnique) else None
        self._inbox.lighten(len(message.bodies))
        ids = message.msg_ids or self.msg_ids.many(len(message.bodies))
        try:
            self._publish(
                message.envelope, ids, message.bodies, message.expiration_ms, message.priority, message.confirm, keys
            )
        except BaseException as error:
            message.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(message.reserved_bytes)

    def take_in(self, batch: EarlyBatch) -> None:
        """Take in gathered single publishes: first those that were written or handed out already."""
        self._inbox.lighten(len(batch.items) - batch.acked_count)
        try:
            key, turn = batch.key, self._actor.queue_turn
            bodies = batch.items[max(batch.delivered, batch.written) :]
            if batch.written:
                turn.enter_written(key.envelope, batch.early_written())
            early = batch.early()
            if early is not None:
                self._check_files()
                ids = self.msg_ids.many(len(early.bodies) - early.bodies.count(None))
                turn.publish_delivered(key.envelope, ids, early, None if bodies else batch.confirm)
            elif not bodies:  # this confirm was given out while the message was being written
                batch.confirm.offer(None)
            if bodies:
                ids = self.msg_ids.many(len(bodies)) if len(bodies) > 1 else self.msg_ids.one()
                self._publish(key.envelope, ids, bodies, key.expiration_ms, key.priority, batch.confirm)
        except BaseException as error:
            batch.confirm.fail(error)
            raise
        finally:  # bodies handed to a store are counted by that store now
            self._context.gate.leave(batch.reserved_bytes, unused_bytes=batch.room_bytes)

    def _check_files(self) -> None:
        """Check the directory before the first message creates files, so as not to recreate a removed one."""
        if not self.has_files:
            self._context.check_directory()
            self.has_files = True

    def _publish(  # noqa: PLR0917
        self,
        envelope: Envelope,
        ids: bytes,
        bodies: Any,
        expiration_ms: int | None,
        priority: int,
        confirm: Future,
        keys: Sequence[Key | None] | None = None,
    ) -> None:
        self._check_files()
        declaration = self._actor.declaration
        if keys is None and declaration.deduplicates:
            from warren.actors.queue.header_keys import header_keys

            found_keys = header_keys(declaration, envelope, bodies)
            keys = found_keys if any(found_keys) else None
        if keys is None:
            self._actor.queue_turn.publish(envelope, ids, bodies, expiration_ms, priority, confirm)
        else:
            self.open_unique().publish(
                envelope, ids, bodies, keys, confirm, expiration_ms=expiration_ms, priority=priority
            )

    def open_unique(self) -> UniquePublisher:
        """Return the keys of its messages, and open them on first use."""
        if self.unique is None:
            from warren.actors.queue.unique_publisher import UniquePublisher

            self.unique = UniquePublisher.open(self._actor, self._context, self.keys_path)
        return self.unique
