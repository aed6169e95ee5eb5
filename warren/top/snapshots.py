"""Snapshots: the numbers of a node, or of one of its queues, at one moment.

::

    {"warren": 1, "path", "pid", "up_s", "memory": {what Node.memory says, "paging_bytes"}, "down_vhosts": {name: why},
     "totals": {"queues", "down", "hibernated", "busy", and the sums of a row's counts}, "queues": [row], "left_out"}
    row   {"vhost", "name", "type", "state", "reason", "mode", "priorities", "consumers", "q1", "q2", "delta", "q3",
           "q4", "ready", "unacked", "in_ram", "target", "bytes", "bytes_in_ram", "published", "gone", "in_rate",
           "out_rate"}
    "topics": null without topics, else {"down": why or null, "no_room": what found no room, or null, "rows": [topic]}
    topic {"name", "queues", "messages", "appended", "in_rate", "groups": {name: lag}}

    {"warren": 1, "path", "pid", "up_s", "memory": as above, "queue": row, "stats": what Queue.stats says or null,
     "declared": {"durable", "exclusive", "auto_delete", "arguments"}}

``state`` is ``running``, ``hibernated``, ``down`` (``reason`` says why) or ``busy``. A busy queue did not answer in
time; its row has the numbers of the snapshot before, and it has no ``stats``. ``published`` counts the messages that
ever came, ``gone`` those that have left the queue permanently; both start at zero when a queue is opened. The rates
are their growth per second since the last snapshot of the same :class:`Snapshots`, and null in the first one.
``target`` is the number of messages that may be in RAM, null for any number. The ``type`` is ``classic`` or
``stream``. A stream's messages are on the disk: they count as delta, those that its files have lost as ``gone``; its
``bytes`` are null, and nothing goes out of it. For a topic, ``messages`` counts those that its files still have,
``appended`` all that ever came. Topics belong to no vhost, so a snapshot of one vhost has no topics.

A snapshot changes nothing. It does not wake a hibernated queue. A queue that has hibernated since its last row is not
asked, because its answer would be the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.engines.errors import NotFoundError
from warren.actors.queue.inspecting import ask_politely
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.inbox import Call
from warren.hosting.node_stats import each_topic, no_room
from warren.hosting.queue_rows import Key, QueueRow, each_queue, find_queue, queue_row
from warren.queue_index.message.amqp_tables import table_to_json
from warren.storage.errors import WarrenError
from warren.verbs.steps import run

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream
    from warren.hosting.running_node import RunningNode

Row = dict[str, Any]
Snapshot = dict[str, Any]
Stats = Mapping[str, Any] | None

PROTOCOL: Final = 1
QUEUE_PATIENCE_S: Final = 0.2
"""The longest wait for the answer of one queue."""
SNAPSHOT_PATIENCE_S: Final = 1.0
"""The longest wait for all of them; the rest is ``busy``."""

LISTS: Final = ("q1", "q2", "delta", "q3", "q4")
_COUNTS: Final = (*LISTS, "consumers", "ready", "unacked", "in_ram", "bytes", "bytes_in_ram", "published", "gone")
_NO_NUMBERS: Final[Row] = {
    "mode": None, **dict.fromkeys(_COUNTS, 0), "priorities": False, "target": None, "in_rate": None, "out_rate": None,
}  # fmt: skip
"""The rest of the row of a queue that is down, or has never answered."""
_RATES: Final = (("in_rate", "published"), ("out_rate", "gone"))
"""The rates, and what grows at them; a stream has only the first."""
_SUMMED: Final = (
    *LISTS, "ready", "unacked", "consumers", "in_ram", "bytes", "bytes_in_ram", "in_rate", "out_rate",
)  # fmt: skip

SORTS: Final[Mapping[str, Callable[[Row], float]]] = {
    "messages": lambda row: row["ready"] + row["unacked"],
    "unacked": lambda row: row["unacked"],
    "in": lambda row: row["in_rate"] or 0.0,
    "out": lambda row: row["out_rate"] or 0.0,
    "rate": lambda row: (row["in_rate"] or 0.0) + (row["out_rate"] or 0.0),
    "ram": lambda row: row["in_ram"],
    "name": lambda row: 0,
}
"""The orders of rows: largest value first, then by vhost and name.

Queues that are down come before all others, except in the order of names.
"""


@attrs.frozen
class _Seen:
    """A queue's row at the last snapshot."""

    answer: QueueRow
    """Without its statistics."""
    at_s: float
    row: Row


