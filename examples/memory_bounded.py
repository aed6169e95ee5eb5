"""A backlog far larger than the memory that it may have.

python examples/memory_bounded.py [DIRECTORY]

The strategy ``allocated`` counts what the queues need, not what the whole process does. The monitor looks more often
than by default, because this is over in seconds. What is above half of the limit is paged; a publisher that is faster
than the disk is held back (the memory alarm, on stderr).
"""

from __future__ import annotations

import sys
import tempfile

import warren

MESSAGES = 50_000
BODY_BYTES = 5_000
LIMIT_BYTES = 32 << 20
BATCH = 100


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    with warren.open(
        directory,
        sync="os",
        vm_memory_calculation_strategy="allocated",
        vm_memory_high_watermark=LIMIT_BYTES,
        memory_monitor_interval=20,
        queue_ram_report_interval_ms=20,
    ) as node:
        backlog = node.queue("backlog")
        for start in range(0, MESSAGES, BATCH):
            backlog.publish_many([b"%08d" % number * (BODY_BYTES // 8) for number in range(start, start + BATCH)])
        backlog.sync()

        stats = backlog.stats()
        total, in_ram = stats["message_bytes"], stats["message_bytes_ram"]
        print(f"{stats['messages_ready']} messages, {total // 1_000_000} MB; allowed: {LIMIT_BYTES >> 20} MiB")
        print(f"in RAM: {in_ram / 1_000_000:.1f} MB, {100 * in_ram / total:.0f} %")

        expected = 0
        with backlog.consume(auto_ack=True, timeout=2) as consumer:
            for message in consumer:
                if int(message.body[:8]) != expected:
                    raise SystemExit(f"message {expected} is missing")
                expected += 1
        print(f"all {expected} there, in order")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
