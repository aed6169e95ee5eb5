"""A plugin of pytest that makes each named queue that aio-pika declares a quorum queue.

Quorum queues are deleted without conditions: those with ``if_unused`` or ``if_empty`` are refused.
"""

from importlib import import_module
from typing import Any

Channel: Any = import_module("aiormq.channel").Channel
declare, delete = Channel.queue_declare, Channel.queue_delete


async def declare_quorum(self: Any, queue: str = "", **options: Any) -> Any:
    if queue and not options.get("passive"):
        options |= {"durable": True, "exclusive": False, "auto_delete": False}
        options["arguments"] = {**(options.get("arguments") or {}), "x-queue-type": "quorum"}
    return await declare(self, queue, **options)


async def delete_quorum(self: Any, queue: str = "", **options: Any) -> Any:
    return await delete(self, queue, **options | {"if_unused": False, "if_empty": False})


Channel.queue_declare, Channel.queue_delete = declare_quorum, delete_quorum