class Snapshots:
    """The snapshots of a node for one client. ``clock``: monotonic seconds."""

    def __init__(self, node: RunningNode, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._seen: dict[Key, _Seen] = {}
        self._appended: dict[str, tuple[float, int]] = {}
        """For each topic at the last snapshot: the time, and how many messages had ever been appended."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a command's request. Raises :class:`WarrenError` for a request that is wrong."""
        vhost = request.get("vhost")
        if vhost is not None and not isinstance(vhost, str):
            raise WarrenError(f"a vhost is a name or null, not {vhost!r}")
        match request.get("want"):
            case "snapshot":
                return self.take(request.get("sort", "messages"), request.get("limit"), vhost)
            case "queue":
                return self.queue("/" if vhost is None else vhost, request.get("name"))
            case "definitions":
                return run(self._node.definitions(vhost))
            case "ctl":
                from warren.ctl import verbs

                return verbs.answer(self._node, request)
            case want:
                raise WarrenError(f"a node answers for a snapshot, a queue, definitions and ctl, not for {want!r}")

    def take(self, sort: str = "messages", limit: int | None = None, vhost: str | None = None) -> Snapshot:
        """A snapshot, with at most ``limit`` rows; the totals are of all. Raises :class:`NotFoundError`."""
        if not isinstance(sort, str) or sort not in SORTS:
            raise WarrenError(f"queues are sorted by {', '.join(SORTS)}, not {sort!r}")
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise WarrenError(f"a limit is a whole number, not {limit!r}")
        if vhost is not None and vhost not in self._node.registry.vhosts and vhost not in self._node.registry.down:
            raise NotFoundError(f"no vhost '{vhost}'")
        rows = list(self._rows(vhost))
        totals = totals_of(rows)
        shown = ordered(rows, sort)[:limit]
        return self._node_part() | {
            "down_vhosts": {name: str(error) for name, error in list(self._node.registry.down.items())},
            "totals": totals,
            "queues": shown,
            "left_out": len(rows) - len(shown),
            "topics": None if vhost is not None else self._topics(),
        }

    def queue(self, vhost: str, name: object) -> Snapshot:
        """Return one queue with all its statistics. Raises :class:`NotFoundError`."""
        queue = find_queue(self._node, vhost, name) if isinstance(name, str) else None
        if queue is None:
            raise NotFoundError(f"no queue {name!r} in vhost '{vhost}'")
        key, declared = (vhost, queue.declaration.name), queue.declaration.columns()
        row, stats = self._ask(key, queue, self._seen.get(key), QUEUE_PATIENCE_S)
        return self._node_part() | {
            "queue": row,
            "stats": None if stats is None else {name: stats[name] for name in stats if name not in declared},
            "declared": {name: declared[name] for name in ("durable", "exclusive", "auto_delete")}
            | {"arguments": table_to_json(declared["arguments"])},
        }

    def _node_part(self) -> Snapshot:
        settings, memory = self._node.config.node, run(self._node.memory())
        paging_bytes = int(memory["limit_bytes"] * settings.vm_memory_high_watermark_paging_ratio)
        return {
            "warren": PROTOCOL,
            "path": self._node.path,
            "pid": os.getpid(),
            "up_s": round(self._clock() - self._node.opened_s, 1),
            "memory": memory | {"paging_bytes": paging_bytes},
        }

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _topics(self) -> dict[str, Any] | None:
        try:
            running = self._node.registry.topics
        except WarrenError as error:
            return {"down": str(error), "rows": []}
        if running is None:
            return None
        described = Call(running.groups.consumer_groups.described)
        groups = ask_politely(running.groups.actor_ref, described, QUEUE_PATIENCE_S) or {}
        now_s, before, self._appended = self._clock(), self._appended, {}
        streams = self._node.registry.streams
        of_streams = {stream.topic for vhost in list(self._node.registry.vhosts) for stream in streams.of(vhost)}
        rows = []
        for name, topic in sorted(each_topic(running, groups).items()):
            if name in of_streams:
                continue
            ranges = topic["queues"].values()
            appended = sum(queue["max_offset"] for queue in ranges)
            self._appended[name] = (now_s, appended)
            at_s, count = before.get(name, (now_s, appended))
            rows.append(
                {
                    "name": name,
                    "queues": max(running.table.topics.get(name, 0), len(ranges)),
                    "messages": appended - sum(queue["min_offset"] for queue in ranges),
                    "appended": appended,
                    "in_rate": round(max(0, appended - count) / (now_s - at_s), 1) if now_s > at_s else None,
                    "groups": {group: sum(stats["lag"].values()) for group, stats in topic["groups"].items()},
                }
            )
        return {"down": None, "no_room": no_room(running), "rows": rows}

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, only: str | None) -> Iterator[Row]:
        deadline_s = self._clock() + SNAPSHOT_PATIENCE_S
        before, self._seen = self._seen, {}
        for key, queue in each_queue(self._node, only):
            last, now_s = before.get(key), self._clock()
            if last is not None and last.answer.is_current(queue):
                row = last.row | {"in_rate": 0.0, "out_rate": 0.0}
                self._seen[key] = _Seen(last.answer, now_s, row)
                yield row
            else:
                yield self._ask(key, queue, last, max(0.0, min(QUEUE_PATIENCE_S, deadline_s - now_s)))[0]

    def _ask(self, key: Key, queue: QueueEntry | Stream, last: _Seen | None, patience_s: float) -> tuple[Row, Stats]:
        """Return a queue's row, and its stats if it answered in time. ``last``: its row of the snapshot before."""
        now_s, answer = self._clock(), queue_row(queue, patience_s)
        if last is not None and last.answer.actor is not answer.actor:  # it was opened again: its counts began at zero
            last = None
        if answer.state == "busy" and last is not None:
            self._seen[key] = last
            return last.row | {"state": "busy"}, None
        row = to_row(answer)
        if answer.stats is not None:
            if last is not None and now_s > last.at_s:
                for rate, count in _RATES if answer.actor is not None else _RATES[:1]:
                    row[rate] = round(max(0, row[count] - last.row[count]) / (now_s - last.at_s), 1)
            self._seen[key] = _Seen(attrs.evolve(answer, stats=None), now_s, row)
        return row, answer.stats


