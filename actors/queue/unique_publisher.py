"""UniquePublisher: publishes messages with keys to one queue. A part of the queue's actor, created with the first one.

A message whose key is taken is not stored, and its publish succeeds all the same. The publisher gets its confirm when
the message stored first is safe, and the key too (in the order described in :mod:`warren.actors.engines.unique_keys`).
So a publish waits for the levels of its own messages, and of the messages that hold its keys; then, at the end of that
turn, for one sync of the keys' log (:meth:`UniquePublisher.flush`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import attrs

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.key_table import BOUND, IN_RAM, SAFE, TakenKey
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.unique_keys import LOG_KIND, UniqueKeys
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.queue_output import QueueOutput
from warren.actors.runtime.future import Future
from warren.queue_index.message.message_format import Envelope
from warren.storage.errors import DataError, MessageError, NoRoomError
from warren.storage.record_log import RecordLog

_LOG = logger("queue")


class Key(NamedTuple):
    """The key that makes a message unique."""

    digest: bytes
    for_us: int
    """How long the key is taken, in microseconds; 0: while the message waits."""


@attrs.frozen(eq=False, repr=False)
class PublishUnique(m.Publish):
    """User → queue. Tell. Messages with keys, one for each message, ``None`` for a message without a key."""

    keys: Sequence[Key | None] = ()


@attrs.define(eq=False, repr=False)
class _Waiting:
    """A publish that is not safe yet."""

    confirm: Future
    keys: list[TakenKey]
    """Its own keys, and keys that were taken before and are not safe either."""
    duplicates: tuple[int, ...]
    levels: int
    """The number of levels that are still to become safe."""
    failed: bool = False
    """Whether one of the levels found no room on the disk."""


class KeyedQueue(Protocol):
    """The queue's actor, as its keys use it."""

    @property
    def output(self) -> QueueOutput: ...

    @property
    def declaration(self) -> QueueDeclaration: ...

    @property
    def process(self) -> QueueProcess: ...

    @property
    def queue_turn(self) -> QueueTurn: ...

    def describe(self) -> str: ...

    def stopped_error(self) -> Exception: ...


