"""Connections, channels and consumers: listed, and connections closed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from warren.management.call import Call
from warren.management.clients import channels_of, connection_json, connections_of, consumers_of
from warren.management.http import Done, Long, in_pieces, not_authorised, not_found
from warren.management.lists import listed
from warren.management.overview import disable_stats
from warren.management.samples import Document

CLOSED = "Closed via management plugin"


def _seen(call: Call, found: Iterable[Document]) -> Iterator[Document]:
    """Those that the user may see, of the vhost that the path says."""
    vhost = call.one_vhost
    return (
        one
        for one in found
        if (call.is_monitor or one["user"] == call.user.name) and (vhost is None or one["vhost"] == vhost)
    )


def _with_rates(call: Call, found: Document, *names: str) -> Document:
    counters = {name: found[name] for name in names if isinstance(found.get(name), int | float)}
    past, samples = call.past, call.managed.samples
    said = found | samples.rates_of(("client", found["name"]), counters, past)
    stats = found.get("message_stats")
    if stats:
        plain = {name: value for name, value in stats.items() if isinstance(value, int | float)}
        said["message_stats"] = samples.rates_of(("client stats", found["name"]), plain, past)
    return said


async def connections(call: Call) -> Any:
    """``/api/connections``, ``/api/vhosts/:vhost/connections``."""
    found = _seen(call, connections_of(call.managed.clients, call.managed.node_name))
    if disable_stats(call):
        names = ("name", "vhost", "user", "node")
        shown = await in_pieces({name: one[name] for name in names} for one in found)
    else:
        shown = await in_pieces(_with_rates(call, one, "recv_oct", "send_oct") for one in found)
    return Long(lambda: listed(shown, call.query, pages=True))


def _find(call: Call) -> tuple[Any, Document]:
    name = call.parts["connection"]
    connection = call.managed.clients.connections.get(name)
    if connection is None:
        raise not_found()
    said = connection_json(name, connection, call.managed.node_name)
    may = call.is_administrator if call.request.method == "DELETE" else call.is_monitor
    if not may and said["user"] != call.user.name:
        raise not_authorised("User not authorised to access object")
    return connection, said


async def connection(call: Call) -> Any:
    """``/api/connections/:connection``."""
    _, said = _find(call)
    if disable_stats(call):
        return {"name": said["name"]}
    return _with_rates(call, said, "recv_oct", "send_oct")


async def delete_connection(call: Call) -> Any:
    """Close a connection; the header ``x-reason`` says why."""
    found, _ = _find(call)
    await _close(call, found)
    return Done()


async def _close(call: Call, connection: Any) -> None:
    closing = connection.close(call.request.headers.get("x-reason", CLOSED))
    if inspect.isawaitable(closing):
        await closing


async def connection_channels(call: Call) -> Any:
    """``/api/connections/:connection/channels``."""
    _, said = _find(call)
    found = channels_of(call.managed.clients, call.managed.node_name, said["name"])
    return listed([_with_rates(call, one) for one in found], call.query)


async def user_connections(call: Call) -> Any:
    """``/api/connections/username/:username``."""
    name = call.parts["username"]
    if not call.is_monitor and name != call.user.name:
        raise not_authorised("User not authorised to access object")
    found = connections_of(call.managed.clients, call.managed.node_name)
    names = ("name", "vhost", "user", "node")
    return listed([{key: one[key] for key in names} for one in found if one["user"] == name], call.query)


async def delete_user_connections(call: Call) -> Any:
    """Close all connections of a user."""
    name = call.parts["username"]
    if not call.is_administrator and name != call.user.name:
        raise not_authorised("User not authorised to access object")
    for connection in list(call.managed.clients.connections.values()):
        if connection.info().get("user") == name:
            await _close(call, connection)
    return Done()


async def channels(call: Call) -> Any:
    """``/api/channels``, ``/api/vhosts/:vhost/channels``."""
    found = _seen(call, channels_of(call.managed.clients, call.managed.node_name))
    shown = await in_pieces(_with_rates(call, one) for one in found)
    return Long(lambda: listed(shown, call.query, pages=True))


async def channel(call: Call) -> Any:
    """``/api/channels/:channel``."""
    for one in channels_of(call.managed.clients, call.managed.node_name):
        if one["name"] == call.parts["channel"]:
            if not call.is_monitor and one["user"] != call.user.name:
                raise not_authorised("User not authorised to access object")
            mine = [
                consumer
                for consumer in consumers_of(call.managed.clients, call.managed.node_name)
                if consumer["channel_details"]["name"] == one["name"]
            ]
            return {"consumer_details": mine, "deliveries": [], "publishes": []} | _with_rates(call, one)
    raise not_found()


async def consumers(call: Call) -> Any:
    """``/api/consumers``, ``/api/consumers/:vhost``."""
    allowed = set(call.listed_vhosts)
    found = [
        one
        for one in await in_pieces(consumers_of(call.managed.clients, call.managed.node_name))
        if one["queue"].get("vhost") in allowed
        and (call.is_monitor or one["channel_details"]["user"] == call.user.name)
    ]
    return Long(lambda: listed(found, call.query, ()))
