"""Publishing numbered messages under a memory limit; run as a program, it is the process that is killed.

The limit comes as it does from a broker's memory monitor: as a duration, from which the queue works out how many
messages it may keep in memory at its present rates. The first messages have no limit, so that its effect shows.

As a program: ``python -m examples.demo.publisher DIRECTORY VHOST QUEUE COUNT``. It publishes messages 0 … COUNT-1 and
writes a line (:meth:`~examples.demo.measuring.Frame.to_line`) to stdout at the start and whenever more of them are
confirmed. For each line it first takes a byte from stdin, and it ends at the end of stdin: it can never be further
ahead of its reader than the reader allows, nor outlive it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import attrs

from examples.demo.measuring import Frame
from examples.demo.numbered import body_of, envelope_of
from warren.actors.vhost import Vhost
from warren.engine import open_vhost
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.salvage.names import from_text, to_text
from warren.storage.settings import Settings

SEGMENT_ENTRY_COUNT: Final = 2048
"""As the shipped RabbitMQ node has it. A queue keeps at least a segment at its head, whatever the limit."""

_SETTINGS: Final = Settings(
    segment_entry_count=SEGMENT_ENTRY_COUNT,
    queue_explicit_gc_run_operation_threshold=1,
    reduce_after_every_operation=False,
)
"""Every second batch is followed by a reduction, and so by a flush; on a slow disk its fsyncs are what takes time."""

_LARGEST_COMMIT: Final = 2_000
_LARGEST_BATCH: Final = 500
_MOST_UNLIMITED: Final = 20_000
_MEMORY_TARGET: Final = 5_000


@attrs.frozen
class Plan:
    """How ``total`` messages are published, by however many publishers."""

    total: int

    @property
    def commit(self) -> int:
        """Messages between two syncs."""
        return min(_LARGEST_COMMIT, max(1, self.total // 100))

    @property
    def batch(self) -> int:
        """Messages in one call."""
        return min(_LARGEST_BATCH, self.commit)

    @property
    def limited_from(self) -> int:
        """The number from which on the limit holds."""
        return min(_MOST_UNLIMITED, self.total // 10)

    @property
    def target(self) -> int:
        """The limit: messages in memory."""
        return _MEMORY_TARGET


def open_directory(directory: str, vhost: bytes) -> Vhost:
    """Open the demo's directory; create it if it is missing."""
    return open_vhost(directory, to_text(vhost), settings=_SETTINGS)


def publish(
    vhost: Vhost,
    queue_name: bytes,
    *,
    publisher: int,
    numbers: range,
    plan: Plan,
    report: Callable[[Frame], None],
) -> None:
    """Publish these messages, in batches, synced and confirmed every ``plan.commit``; reports what is confirmed."""
    queue, envelope = vhost.queue(queue_name), envelope_of(vhost.name, queue_name, publisher)
    confirmed = uncommitted = 0
    began_at = time.monotonic()
    for first in range(numbers.start, numbers.stop, plan.batch):
        batch = range(first, min(first + plan.batch, numbers.stop))
        queue.publish_many(envelope, vhost.msg_ids.many(len(batch)), [body_of(n) for n in batch], confirm=True)
        uncommitted += len(batch)
        if uncommitted >= plan.commit or batch.stop == numbers.stop:
            uncommitted = 0
            vhost.sync()
            confirmed += sum(map(len, queue.drain_confirmed()))
            if batch.stop > plan.limited_from:
                limit_memory(queue, plan.target)
            report(Frame.of(queue, confirmed, time.monotonic() - began_at))


def limit_memory(queue: VariableQueue, target: int) -> None:
    """Give the queue the duration that, at its rates of now, comes to ``target`` messages, and let it page."""
    rates = queue.state.rates
    rates.update(queue.state.clock(), queue.state.settings)
    if not rates.idle:
        queue.set_ram_duration_target((target + 0.5) / rates.total)
    while queue.state.waiting_bump:
        queue.bump()


def main(directory: str, vhost_name: str, queue_name: str, count: str) -> None:
    """The program."""
    vhost, plan = open_directory(directory, from_text(vhost_name)), Plan(int(count))
    name = from_text(queue_name)

    def report(frame: Frame) -> None:
        if not sys.stdin.buffer.read(1):
            sys.exit("nobody listens any more")
        print(frame.to_line(), flush=True)

    report(Frame.of(vhost.queue(name), 0, 0.0))
    publish(vhost, name, publisher=1, numbers=range(plan.total), plan=plan, report=report)
    vhost.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
