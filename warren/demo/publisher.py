"""Publishing numbered messages under a memory limit; run as a program, it is the process that is killed.

The limit comes as it does from a broker's memory monitor: as a duration, from which the queue works out how many messages it
may keep in memory at its present rates. For the first messages there is none, so that one sees it come.

As a program: ``python -m warren.demo.publisher DIRECTORY VHOST QUEUE COUNT``. It publishes messages 0 … COUNT-1 and
writes a line (:meth:`~warren.demo.measuring.Frame.to_line`) to stdout at the start and whenever more of them are confirmed. For each line it
first takes a byte from stdin, and it ends where there is none: it can never be further ahead of its reader than
the reader allows, nor outlive it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import attrs

from actors.vhost import Vhost
from queue_index.message_format import Envelope
from queue_index.variable_queue import VariableQueue
from storage.settings import Settings
from warren.demo.measuring import Frame
from warren.demo.numbered import body_of, envelope_of
from warren.embedded import open_vhost
from warren.salvage.names import from_text, to_text

SEGMENT_ENTRY_COUNT: Final = 2048
"""As the shipped RabbitMQ node has it. A queue keeps at least a segment at its head, whatever the limit."""

_BATCH: Final = 250
_COMMITS: Final = 100
_MOST_IN_MEMORY: Final = 5_000


@attrs.frozen
class Plan:
    """How ``total`` messages are published, by however many publishers."""

    total: int

    @property
    def commit(self) -> int:
        """Messages between two syncs."""
        return max(1, self.total // _COMMITS)

    @property
    def limited_from(self) -> int:
        """The number from which on the limit holds."""
        return self.total // 10

    @property
    def target(self) -> int:
        """The limit: messages in memory."""
        return min(_MOST_IN_MEMORY, self.total // 20)


def open_directory(directory: str, vhost: bytes) -> Vhost:
    """Open the demo's directory, made where it is missing."""
    return open_vhost(directory, to_text(vhost), settings=Settings(segment_entry_count=SEGMENT_ENTRY_COUNT))


def publish(
    vhost: Vhost,
    queue: VariableQueue,
    envelope: Envelope,
    numbers: range,
    plan: Plan,
    report: Callable[[Frame], None],
) -> None:
    """Publish these messages, in batches, synced and confirmed every ``plan.commit``; reports what is confirmed."""
    confirmed = uncommitted = 0
    began_at = time.monotonic()
    for first in range(numbers.start, numbers.stop, _BATCH):
        batch = range(first, min(first + _BATCH, numbers.stop))
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
    """Give the queue the duration that, at its rates of now, comes to ``target`` messages."""
    queue.update_rates()
    rates = queue.state.rates
    if not rates.idle:
        queue.set_ram_duration_target((target + 0.5) / rates.total)


def main(directory: str, vhost_name: str, queue_name: str, count: str) -> None:
    """The program."""
    vhost, plan = open_directory(directory, from_text(vhost_name)), Plan(int(count))
    queue = vhost.queue(from_text(queue_name))

    def report(frame: Frame) -> None:
        if not sys.stdin.buffer.read(1):
            sys.exit("nobody listens any more")
        print(frame.to_line(), flush=True)

    report(Frame.of(queue, 0, 0.0))
    publish(vhost, queue, envelope_of(vhost.name, from_text(queue_name), 1), range(plan.total), plan, report)
    vhost.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