class UniquePublisher:
    """The keys of a queue, and the publishes that wait for them. All methods are called in the queue's turns."""

    def __init__(self, actor: KeyedQueue, keys: UniqueKeys, context: NodeContext) -> None:
        self._actor = actor
        self._context = context
        self.keys = keys
        self._waiting: dict[_Waiting, None] = {}
        self._due: list[_Waiting] = []
        """Publishes whose messages are safe, and whose keys are not yet."""
        self._ended = False
        self._error: DataError | None = None
        """Why there are no keys."""

    @classmethod
    def open(cls, actor: KeyedQueue, context: NodeContext, keys_path: str | None) -> UniquePublisher:
        """Open with the keys that the last process left. ``keys_path``: the path of their log if the queue outlives the
        process.

        An unreadable log does not affect consumers; publishing with a key raises an error.
        """
        log = None if keys_path is None else RecordLog(context.files, keys_path, LOG_KIND)
        process, wall_us = actor.process, context.clock.wall_us
        keys = UniqueKeys(
            log,
            process.backing.ids_at,
            wall_us,
            context.settings.sync != "os",
            make_acks_safe=process.backing.sync_index,
        )
        publisher = cls(actor, keys, context)
        try:
            keys.open()
            if keys.torn is not None:
                _LOG.warning(
                    "%s: a log of keys ends in invalid bytes: %s",
                    actor.describe(),
                    keys.torn,
                    extra=log_event("log_torn", keys.torn, of=actor.declaration),
                )
            if keys.damage is not None:
                _LOG.error(
                    "%s: unreadable keys are forgotten: %s",
                    actor.describe(),
                    keys.damage,
                    extra=log_event("queue_keys_lost", keys.damage, of=actor.declaration),
                )
        except DataError as error:
            _LOG.error(
                "%s rejects messages with keys: %s",
                actor.describe(),
                error,
                extra=log_event("queue_keys_down", error, of=actor.declaration),
            )
            publisher._error = error
        return publisher

    @property
    def waiting(self) -> list[Future]:
        """The confirms that are still unanswered."""
        return [publish.confirm for publish in (*self._waiting, *self._due)]

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        keys: Sequence[Key | None],
        confirm: Future,
        *,
        expiration_ms: int | None,
        priority: int,
    ) -> None:
        """Publish the messages whose keys are free. Raises if none of the messages can be taken."""
        if self._error is not None:
            raise MessageError(f"{self._actor.describe()} rejects messages with keys: {self._error}")
        process = self._actor.process
        level = process.backing.level_of(priority)
        envelope = process.context.as_stored(envelope)
        safe_anyway = not (envelope.persistent and process.backing.durable)
        fresh, duplicates, awaited, levels = self._sort_out(keys)
        together = process.context.takes_all and expiration_ms is None
        parts = ([fresh] if fresh else []) if together else [[index] for index in fresh]
        refused = False
        for part in parts:
            taken = self._taken(level, part, msg_ids, keys, expiration_ms, safe_anyway=safe_anyway)
            ids = b"".join([msg_ids[16 * index : 16 * index + 16] for index in part])
            part_bodies = [bodies[index] for index in part]
            if not self._put(
                envelope, ids, part_bodies, taken, level=level, expiration_ms=expiration_ms, priority=priority
            ):
                refused = refused or not process.expiry.discards
                continue
            awaited += taken
            if not safe_anyway:
                levels.add(level)
        if refused:
            self._actor.output.refused(confirm)
        self._wait(_Waiting(confirm, awaited, tuple(duplicates), len(levels)), levels)

    def _sort_out(self, keys: Sequence[Key | None]) -> tuple[list[int], list[int], list[TakenKey], set[int]]:
        """Return the messages to store, the duplicates, the unsafe keys that duplicates wait for, and their levels."""
        fresh, duplicates = list[int](), list[int]()
        holders = self.keys.holders({key.digest for key in keys if key is not None})
        awaited = [held for held in holders.values() if not held.safe]
        seen = set(holders)
        for index, key in enumerate(keys):
            if key is None or key.digest not in seen:
                fresh.append(index)
            else:
                duplicates.append(index)
            if key is not None:
                seen.add(key.digest)
        levels = {held.level for held in awaited}
        return fresh, duplicates, awaited, levels

    def _taken(
        self,
        level: int,
        part: Sequence[int],
        msg_ids: bytes,
        keys: Sequence[Key | None],
        expiration_ms: int | None,
        *,
        safe_anyway: bool,
    ) -> list[TakenKey]:
        """Take and return the keys of messages that are published next, in this order."""
        process = self._actor.process
        first = process.backing.level(level).state.next_seq_id
        expiry_us = process.expiry.expiry_us(expiration_ms)
        now_us = self._context.clock.wall_us()
        flags = IN_RAM if safe_anyway else 0
        taken = []
        for seq_id, index in enumerate(part, first):
            key, msg_id = keys[index], msg_ids[16 * index : 16 * index + 16]
            if key is None:
                continue
            if key.for_us:
                taken.append(TakenKey(key.digest, msg_id, seq_id, now_us + key.for_us, level, flags))
            else:
                bound = flags | BOUND | (SAFE if safe_anyway else 0)
                taken.append(TakenKey(key.digest, msg_id, seq_id, expiry_us, level, bound))
        self.keys.take(taken)
        return taken

    def _put(
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        taken: Sequence[TakenKey],
        *,
        level: int,
        expiration_ms: int | None,
        priority: int,
    ) -> bool:
        """Publish messages; return whether the queue has taken them."""
        turn, backing = self._actor.queue_turn, self._actor.process.backing
        before = backing.level(level).state.next_seq_id
        try:
            turn.publish(envelope, msg_ids, bodies, expiration_ms, priority, None)
        except BaseException:
            self.keys.give_back(taken)
            raise
        if backing.level(level).state.next_seq_id == before + len(bodies):
            return True
        self.keys.give_back(taken)
        return False

    # ── being safe ──────────────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, waiting: _Waiting, levels: set[int]) -> None:
        if not levels:
            self._due.append(waiting)
            return
        self._waiting[waiting] = None
        for level in levels:
            token = Future()
            token.on_done(functools.partial(self._level_safe, waiting))
            self._actor.queue_turn.wait_until_safe(level, token)

    def _level_safe(self, waiting: _Waiting, token: Future) -> None:
        """Called in a turn, or (after a clean stop) when the stores are closed."""
        if token.error is not None:
            waiting.failed = True
            waiting.confirm.fail(token.error)
        waiting.levels -= 1
        if waiting.levels:
            return
        self._waiting.pop(waiting, None)
        if waiting.failed:
            return
        if self._ended:
            waiting.confirm.offer(waiting.duplicates)
        else:
            self._due.append(waiting)

    def flush(self) -> None:
        """Make keys of safe messages safe and answer the publishers, at the end of a turn."""
        due, self._due = self._due, []
        if not due:
            return
        try:
            self._context.check_directory()
            self.keys.make_safe([key for publish in due for key in publish.keys])
        except NoRoomError as error:
            for publish in due:
                self._actor.output.not_safe(publish.confirm, error)
        except BaseException as error:
            for publish in due:
                publish.confirm.fail(error)
            raise
        else:
            for publish in due:
                publish.confirm.offer(publish.duplicates)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the keys are inconsistent."""
        self.keys.check_invariants()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Prepare a clean stop. Waiting publishes are answered when the stores are closed."""
        self.flush()
        self.keys.note_gone([key for publish in self._waiting for key in publish.keys])
        self._ended = True

    def delete(self) -> None:
        """Answer all publishes: the queue is deleted with its keys, so nothing can be lost any more."""
        self._ended = True
        self.keys.close()
        for publish in self._due:
            publish.confirm.offer(publish.duplicates)
        self._due.clear()

    def end(self, error: BaseException | None) -> None:
        """End in any case, with or without an error."""
        self._ended = True
        self.keys.close()
        for publish in self._due:
            publish.confirm.fail(self._actor.stopped_error() if error is None else error)
        self._due.clear()
