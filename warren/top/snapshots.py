"""Snapshots: a node in numbers, at one moment, for whoever looks on.

::

    {"warren": 1, "path", "pid", "up_s", "memory": {what Node.memory says, "paging_bytes"}, "down_vhosts": {name: why},
     "totals": {"queues", "down", "hibernated", "busy", and the sums of a row's counts}, "queues": [row], "left_out"}
    row   {"vhost", "name", "state", "reason", "mode", "priorities", "consumers", "q1", "q2", "delta", "q3", "q4",
           "ready", "unacked", "in_ram", "target", "bytes", "bytes_in_ram", "published", "gone", "in_rate", "out_rate"}
    "topics": null where there are none, else {"down": why or null, "rows": [topic]}
    topic {"name", "queues", "messages", "appended", "in_rate", "groups": {name: lag}}

``state`` is ``running``, ``hibernated``, ``down`` (``reason`` says why) or ``busy``: a queue that did not get to
answer, with the numbers that it had last. ``published`` counts what ever came, ``gone`` what of it has left for good;
both begin anew when a queue is opened anew. The rates are their growth in a second since the same looker's last
snapshot, null in the first. Of a topic ``messages`` are those that its files still have, ``appended`` all that ever
came; topics are of no vhost, so they are left out where one is asked for. ``target`` is how many messages may be in
RAM, null for any number.

*Looking changes nothing*: it keeps no queue awake, and one that rests is not even asked, for it would say what it said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from actors import messages as m
from actors import topic_messages as tm
from actors.engines.errors import NotFoundError
from actors.looking import ask_politely
from actors.running_vhost import QueueCell
from storage.errors import WarrenError
from warren.topic_stats import each_topic

if TYPE_CHECKING:
    from warren.node import Node

Row = dict[str, Any]
Snapshot = dict[str, Any]

PROTOCOL: Final = 1
QUEUE_PATIENCE_S: Final = 0.2
"""How long one queue is waited for."""
SNAPSHOT_PATIENCE_S: Final = 1.0
"""How long all of them are; then the rest is ``busy``."""

LISTS: Final = ("q1", "q2", "delta", "q3", "q4")
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
"""What comes first: most of these; then by vhost and name. Queues that are down come before all others, but by name."""


@attrs.frozen
class _Seen:
    """What is remembered of a queue between two snapshots."""

    actor: object
    rest_number: int
    at_s: float
    row: Row


class Snapshots:
    """One looker's snapshots of a node. ``clock``: monotonic seconds."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._appended: dict[str, tuple[float, int]] = {}
        """Of each topic at the last snapshot: when, and how many messages had ever come."""

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a request over the node's socket gets. Raises :class:`WarrenError` for one that cannot be understood."""
        vhost = request.get("vhost")
        if vhost is not None and not isinstance(vhost, str):
            raise WarrenError(f"a vhost is a name or null, not {vhost!r}")
        match request.get("want"):
            case "snapshot":
                return self.take(request.get("sort", "messages"), request.get("limit"), vhost)
            case "definitions":
                return self._node.definitions(vhost)
            case other:
                raise WarrenError(f"a node knows snapshots and definitions, and no {other!r}")

    def take(self, sort: str = "messages", limit: int | None = None, vhost: str | None = None) -> Snapshot:
        """A snapshot, with at most ``limit`` rows; the totals are of all. Raises :class:`NotFoundError`."""
        if not isinstance(sort, str) or sort not in SORTS:
            raise WarrenError(f"queues are sorted by {', '.join(SORTS)}, not {sort!r}")
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise WarrenError(f"a limit is a whole number, not {limit!r}")
        if vhost is not None and vhost not in self._node.actor.vhosts and vhost not in self._node.actor.down:
            raise NotFoundError(f"no vhost '{vhost}'")
        rows = list(self._rows(vhost))
        totals = _totals(rows)
        shown = sorted(rows, key=_order(sort))[:limit]
        settings = self._node.config.node
        memory = self._node.memory()
        return {
            "warren": PROTOCOL,
            "path": self._node.path,
            "pid": os.getpid(),
            "up_s": round(self._clock() - self._node.opened_s, 1),
            "memory": memory
            | {"paging_bytes": int(memory["limit_bytes"] * settings.vm_memory_high_watermark_paging_ratio)},
            "down_vhosts": {name: str(error) for name, error in list(self._node.actor.down.items())},
            "totals": totals,
            "queues": shown,
            "left_out": len(rows) - len(shown),
            "topics": None if vhost is not None else self._topics(),
        }

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _topics(self) -> dict[str, Any] | None:
        try:
            running = self._node.actor.topics
        except WarrenError as error:
            return {"down": str(error), "rows": []}
        if running is None:
            return None
        groups = ask_politely(running.groups.actor_ref, tm.GetGroups(), QUEUE_PATIENCE_S) or {}
        now_s, before, self._appended = self._clock(), self._appended, {}
        rows = []
        for name, found in sorted(each_topic(running, groups).items()):
            ranges = found["queues"].values()
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
                    "groups": {group: sum(one["lag"].values()) for group, one in found["groups"].items()},
                }
            )
        return {"down": None, "rows": rows}

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, only: str | None) -> Iterator[Row]:
        deadline_s = self._clock() + SNAPSHOT_PATIENCE_S
        before, self._seen = self._seen, {}
        for vhost, running in list(self._node.actor.vhosts.items()):
            if only in (None, vhost):
                for name, cell in list(running.cells.items()):
                    yield self._row(cell, (vhost, name), before.get((vhost, name)), deadline_s)

    def _row(self, cell: QueueCell, key: tuple[str, str], last: _Seen | None, deadline_s: float) -> Row:
        actor = cell.running
        if actor is None:
            reason = str(cell.error if cell.error is not None else cell.down_error())
            return _unknown(key, "down") | {"reason": reason}
        if last is not None and last.actor is not actor:  # it was opened anew: other numbers
            last = None
        now_s, rest_number = self._clock(), actor.rest_number
        if last is not None and rest_number and last.rest_number == rest_number:
            row = last.row | {"in_rate": 0.0, "out_rate": 0.0}
        else:
            patience_s = max(0.0, min(QUEUE_PATIENCE_S, deadline_s - now_s))
            stats = ask_politely(actor.actor_ref, m.GetStats(), patience_s)
            if stats is None:
                if last is not None:
                    self._seen[key] = last
                return (_unknown(key, "busy") if last is None else last.row) | {"state": "busy"}
            row = to_row(key, stats) | ({"state": "hibernated"} if rest_number else {})
            if last is not None and now_s > last.at_s:
                for rate, count in (("in_rate", "published"), ("out_rate", "gone")):
                    row[rate] = round(max(0, row[count] - last.row[count]) / (now_s - last.at_s), 1)
        self._seen[key] = _Seen(actor, rest_number, now_s, row)
        return row


