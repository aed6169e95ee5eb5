"""A process of a shared directory, for tests: it does what its first argument says, and tells it in lines.

``publish STREAM FIRST``: publishes ``STREAM:NUMBER`` to the queue ``work``, a few at a time, and says ``confirmed
NUMBER SECONDS`` (of the monotonic clock) for the last of each few; until its input ends, then it closes the node.
``append STREAM FIRST``: the same with the topic ``work``, where a stream is a key.
``mixed STREAM FIRST``: the same with both, the queue ``later`` after a delay, and the queue ``keyed`` with keys.
``consume``: gets from ``work``, acks, and says ``got BODY REDELIVERED``. ``hold``: says ``ready`` and does nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any

import warren
from warren.actors.runtime.future import Confirm

WINDOW = 20
SETTINGS: dict[str, Any] = {
    "sync": "os",
    "queue_index_max_journal_entries": 700,
    "msg_store_file_size_limit": 150_000,
    "memory_monitor_interval": 10,
    "queue_ram_report_interval_ms": 10,
    "vm_memory_calculation_strategy": "allocated",
    "vm_memory_high_watermark": 30_000_000,
    "vm_memory_high_watermark_paging_ratio": 0.001,
}
"""Memory is short: messages are paged out; and files are small."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole, or not at all


def publish_all_ways(node: warren.Node, stream: str, number: int, over: threading.Event) -> None:
    """As the role ``mixed``."""
    work, later, keyed, topic = node.queue("work"), node.queue("later"), node.queue("keyed"), node.topic("work")
    while not over.is_set():
        bodies = [f"{stream}:{one}".encode() for one in range(number, number + WINDOW)]
        confirms: list[Confirm] = [work.publish(body) for body in bodies[: WINDOW // 2]]
        confirms += [work.publish_many(bodies[WINDOW // 2 :]), topic.append_many(bodies, keys=[stream] * WINDOW)]
        confirms += [later.publish_many(bodies, delay=[0.1 * (one % 3) for one in range(WINDOW)])]
        confirms += [keyed.publish_many(bodies, unique=True)]
        for confirm in confirms:
            confirm.wait()
        number += WINDOW
        say("confirmed", number - 1, time.monotonic())


def main(directory: str, role: str, *arguments: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with warren.open(directory, share=True, **SETTINGS) as node:
        queue = node.queue("work")
        say("ready")
        match role:
            case "publish" | "append":
                stream, number = arguments[0], int(arguments[1])
                send = queue.publish
                if role == "append":
                    send = functools.partial(node.topic("work").append, key=stream)
                while not over.is_set():
                    confirms = [send(f"{stream}:{number + index}".encode()) for index in range(WINDOW)]
                    for confirm in confirms:
                        confirm.wait()
                    number += WINDOW
                    say("confirmed", number - 1, time.monotonic())
            case "mixed":
                publish_all_ways(node, arguments[0], int(arguments[1]), over)
            case "consume":
                with queue.consume(prefetch=50, timeout=0.05) as consumer:
                    while not over.is_set():
                        delivery = consumer.receive(0.05)
                        if delivery is not None:
                            say("got", delivery.body.decode(), delivery.redelivered)
                            delivery.ack()
            case "hold":
                over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
