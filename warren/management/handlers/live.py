"""``/api/snapshot``: what the page draws, of all queues (:mod:`warren.top.snapshots`) and of blocked publishers.

However many clients ask, the node is asked at most about once a second.
"""

from __future__ import annotations

from typing import Any, Final

from warren.actors.engines.errors import NotFoundError
from warren.aio import bridge
from warren.management.call import Call
from warren.management.http import bad_request, integer, not_found
from warren.management.samples import Document
from warren.top.snapshots import SORTS, Snapshot, ordered, totals_of

MAX_ROWS: Final = 1000


async def snapshot(call: Call) -> Any:
    """Rows of queues: ``vhost``, ``name`` (a piece of it), ``sort``, ``page``, ``limit``; with ``queue``, that one."""
    allowed = call.vhosts if call.is_administrator else call.usable_vhosts
    queue = call.query.get("queue")
    vhost = call.query.get("vhost", None if queue is None else "/")
    if vhost is not None and vhost not in allowed:
        raise not_found()
    if queue is not None and vhost is not None:
        return await _one(call, vhost, queue)
    node_snapshot = await call.managed.live.take()
    sort, limit = call.query.get("sort", "messages"), integer(call.query.get("limit", 100))
    page = integer(call.query.get("page", 1))
    if page < 1 or limit < 0:
        raise bad_request(f"there is no page {page} of {limit} queues")
    if sort not in SORTS:
        raise bad_request(f"queues are sorted by {', '.join(SORTS)}")
    text = call.query.get("name", "").lower()
    vhosts = set(allowed if vhost is None else [vhost])

    def rows() -> Document:
        visible_rows = [row for row in node_snapshot["queues"] if row["vhost"] in vhosts]
        matching = ordered([row for row in visible_rows if text in row["name"].lower()], sort)
        size = min(limit, MAX_ROWS)
        shown = matching[(page - 1) * size : page * size]
        counts = {"matching": len(matching), "left_out": len(matching) - len(shown)}
        return {"totals": totals_of(visible_rows), "queues": shown} | counts

    return _node(call, node_snapshot) | {"vhosts": allowed} | await bridge.in_thread(rows)


def _node(call: Call, node_snapshot: Snapshot) -> Document:
    memory = node_snapshot["memory"] if call.is_monitor else None
    return {"memory": memory, "held": _held(call, node_snapshot), "clients": _clients(call)}


async def _one(call: Call, vhost: str, name: str) -> Document:
    try:
        queue_snapshot = await call.managed.live.queue(vhost, name)
    except NotFoundError:
        raise not_found(f"no queue '{name}' in vhost '{vhost}'") from None
    policy = (queue_snapshot["stats"] or {}).get("policy")
    document = {"queue": queue_snapshot["queue"], "declared": queue_snapshot["declared"], "policy": policy}
    return document | _node(call, queue_snapshot)


def _held(call: Call, node_snapshot: Snapshot) -> Document:
    """Return the alarms, and what cannot publish at the moment."""
    connections = list(call.managed.clients.connections.values())
    return {
        "alarms": node_snapshot["memory"]["alarms"],
        "connections": sum(connection.info()["state"] == "blocked" for connection in connections),
        "publishers": call.node.held_publishers,
    }


def _clients(call: Call) -> Document:
    connections = list(call.managed.clients.connections.values())
    return {"connections": len(connections), "channels": sum(len(connection.channels) for connection in connections)}
