"""Orders as a topic: a producer with keys, two groups that read, one message that fails, and finding by key.

    python examples/topics.py DIRECTORY

What is where afterwards: ``warren inspect DIRECTORY``; ``warren topic read DIRECTORY --topic orders --queue-id 0``.
"""

from __future__ import annotations

import sys
import tempfile

import warren

ORDERS = 5


def produce(orders: warren.Topic) -> None:
    """Each order is placed and paid; its key keeps the two in one queue, and so in order."""
    for what in ("placed", "paid"):
        keys = [f"order-{number}" for number in range(ORDERS)]
        bodies = [f"{key} {what}".encode() for key in keys]
        orders.append_many(bodies, keys=keys, tag=what).wait()  # all on the disk


def bill(orders: warren.Topic, bad: bytes) -> tuple[list[str], list[str]]:
    """What is billed, and what failed; that comes again later, and after the second time is a dead letter."""
    billed, failed = [], []
    with orders.reader("billing", tags="paid") as reader:
        for record in reader.records(timeout=3.0):
            if record.body == bad:
                failed.append(f"{record.key} attempt {record.attempts}")
                record.retry(delay_level=1 if record.attempts == 0 else -1)
            else:
                billed.append(str(record.key))
            if len(billed) == ORDERS - 1 and len(failed) == 2:
                break
    return billed, failed


def main(directory: str) -> None:
    with warren.open(directory) as node:
        orders = node.topic("orders", queues=2)
        produce(orders)

        billed, failed = bill(orders, bad=b"order-3 paid")
        print("billed:", *sorted(billed))
        print("failed:", ", ".join(failed))
        dead = node.topic("%DLQ%billing")
        print("for a human:", *(record.body.decode() for record in dead.read("humans")))

        print("audit:", sum(1 for _ in orders.read("audit")), "messages, the same ones")
        print("order-1:", ", ".join(record.body.decode() for record in orders.find("order-1")))

        orders.seek("audit", "first")
        print("and again:", sum(orders.lag("audit").values()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
