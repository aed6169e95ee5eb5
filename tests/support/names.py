"""Names with any characters, and where names can be said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import warren
from warren import aio

NAMES = {
    "empty": "",
    "255 bytes": "n" * 255,
    "256 bytes": "n" * 256,
    "256 bytes of 128 characters": "é" * 128,
    "NUL": "a\0b",
    "newline": "a\nb",
    "tab": "a\tb",
    "slash": "a/b",
    "dots": "..",
    "percent": "a%2Fb%s",
    "a byte that is no UTF-8": "a\udcffb",
    "half of a surrogate pair": "\ud800",
    "emoji": "\U0001f407",
    "right to left": "a\u202eb",
    "escape": "\x1b[2Jx",
    "HTML": "<script>alert(1)</script>",
    "space": " ",
}


def queue(node: warren.Node, name: str) -> None:
    node.queue(name).publish(b"x").wait()


def exchange(node: warren.Node, name: str) -> None:
    node.exchange(name, "fanout")
    node.bind("kept", name, "key")


def vhost(node: warren.Node, name: str) -> None:
    node.vhost(name).queue("q").publish(b"x").wait()


def user(node: warren.Node, name: str) -> None:
    node.add_user(name, "secret")
    node.authenticate(name, "secret")
    node.set_permissions(name, "", "", "")


def routing_key(node: warren.Node, name: str) -> None:
    node.bind("kept", node.exchange("topic", "topic"), "#")
    node.exchange("topic").publish(b"x", name).wait()


def binding(node: warren.Node, name: str) -> None:
    node.bind("kept", node.exchange("topic", "topic"), name)


def delayed(node: warren.Node, name: str) -> None:
    kept = node.queue("kept")
    kept.publish(b"x", delay=3600, message_id=name).wait()
    assert kept.cancel_delayed(name) == 1


def reader(node: warren.Node, group: str, **arguments: Any) -> None:
    with node.topic("kept").reader(group, **arguments) as one:
        list(one.records(1))
        one.commit()


def in_asyncio(ask: Callable[[aio.Node, str], Awaitable[object]]) -> Callable[[warren.Node, str], object]:
    """A way of a coroutine's, on what runs for threads."""

    async def asked(node: warren.Node, name: str) -> None:
        await ask(aio.Node(node), name)

    return lambda node, name: asyncio.run(asked(node, name))


async def aio_queue(node: aio.Node, name: str) -> None:
    await (await node.queue(name)).publish(b"x")


async def aio_exchange(node: aio.Node, name: str) -> None:
    await node.exchange(name, "fanout")
    await node.bind("kept", name, "key")


async def aio_routing_key(node: aio.Node, name: str) -> None:
    exchange = await node.exchange("topic", "topic")
    await node.bind("kept", exchange, "#")
    await exchange.publish(b"x", name)


async def aio_vhost(node: aio.Node, name: str) -> None:
    async with await node.vhost(name) as one:
        await one.queue("q")


async def aio_message_id(node: aio.Node, name: str) -> None:
    await (await node.queue("kept")).publish(b"x", message_id=name)


AIO_WAYS: dict[str, Callable[[warren.Node, str], object]] = {
    "queue": in_asyncio(aio_queue),
    "exchange": in_asyncio(aio_exchange),
    "vhost": in_asyncio(aio_vhost),
    "routing key": in_asyncio(aio_routing_key),
    "message_id": in_asyncio(aio_message_id),
    "topic": in_asyncio(lambda node, name: node.topic(name)),
    "policy": in_asyncio(lambda node, name: node.set_policy(name, "^none$", {"max-length": 5})),
}
"""The same as the ways of :data:`WAYS` that are called so, in asyncio."""

WAYS: dict[str, Callable[[warren.Node, str], object]] = {
    "queue": queue,
    "exchange": exchange,
    "vhost": vhost,
    "user": user,
    "password": lambda node, name: node.authenticate("guest", name),
    "new password": lambda node, name: node.add_user(f"user {name!r}", name),
    "policy": lambda node, name: node.set_policy(name, "^none$", {"max-length": 5}),
    "routing key": routing_key,
    "binding": binding,
    "publish_to": lambda node, name: node.publish_to([name], b"x").wait(),
    "header": lambda node, name: node.queue("kept").publish(b"x", headers={name: name}).wait(),
    "message_id": lambda node, name: node.queue("kept").publish(b"x", message_id=name).wait(),
    "app_id": lambda node, name: node.queue("kept").publish(b"x", type=name, app_id=name, reply_to=name).wait(),
    "unique": lambda node, name: node.queue("kept").publish(b"x", unique=name).wait(),
    "consumer": lambda node, name: node.queue("kept").consume(tag=name).close(),
    "delayed": delayed,
    "cancel_delayed": lambda node, name: node.cancel_delayed(name),
    "take": lambda node, name: node.queue("kept").take(name),
    "argument": lambda node, name: node.queue(f"queue {name!r:.9}", arguments={"x-" + name: name}),
    "parameter": lambda node, name: node.set_parameter("component", name, name),
    "global parameter": lambda node, name: node.set_global_parameter(name, name),
    "description": lambda node, name: node.set_vhost_metadata(description=name),
    "topic": lambda node, name: node.topic(name).append(b"x").wait(),
    "key": lambda node, name: node.topic("kept").append(b"x", key=name).wait(),
    "tag": lambda node, name: node.topic("kept").append(b"x", tag=name).wait(),
    "group": reader,
    "instance": lambda node, name: reader(node, "g", broadcast=True, instance_name=name),
    "group of a transaction": lambda node, name: node.topic("kept").prepare(b"x", group=name).commit(),
    "find": lambda node, name: list(node.topic("kept").find(name)),
    "lag": lambda node, name: node.topic("kept").lag(name),
    "delete_queue": lambda node, name: node.delete_queue(f"no {name}"),
    "delete_vhost": lambda node, name: node.delete_vhost(f"no {name}"),
    "delete_exchange": lambda node, name: node.delete_exchange(f"no {name}"),
}
