"""Streams, among the queues: what a list, a page and a change of one say."""

from __future__ import annotations

from warren.actors.streams import Stream
from warren.aio import bridge
from warren.management.call import Call
from warren.management.http import bad_request
from warren.management.samples import LENGTHS, Document
from warren.storage.errors import WarrenError


def find_stream(call: Call, name: str = "queue") -> Stream | None:
    """The stream of the path, if it is one."""
    return call.node.actor.streams.find(call.vhost, call.parts[name])


def listed_streams(call: Call) -> list[Stream]:
    """Those that a list is of."""
    return [stream for vhost in call.listed_vhosts for stream in call.node.actor.streams.of(vhost)]


def short(call: Call, stream: Stream) -> Document:
    """What is known of it without reading anything."""
    declaration, node = stream.declaration, call.managed.node_name
    return {
        "arguments": dict(declaration.arguments),
        "auto_delete": False,
        "durable": True,
        "exclusive": False,
        "members": [node],
        "name": declaration.name,
        "node": node,
        "online": [node],
        "state": "running",
        "type": "stream",
        "vhost": declaration.vhost,
    }


async def documents(call: Call, streams: list[Stream]) -> list[Document]:
    """As ``/api/queues`` has them."""
    return [await document(call, stream) for stream in streams]


async def document(call: Call, stream: Stream) -> Document:
    """As ``/api/queues`` has it."""
    found = short(call, stream)
    try:
        stats = await bridge.in_thread(stream.stats)
    except WarrenError as error:  # the topics are down
        return found | {"state": "down", "reason": str(error)}
    said = {"consumers", "policy", "operator_policy", "effective_policy_definition"}
    declaration = stream.declaration
    lengths = {name: int(str(stats[name])) for name in LENGTHS}
    return (
        found
        | {name: stats[name] for name in said}
        | call.managed.samples.rates_of(("stream", declaration.vhost, declaration.name), lengths)
        | {"memory": 0, "readers": {call.managed.node_name: stats["consumers"]}}
    )


def refuse(stream: Stream | None, what: str) -> None:
    """Raise :class:`~warren.management.http.HttpError` for what a stream does not do."""
    if stream is not None:
        raise bad_request(f"{what} not supported by stream queues {stream.declaration}")
