"""A process of a shared directory, for tests: it does what its first argument says, and tells it in lines.

``publish STREAM FIRST``: publishes ``STREAM:NUMBER`` to the queue ``work``, a few at a time, and says ``confirmed
NUMBER SECONDS`` (of the monotonic clock) for the last of each few; until its input ends, then it closes the node.
``append STREAM FIRST``: the same with the topic ``work``, where a stream is a key.
``consume``: gets from ``work``, acks, and says ``got BODY REDELIVERED``. ``hold``: says ``ready`` and does nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

import warren

WINDOW = 20


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole, or not at all


def main(directory: str, role: str, *arguments: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with warren.open(directory, share=True, sync="os") as node:
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