def to_row(key: tuple[str, str], stats: Mapping[str, Any]) -> Row:
    """What a queue's stats come to."""
    status = stats["backing_queue_status"]
    target = status["target_ram_count"]
    return {
        "vhost": key[0],
        "name": key[1],
        "state": stats["state"],
        "reason": None,
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


def _unknown(key: tuple[str, str], state: str) -> Row:
    counts = (*LISTS, "consumers", "ready", "unacked", "in_ram", "bytes", "bytes_in_ram", "published", "gone")
    nothing: Row = {"vhost": key[0], "name": key[1], "state": state, "reason": None, "mode": None, "priorities": False}
    return nothing | dict.fromkeys(counts, 0) | {"target": None, "in_rate": None, "out_rate": None}


def _totals(rows: list[Row]) -> dict[str, Any]:
    totals: dict[str, Any] = {"queues": len(rows)}
    for state in ("down", "hibernated", "busy"):
        totals[state] = sum(row["state"] == state for row in rows)
    for name in _SUMMED:
        known = [row[name] for row in rows if row[name] is not None]
        totals[name] = round(sum(known), 1) if known or not name.endswith("rate") else None
    return totals


def _order(sort: str) -> Callable[[Row], tuple[Any, ...]]:
    measure = SORTS[sort]

    def order(row: Row) -> tuple[Any, ...]:
        up = sort == "name" or row["state"] != "down"
        return up, -measure(row), row["vhost"], row["name"]

    return order
