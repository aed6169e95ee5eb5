"""LogUpkeep: what happens to a CommitLog after the appends.

What was appended is dispatched; in the mode ``"os"`` it is synced by the clock; files that have expired are deleted.

A log that is flushed by the clock is flushed by RocketMQ's rule (:class:`FlushTimer`). Every *interval* it looks. A few
pages that were written since the last flush wait for more; when the *thorough interval* is over, whatever there is
goes. A file that is full always goes. (The ConsumeQueues have the same rule with numbers of their own.)
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from warren.actors.engines.topics.stream_retention import StreamRetention, hold
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.topics.dispatch_actor import DispatchActor
from warren.actors.topics.topic_part import MS_NS
from warren.msg_store.commit_log.commit_log_expiry import Hold

PAGE_BYTES: Final = 4096


@attrs.define
class FlushTimer:
    """Times in milliseconds, by whatever clock the caller has."""

    interval_ms: int
    thorough_interval_ms: int
    least_pages: int
    last_thorough_ms: int
    """When it last looked thoroughly; at first: when it began."""

    def is_due(self, now_ms: int, flushed_end: int, end: int, file_size: int) -> bool:
        """Whether to flush now, if ``end`` is written and ``flushed_end`` flushed."""
        is_thorough = now_ms >= self.last_thorough_ms + self.thorough_interval_ms
        if is_thorough:
            self.last_thorough_ms = now_ms
        if end <= flushed_end:
            return False
        if is_thorough or not self.least_pages or flushed_end // file_size != end // file_size:
            return True
        pages = end % file_size // PAGE_BYTES - flushed_end % file_size // PAGE_BYTES
        return pages >= self.least_pages


DISPATCH_DELAY_MS: Final = 5
"""Many small batches cost far more than a few large ones, and the thread switches double that."""


class LogUpkeep:
    """The upkeep of one CommitLog. All methods are called in its actor's turns."""

    def __init__(
        self,
        actor: NodePart,
        context: NodeContext,
        store: TopicStore,
        *,
        dispatcher: DispatchActor,
        used_disk_percent: Callable[[], float],
        streams: Callable[[], Mapping[str, StreamRetention]],
    ) -> None:
        self._actor = actor
        self._clock = context.clock
        self._store = store
        self._dispatcher = dispatcher
        self._used_disk_percent = used_disk_percent
        self._streams = streams
        settings = store.settings
        self._flush_timer = FlushTimer(
            settings.flush_interval_commit_log,
            settings.flush_commit_log_thorough_interval,
            settings.flush_commit_log_least_pages,
            context.clock.now_ns() // MS_NS,
        )
        self._flush_armed = self._dispatch_armed = False

    def dispatch_soon(self) -> None:
        """Dispatch at once if a reader waits for messages; otherwise collect those of the next few milliseconds."""
        if self._dispatcher.arrivals.is_awaited():
            self._dispatcher.call_soon(self._dispatcher.dispatch)
        elif not self._dispatch_armed:
            self._dispatch_armed = True
            self._actor.call_later("dispatch", DISPATCH_DELAY_MS * MS_NS, self._dispatch, first=True)

    def _dispatch(self) -> None:
        self._dispatch_armed = False
        self._dispatcher.call_soon(self._dispatcher.dispatch)

    def arm_flush(self) -> None:
        """Set the timer of the next sync, for what is confirmed unsynced."""
        if not self._flush_armed:
            self._flush_armed = True
            wait_ns = self._store.settings.flush_interval_commit_log * MS_NS
            self._actor.call_later("flush", wait_ns, self._flush, first=True)

    def _flush(self) -> None:
        """Sync what was confirmed unsynced, if it is enough or old enough; otherwise check again later."""
        self._flush_armed = False
        log, now_ms = self._store.commit_log, self._clock.now_ns() // MS_NS
        if self._flush_timer.is_due(now_ms, log.flushed_end, log.end, log.mapped.file_size):
            self._store.flush_commit_log()
        elif log.has_unflushed:
            self.arm_flush()

    def clean_later(self) -> None:
        """Set the timer of the next deletion of expired files."""
        wait_ns = self._store.settings.clean_resource_interval * MS_NS
        self._actor.call_later("clean", wait_ns, self._clean, first=True)

    def _clean(self) -> None:
        """Delete expired files, if it is time for that."""
        self.clean_later()
        wall_us = self._clock.wall_us()
        hour = datetime.datetime.fromtimestamp(wall_us // 1_000_000).astimezone().hour
        now_ms, streams = wall_us // 1000, self._streams()

        def held(base: int) -> Hold:
            return hold(self._store, streams, base, now_ms) if streams else "not held"

        if self._store.expire_commit_log(now_ms, hour, self._used_disk_percent(), held):
            self._dispatcher.call_soon(self._store.expire_queues)
