"""A QueueProcess over files in memory, with a clock that a test turns by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.msg_store.rdq.message_store import MessageStore
from warren.queue_index.index import directory as names
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.message.msg_ids import MsgIds
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.memory import MemoryFileSystem
from warren.storage.record_log import RecordLog
from warren.storage.settings import Settings

START_US = 1_700_000_000_000_000
RETURNED = "/side/returned.log"


def envelope(
    properties: Properties | None = None,
    *,
    exchange: str = "",
    keys: tuple[str, ...] = ("q",),
    persistent: bool = True,
) -> Envelope:
    encoded = encode_properties(properties or Properties(delivery_mode=2 if persistent else 1))
    return Envelope(b"/", exchange.encode(), tuple(key.encode() for key in keys), encoded, persistent)


class Bench:
    """One queue, and what it stands on."""

    def __init__(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        settings: Settings | None = None,
        durable: bool = True,
        auto_delete: bool = False,
    ) -> None:
        self.files = MemoryFileSystem(random.Random(0))
        self.files.make_directories("/queues")
        self.settings = settings or Settings(segment_entry_count=8, queue_index_embed_msgs_below=64)
        self.persistent_store = MessageStore.create(self.files, "/persistent", self.settings)
        self.transient_store = MessageStore.create(self.files, "/transient", self.settings)
        self.now_us = START_US
        self.ids = MsgIds(b"test-ids")
        self.declaration = QueueDeclaration(
            "/", "q", durable=durable, auto_delete=auto_delete, arguments=arguments or {}
        )
        self.queue = self.over(self.new_backing())

    @property
    def levels(self) -> range:
        return range((self.declaration.max_priority or 0) + 1)

    def new_backing(self, **known: Any) -> Backing:
        declaration = self.declaration
        return Backing(self.parts_of, durable=declaration.durable, max_priority=declaration.max_priority, **known)

    def over(self, backing: Backing, *, crashed: bool = False) -> QueueProcess:
        log = (lambda _: RecordLog(self.files, RETURNED, "returned")) if self.declaration.durable else None
        context = QueueContext(
            self.declaration,
            backing,
            lambda: self.now_us,
            returned_log=log,
            tells_out=not self.settings.deliver_with_publish,
            crashed=crashed,
        )
        queue = QueueProcess(context)
        if self.files.exists(RETURNED):
            queue.settlements.load_returned()
        return queue

    def name_of(self, level: int) -> bytes:
        return b"q" if self.declaration.max_priority is None else names.level_name(b"q", level)

    def parts_of(self, level: int | None) -> QueueFiles:
        name = b"q" if level is None else names.level_name(b"q", level)
        return QueueFiles(
            files=self.files,
            path=f"/queues/{names.queue_directory_name(b'/', name)}",
            vhost=b"/",
            queue=name,
            settings=self.settings,
            persistent_store=StoreClient(self.persistent_store) if self.declaration.durable else None,
            transient_store=StoreClient(self.transient_store),
            clock=lambda: (self.now_us - START_US) * 1000,
        )

    # ── what happens to it ──────────────────────────────────────────────────────────────────────────────────────

    def publish(self, *bodies: bytes, like: Envelope | None = None, **options: Any) -> None:
        self.queue.publish_many(like or envelope(), self.ids.many(len(bodies)), list(bodies), **options)

    def later(self, milliseconds: float) -> None:
        self.now_us += int(milliseconds * 1000)

    def sleep(self) -> bool:
        """Rest while memory is wanted; returns whether nothing of the messages is left in it."""
        self.queue.backing.set_ram_duration_target(0.0)
        return self.queue.hibernate()

    def sync(self) -> None:
        self.persistent_store.sync()
        self.queue.backing.sync_index()
        if self.queue.settlements.retries is not None:
            self.queue.settlements.retries.sync()
        self.queue.confirms.drain()

    def stop_and_start(self, *, asleep: bool = False) -> None:
        """A clean stop of the queue; ``asleep``: its levels begin asleep."""
        terms = self.queue.close(random.Random(1).randbytes)
        by_level = {level: terms[self.name_of(level)] for level in self.levels if terms}
        if asleep:
            self.queue = self.over(self.new_backing(terms=by_level))
            return
        opened = {
            level: VariableQueue.recover(self._parts(level), known, store_recovered=True)
            for level, known in by_level.items()
        }
        self.queue = self.over(self.new_backing(opened=opened))

    def crash(self, *, sync: bool = True) -> None:
        """The process is gone, after everything was called safe."""
        if sync:
            self.sync()
        self.queue.abandon()
        self.queue = self.over(
            self.new_backing(opened={level: VariableQueue.recover(self._parts(level)) for level in self.levels}),
            crashed=True,
        )

    def _parts(self, level: int) -> QueueFiles:
        return self.parts_of(None if self.declaration.max_priority is None else level)

    # ── what comes of it ────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self) -> list[tuple[str | None, int, bytes]]:
        """Consumer, delivery tag and body of what went to consumers since the last time."""
        self.queue.deliveries.deliver()
        self.queue.check_invariants()
        return flat(self.queue.context.drain_effects().deliveries)

    def got(self, count: int = 1_000_000, *, ack_required: bool = False, channel: str = "get") -> list[bytes]:
        taken = self.queue.deliveries.get_many(channel, count, ack_required=ack_required)
        self.queue.check_invariants()
        return [body for _, _, body in flat(taken)]

    def dead(self) -> list[tuple[str, bytes]]:
        """Reason and body of what died since the last time; it is safe where it went."""
        self.queue.check_invariants()
        letters = []
        for batch in self.queue.context.drain_effects().dead_letters:
            letters += [(one.headers["x-death"][0]["reason"], one.body) for one in batch.publications]
            self.queue.expiry.safe(batch.number)
        return letters


def flat(deliveries: list[Delivered]) -> list[tuple[str | None, int, bytes]]:
    return [
        (one.consumer, one.first_tag + index if one.first_tag else 0, body)
        for one in deliveries
        for index, body in enumerate(one.fetched.bodies())
    ]
