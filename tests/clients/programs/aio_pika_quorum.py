"""A plugin of pytest that makes each named queue that aio-pika declares a quorum queue."""

from importlib import import_module
from typing import Any

Channel: Any = import_module("aiormq.channel").Channel
declare = Channel.queue_declare


async def declare_quorum(self: Any, queue: str = "", **options: Any) -> Any:
    if queue and not options.get("passive"):
        options |= {"durable": True, "exclusive": False, "auto_delete": False}
        options["arguments"] = {**(options.get("arguments") or {}), "x-queue-type": "quorum"}
    return await declare(self, queue, **options)


Channel.queue_declare = declare_quorum