def to_row(queue: QueueRow) -> Row:
    """A queue's row, without its rates."""
    declaration, stats = queue.declaration, queue.stats
    row: Row = {
        "vhost": declaration.vhost,
        "name": declaration.name,
        "type": declaration.queue_type,
        "state": queue.state,
        "reason": queue.reason,
    }
    if declaration.is_stream:
        return row | _NO_NUMBERS | {"bytes": None} | ({} if stats is None else _of_stream(stats))
    return row | (_NO_NUMBERS if stats is None else _of_classic(stats))


def _of_stream(stats: Mapping[str, Any]) -> Row:
    return {
        "delta": stats["messages"],
        "ready": stats["messages_ready"],
        "published": stats["committed_offset"] + 1,
        "gone": stats["first_offset"],
        "consumers": stats["consumers"],
    }


def _of_classic(stats: Mapping[str, Any]) -> Row:
    status = stats["backing_queue_status"]
    target = status["target_ram_count"]
    return {
        "mode": status["mode"],
        "priorities": "priority_lengths" in status,
        "consumers": stats["consumers"],
        **{name: status[name] for name in LISTS if name != "delta"},
        "delta": status["delta"]["count"],
        "ready": stats["messages_ready"],
        "unacked": stats["messages_unacknowledged"],
        "in_ram": stats["messages_ram"],
        "target": None if target == "infinity" else int(target),
        "bytes": stats["message_bytes"],
        "bytes_in_ram": stats["message_bytes_ram"],
        "published": status["next_seq_id"],
        "gone": status["next_seq_id"] - stats["messages"] - stats["messages_dead_lettering"],
        "in_rate": None,
        "out_rate": None,
    }


def totals_of(rows: list[Row]) -> dict[str, Any]:
    """The totals of rows: how many are in which state, and the sums of their numbers."""
    totals: dict[str, Any] = {"queues": len(rows)}
    for state in ("down", "hibernated", "busy"):
        totals[state] = sum(row["state"] == state for row in rows)
    for name in _SUMMED:
        numbers = [row[name] for row in rows if row[name] is not None]
        totals[name] = round(sum(numbers), 1) if numbers or not name.endswith("rate") else None
    return totals


def ordered(rows: list[Row], sort: str) -> list[Row]:
    """Rows in one of the orders of :data:`SORTS`."""
    return sorted(rows, key=_order(sort))


def _order(sort: str) -> Callable[[Row], tuple[Any, ...]]:
    measure = SORTS[sort]

    def order(row: Row) -> tuple[Any, ...]:
        up = sort == "name" or row["state"] != "down"
        return up, -measure(row), row["vhost"], row["name"]

    return order
