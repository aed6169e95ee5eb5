"""The actor that builds ConsumeQueue entries and index items, separately from the threads that append.

It follows the CommitLog's end, one range per step; :class:`Arrivals` wakes readers that wait for messages of a topic.
Every ``flush_interval_consume_queue`` it makes safe what it has built, and saves how far that is (checkpoint). It also
writes the slots of the unfinished index file then, so that a copy of the live file can be searched.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.topics.topic_part import MS_NS, TopicPart
from warren.storage.errors import NoRoomError

_LOG = logger("topics")
_PAGE_BYTES: Final = 4096
_STRETCHES: Final = 4
"""Ranges per turn; each has a few MiB of the CommitLog at most."""


class Arrivals:
    """The futures of readers that wait for messages, by topic. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future]] = {}

    def wait_for(self, topics: set[str], helper: Any = None) -> Future:
        """Return a future that is answered when one of ``topics`` has new messages."""
        future = Future(helper)
        with self._lock:
            for topic in topics:
                self._waiting.setdefault(topic, []).append(future)
        return future

    def is_awaited(self) -> bool:
        """Whether a reader is waiting."""
        return bool(self._waiting)

    def forget(self, topics: set[str], future: Future) -> None:
        """Drop a future that is no longer waited for."""
        with self._lock:
            for topic in topics:
                waiting = self._waiting.get(topic, [])
                if future in waiting:
                    waiting.remove(future)
                if not waiting:
                    self._waiting.pop(topic, None)

    def ring(self, topics: set[str] | None = None) -> None:
        """Wake readers that wait for one of ``topics``; ``None``: all readers."""
        with self._lock:
            woken = [
                future
                for topic in (list(self._waiting) if topics is None else topics)
                for future in self._waiting.pop(topic, ())
            ]
        for future in woken:
            future.offer(None)


class DispatchActor(TopicPart):
    """Owns the building half of a topic store."""

    def __init__(self, context: NodeContext, store: TopicStore) -> None:
        super().__init__(context, f"the entries and keys of {store.directory}")
        self.store = store
        self.arrivals = Arrivals()
        self.listeners: dict[str, Callable[[], None]] = {}
        """Functions to call at every arrival in a topic; set before anything arrives."""
        self._catching_up: list[tuple[int, bool, Future]] = []
        self._flush_armed = False
        self._cuts_told = len(store.cuts)
        self._index_files = len(store.index.index_files)
        self._thorough_ns = context.clock.now_ns()

    def close(self) -> None:
        self.store.close()
        self.arrivals.ring()
        super().close()

    def dispatch(self) -> None:
        """Build from new data in the CommitLog."""
        try:
            if self.store.behind_bytes:
                self._context.check_directory()  # the first entry of a queue would create its directory again
            self._build()
            self.full_disk.found_room("room")
        except NoRoomError as error:
            self.full_disk.retry("room", error, self.dispatch)
        self._tell_arrivals()
        while self._cuts_told < len(self.store.cuts):
            cut = self.store.cuts[self._cuts_told]
            _LOG.error("%s", cut, extra=log_event("topics_cut", **cut.log_fields()))
            self._cuts_told += 1
        if not self._flush_armed:
            self._arm_flush()
        if self._context.check_invariants:
            self.store.check_built()

    def _build(self) -> None:
        for _ in range(_STRETCHES):
            if not self.store.dispatch():
                return
        self.call_soon(self.dispatch)

    def _flush(self) -> None:
        try:
            self._flush_what_is_due()
            self.full_disk.found_room("flush")
        except NoRoomError as error:
            if "flush" not in self.full_disk:
                _LOG.warning(
                    "%s: not flushed: %s",
                    self.describe(),
                    error,
                    extra=log_event("topics_unwritten", error, part=self.describe()),
                )
            self._flush_armed = True
            self.full_disk.retry("flush", error, self._flush)

    def _flush_what_is_due(self) -> None:
        """Flush queues with enough unsaved pages at every interval; everything at every thorough one, and then stop."""
        settings, now_ns = self.store.settings, self._context.clock.now_ns()
        self.store.index.write()
        if now_ns - self._thorough_ns < settings.flush_consume_queue_thorough_interval * MS_NS:
            self.store.flush_queues(settings.flush_consume_queue_least_pages * _PAGE_BYTES)
            if self._index_files != len(
                self.store.index.index_files
            ):  # a full one keeps its slots in memory until then
                self._flush_index()
            self._arm_flush()
            return
        self.store.flush_queues()
        self._flush_index()
        self._thorough_ns = now_ns
        self._flush_armed = False

    def _flush_index(self) -> None:
        self._index_files = len(self.store.index.index_files)
        self.store.flush_index()

    def _arm_flush(self) -> None:
        self._flush_armed = True
        wait_ns = self.store.settings.flush_interval_consume_queue * MS_NS
        self.call_later("flush", wait_ns, self._flush, first=True)

    def _tell_arrivals(self) -> None:
        touched = self.store.drain_touched()
        if touched:
            self.arrivals.ring(touched)
            for topic in touched & self.listeners.keys():
                self.listeners[topic]()
        if self._catching_up:
            waiting, self._catching_up = self._catching_up, []
            for end, with_index, future in waiting:
                if self._is_there(end, with_index):
                    future.set()
                else:
                    self._catching_up.append((end, with_index, future))

    def delete_topic(self, topic: str) -> None:
        """Delete what was built for a topic, all of whose messages are written. Waiting readers look again."""
        with contextlib.suppress(NoRoomError):
            while self.store.dispatch():
                pass
        self.store.delete_topic(topic)
        self.store.drain_touched()
        self.arrivals.ring()

    def catch_up(self, end: int, *, with_index: bool = False) -> Future | None:
        """Return a future that is answered once entries (``with_index``: and keys) are built up to this physical
        offset; ``None`` if they are."""
        self.dispatch()
        if self._is_there(end, with_index):
            return None
        future = Future(self.turns)
        self._catching_up.append((end, with_index, future))
        return future

    def _is_there(self, end: int, with_index: bool) -> bool:
        if "room" in self.full_disk:  # without room for more, existing entries can be read
            return True
        return (self.store.indexed if with_index else self.store.dispatched) >= end

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        waiting, self._catching_up = self._catching_up, []
        for _, _, future in waiting:
            future.fail(self.stopped_error())
        self.arrivals.ring()
