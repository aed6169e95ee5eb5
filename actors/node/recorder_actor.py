"""The actor that records a running node at regular times: incoming and outgoing messages, and the state of every queue.

It determines the times and the rows; the destination of the rows is injected (:class:`Record`), which also defines the
file format. A *step* is a time of the recorder: every ``record_interval_ms`` since it began. At each step it asks
queues to sample themselves (:mod:`warren.actors.queue.sampling`) and the memory monitor for its numbers; they answer in
a turn of their own, and the row has the time of that turn.

*It wakes no queue.* A queue that is entirely on disk and has had nothing to do since its last row is not asked, and has
no row. A queue that has not answered the last step's message gets no other; its next row counts since the last one. A
queue that is closed or deleted sends a last row by itself.

*It does no harm.* Any error of the record is logged, and ends the record alone: queues go on counting without effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from warren.actors import messages as m
from warren.actors.clock import NS
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.sampling import Row, node_row
from warren.actors.runtime.timer import tell

_LOG = logger("record")
_COUNTED: Final = (
    "published", "refused", "delivered", "acked", "requeued", "rejected", "dead_lettered", "purged",
)  # fmt: skip


class Record(Protocol):
    """The destination of rows. Used by one thread at a time. Every method but :meth:`close` may raise anything."""

    def check(self) -> None:
        """Raise :class:`~warren.storage.errors.SettingsError` if it could never be opened; changes nothing."""

    def open(self, about: Mapping[str, Any]) -> None:
        """Begin the record. ``about``: facts about the whole record, as JSON values."""

    def add_queue(self, row: Row) -> None:
        """Add a queue's row, with all of :data:`warren.actors.queue.sampling.QUEUE_COLUMNS`."""

    def add_node(self, row: Row) -> None:
        """Add a node's row, with all of :data:`warren.actors.queue.sampling.NODE_COLUMNS`."""

    def end_step(self, now_s: float) -> None:
        """Called at the end of a step, ``now_s`` seconds after the beginning: buffered rows may be written."""

    def close(self) -> None:
        """End the record: all added rows can be read."""


@attrs.define
class _Seen:
    """A queue's last row."""

    at_ns: int
    turns: int
    messages_read: int
    messages_written: int
    asleep: bool


class RecorderActor(NodePart):
    """Owns one node's record. ``queues`` returns the running queue actors."""

    def __init__(self, context: NodeContext, record: Record, queues: Callable[[], Iterable[QueueActor]]) -> None:
        super().__init__(context, "the recorder")
        self._record = record
        self._queues = queues
        self._began_ns = context.clock.now_ns()
        self._interval_ns = context.settings.record_interval_ms * 1_000_000
        self._step = 0
        self._seen: dict[str, _Seen] = {}
        self._asked: set[str] = set()
        self._node_row: Row | None = None
        """The row of the last step; it waits until the queues have said whether they are awake."""

    def on_start(self) -> None:
        self._look()

    def on_receive(self, message: object) -> object:
        match message:
            case m.QueueSampled():
                self._guarded(lambda: self._on_queue(message))
            case m.MemorySampled():
                self._on_memory(message)
            case m.CloseRecord():
                self._guarded(self._close)
                if not self.actor_stopped.is_set():
                    self._stop()
            case _:
                return super().on_receive(message)
        return None

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call ``work``; an error ends the record."""
        try:
            work()
        except Exception as error:
            _LOG.error("the recording ends here: %s", error, extra=log_event("record_ended", error))
            self.on_error(error)
            self._stop()

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_due(self) -> None:
        self._write_node()
        now_ns = self._context.clock.now_ns()
        self._record.end_step((now_ns - self._began_ns) / NS)
        self._step = max(self._step + 1, (now_ns - self._began_ns) // self._interval_ns)
        self._look()

    def _look(self) -> None:
        """Ask all queues that may have changed, and the memory monitor."""
        seen: dict[str, _Seen] = {}
        asked: set[str] = set()
        for actor in self._queues():
            urn = actor.actor_urn
            last = self._seen.get(urn)
            if last is not None:
                seen[urn] = last
                if last.asleep and not actor.has_changed(last.turns):
                    continue
            if urn in self._asked or tell(actor.actor_ref, m.SampleQueue(self._step)):
                asked.add(urn)
        self._seen, self._asked = seen, asked
        tell(self._context.monitor, m.SampleMemory(self._step))
        due_ns = self._began_ns + (self._step + 1) * self._interval_ns
        self.call_later("record", due_ns - self._context.clock.now_ns(), lambda: self._guarded(self._on_due))

    def _on_queue(self, message: m.QueueSampled) -> None:
        urn, row = message.urn, dict(message.row)
        last = self._seen.get(urn)
        self._asked.discard(urn)
        again = message.step is None and last is not None and last.at_ns == message.at_ns
        if again and not any(row[name] for name in _COUNTED):
            return  # a last row that repeats the previous one
        seen = _Seen(message.at_ns, message.turns, row["messages_read"], row["messages_written"], bool(row["asleep"]))
        row["time_s"] = max(message.at_ns - self._began_ns, 0) / NS
        row["step"] = self._step + 1 if message.step is None else message.step
        row["ram_bytes"] = message.ram_bytes
        row["turns"] = message.turns - (0 if last is None else last.turns)
        row["messages_read"] -= 0 if last is None else last.messages_read
        row["messages_written"] -= 0 if last is None else last.messages_written
        self._seen[urn] = seen
        self._record.add_queue(row)

    def _on_memory(self, message: m.MemorySampled) -> None:
        self._node_row = node_row(message.numbers) | {
            "time_s": (message.at_ns - self._began_ns) / NS,
            "step": message.step,
            "allocated_bytes": self._context.allocated.read(),
        }

    def _write_node(self) -> None:
        row, self._node_row = self._node_row, None
        if row is not None:
            asleep = sum(seen.asleep for seen in self._seen.values())
            row |= {"queues": len(self._seen), "queues_awake": len(self._seen) - asleep}
            self._record.add_node(row)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _close(self) -> None:
        self._write_node()
        self._context.recorder = None
        self.cancel_timers()
        self._record.close()

    def on_error(self, error: BaseException) -> None:
        self._context.recorder = None
        self.cancel_timers()
        with contextlib.suppress(Exception):
            self._record.close()
