"""The actor of the consumer groups: which member reads which queues, and how far each group is.

There is one per store, because its groups share a file (:mod:`warren.actors.engines.topics.consumer_groups`). It
assigns positions and passes no messages: members read those themselves. Committed offsets are saved every
``flush_consumer_offset_interval``; a crash goes back to the last save, and later messages are assigned again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pykka._envelope import Envelope as Letter

from warren.actors.engines.topics.consumer_groups import ConsumerGroups
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Call
from warren.actors.topics.dispatch_actor import Arrivals
from warren.actors.topics.topic_part import Autosave, TopicPart
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets
from warren.queue_index.topics.local_offsets import LocalOffsets
from warren.storage.errors import DirectoryLostError


def _nobody() -> bool:
    return False


class GroupsActor(TopicPart):
    """Owns the members and offsets of all groups. What it is asked is a call of its ``consumer_groups``."""

    def __init__(
        self,
        context: NodeContext,
        store: TopicStore,
        offsets: ConsumerOffsets,
        local_offsets: LocalOffsets,
        *,
        queues_of: Callable[[str], int],
        arrivals: Arrivals,
    ) -> None:
        super().__init__(context, f"the consumer groups of {store.directory}")
        autosave, interval_ms = Autosave(self, self._save), store.settings.flush_consumer_offset_interval
        self.consumer_groups = ConsumerGroups(
            store, offsets, local_offsets, queues_of, arrivals.ring, lambda: autosave.arm(interval_ms)
        )
        self._abandoned: deque[Callable[[], object]] = deque()

    # ── any thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def ask_later(self, work: Callable[[], object]) -> Future:
        """Ask without scheduling a turn: a waiting thread runs it, an event loop requests it with ``hurry``."""
        future = Future()
        if self.actor_stopped.is_set():
            future.fail(self.stopped_error())
        else:
            self.actor_inbox.put(Letter(Call(work), reply_to=future), wake=_nobody)
        return future

    def let_go(self, leave: Callable[[], object]) -> None:
        """Remove an abandoned member. Takes no lock, because a garbage collector may call it anywhere."""
        self._abandoned.append(leave)
        self._context.pool.submit(self.turns)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def wants_turn(self) -> bool:
        return bool(self._abandoned) and not self.actor_stopped.is_set()

    def _save(self) -> None:
        try:
            self._context.check_directory()
        except DirectoryLostError:  # appending or closing raises it; saving would create the directory again
            return
        self.consumer_groups.persist()

    def on_turn_end(self) -> None:
        while self._abandoned:
            self._abandoned.popleft()()
        if self._context.check_invariants:
            self.consumer_groups.check_invariants()
