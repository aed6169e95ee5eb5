"""Connections, channels and consumers: listed, and connections closed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from warren.management.call import Call
from warren.management.clients import channels_of, connections_of, consumers_of
from warren.management.handlers.overview import disable_stats
from warren.management.http import Long, done, in_pieces, not_authorised, not_found
from warren.management.lists import listed
from warren.management.samples import Document

CLOSED = "Closed via management plugin"


def _seen(call: Call, documents: Iterable[Document]) -> Iterator[Document]:
    """The documents that the user may see; only those of the request's vhost, if it names one."""
    vhost = call.one_vhost
    return (
        document
        for document in documents
        if (call.is_monitor or document["user"] == call.user.name) and (vhost is None or document["vhost"] == vhost)
    )


def _with_rates(call: Call, document: Document, *names: str) -> Document:
    counters = {name: document[name] for name in names if isinstance(document.get(name), int | float)}
    past, samples = call.past, call.managed.samples
    rated = document | samples.rates_of(("client", document["name"]), counters, past)
    stats = document.get("message_stats")
    if stats:
        plain = {name: value for name, value in stats.items() if isinstance(value, int | float)}
        rated["message_stats"] = samples.rates_of(("client stats", document["name"]), plain, past)
    return rated


async def connections(call: Call) -> Any:
    """``/api/connections``, ``/api/vhosts/:vhost/connections``."""
    documents = _seen(call, connections_of(call.managed.clients))
    if disable_stats(call):
        names = ("name", "vhost", "user", "node")
        shown = await in_pieces({name: document[name] for name in names} for document in documents)
    else:
        shown = await in_pieces(_with_rates(call, document, "recv_oct", "send_oct") for document in documents)
    return Long(lambda: listed(shown, call.query, pages=True))


def _check_own(call: Call, is_allowed: bool, user: str) -> None:
    """Raise :class:`HttpError` for what belongs to another user, unless the user has the right to what others have."""
    if not is_allowed and user != call.user.name:
        raise not_authorised("User not authorised to access object")


def _find(call: Call) -> tuple[Any, Document]:
    connection = call.managed.clients.connections.get(call.parts["connection"])
    if connection is None:
        raise not_found()
    document = connection.info()
    _check_own(call, call.is_administrator if call.request.method == "DELETE" else call.is_monitor, document["user"])
    return connection, document


async def connection(call: Call) -> Any:
    """``/api/connections/:connection``."""
    _, document = _find(call)
    if disable_stats(call):
        return {"name": document["name"]}
    return _with_rates(call, document, "recv_oct", "send_oct")


async def delete_connection(call: Call) -> Any:
    """Close a connection; the header ``x-reason`` says why."""
    connection, _ = _find(call)
    await _close(call, connection)
    return done()


async def _close(call: Call, connection: Any) -> None:
    closing = connection.close(call.request.headers.get("x-reason", CLOSED))
    if inspect.isawaitable(closing):
        await closing


async def connection_channels(call: Call) -> Any:
    """``/api/connections/:connection/channels``."""
    connection, _ = _find(call)
    channels = list(connection.channels.values())
    return listed([_with_rates(call, channel.info()) for channel in channels], call.query)


async def user_connections(call: Call) -> Any:
    """``/api/connections/username/:username``."""
    name = call.parts["username"]
    _check_own(call, call.is_monitor, name)
    documents = connections_of(call.managed.clients)
    names = ("name", "vhost", "user", "node")
    return listed(
        [{key: document[key] for key in names} for document in documents if document["user"] == name], call.query
    )


async def delete_user_connections(call: Call) -> Any:
    """Close all connections of a user."""
    name = call.parts["username"]
    _check_own(call, call.is_administrator, name)
    for connection in list(call.managed.clients.connections.values()):
        if connection.info().get("user") == name:
            await _close(call, connection)
    return done()


async def channels(call: Call) -> Any:
    """``/api/channels``, ``/api/vhosts/:vhost/channels``."""
    documents = _seen(call, channels_of(call.managed.clients))
    shown = await in_pieces(_with_rates(call, document) for document in documents)
    return Long(lambda: listed(shown, call.query, pages=True))


async def channel(call: Call) -> Any:
    """``/api/channels/:channel``."""
    for document in channels_of(call.managed.clients):
        if document["name"] == call.parts["channel"]:
            _check_own(call, call.is_monitor, document["user"])
            consumer_documents = [
                consumer
                for consumer in consumers_of(call.managed.clients)
                if consumer["channel_details"]["name"] == document["name"]
            ]
            return {"consumer_details": consumer_documents, "deliveries": [], "publishes": []} | _with_rates(
                call, document
            )
    raise not_found()


async def consumers(call: Call) -> Any:
    """``/api/consumers``, ``/api/consumers/:vhost``."""
    allowed = set(call.listed_vhosts)
    documents = [
        document
        for document in await in_pieces(consumers_of(call.managed.clients))
        if document["queue"].get("vhost") in allowed
        and (call.is_monitor or document["channel_details"]["user"] == call.user.name)
    ]
    return Long(lambda: listed(documents, call.query, ()))
