"""``python -m benchmarks.rabbitmq_memory``: what a message takes of a real RabbitMQ's memory, in each of its states.

A private node is started (Debian's rabbitmq-server; ``tests/support/broker.py``), brought into one state after the
other over ordinary AMQP connections, and asked for its memory before and after. The difference, by the message, is
printed beside :data:`warren.simulation.RABBITMQ_MEMORY`, which holds these figures rounded.

Live memory is counted: after all garbage was collected, and as Erlang's own allocators count it (the broker's strategy
``erlang``). Resident memory follows it, unevenly: it keeps what was freed for a while, and is printed for comparison.
Memory of processes holds messages' positions, ``ets`` the message store's index, ``binary`` bodies: so one figure can
be separated from another if they come together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine_facts
from warren.simulation import RABBITMQ_MEMORY

PROJECT: Final = Path(__file__).parent.parent
OUT: Final = PROJECT / "benchmarks" / "results" / "rabbitmq-memory.json"
QUEUES: Final = 10
EMBEDDED: Final = 1000
STORED: Final = 5000
IDLE_QUEUES: Final = 400
HIBERNATED_AFTER_S: Final = 14.0
SETTLED_AFTER_S: Final = 2.0
PAGED_AT_ONCE: Final = 8000
_IN_RAM: Final = (
    '{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
    "[{{_, N}}] = rabbit_amqqueue:info(Q, [messages_ready_ram]), N"
)
Memory = dict[str, int]


@attrs.frozen
class Figure:
    """One line of the table: bytes by the message (queue, node), and what the profile says."""

    name: str
    of: str
    measured: float
    profile: int | None
    resident: float | None


class Measuring:
    """A running node, and what is done to it."""

    def __init__(self, looking: Any, messages: int) -> None:
        self.looking = looking
        self.broker = looking.broker
        self.messages = messages
        self.names = [f"state-{number}" for number in range(QUEUES)]
        self.figures: list[Figure] = []

    def now(self) -> Memory:
        """Live memory, when all has settled."""
        time.sleep(SETTLED_AFTER_S)
        self.looking.measure(collect=True)
        measured: Memory = self.looking.measure(collect=True)
        return measured

    @contextmanager
    def queues(self) -> Iterator[Memory]:
        """Empty queues, with the memory that the node takes beside them; gone afterwards."""
        with self.broker.channel() as channel:
            for name in self.names:
                channel.queue_declare(name, durable=True)
            yield self.now()
            for name in self.names:
                channel.queue_delete(name)
        self.looking.collect()

    def fill(self, body_bytes: int, *, persistent: bool) -> None:
        """As many messages in each queue."""
        from tests.support.recorder.paging_recorder import publish

        count = self.messages // len(self.names)
        for name in self.names:
            publish(self.broker, name, count, body_bytes=body_bytes, persistent=persistent, rate=1e6)

    def take_all(self, channel: Any) -> None:
        """Let a consumer have every message, and ack none."""
        taken: list[int] = []
        for name in self.names:
            channel.basic_consume(name, lambda _, method, *__: taken.append(method.delivery_tag))
        while len(taken) < self.messages:
            channel.connection.process_data_events(time_limit=1.0)

    def page(self) -> None:
        """Tell each queue to keep nothing in RAM, once; wait until it has done so."""
        names = ", ".join(f'<<"{name}">>' for name in self.names)
        self.broker.eval(
            f'[begin {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, N)), '
            f"rabbit_amqqueue:set_ram_duration_target(amqqueue:get_pid(Q), 0.0), "
            f"rabbit_amqqueue:info(Q, [messages]) end || N <- [{names}]]"
        )
        time.sleep(SETTLED_AFTER_S)

    def note(self, name: str, of: str, measured: float, *, resident: float | None = None) -> None:
        """A figure of the table."""
        profile = getattr(RABBITMQ_MEMORY, name, None)
        self.figures.append(Figure(name, of, measured, profile, resident))

    def measured(self, name: str) -> float:
        """A figure that is there already."""
        return next(figure.measured for figure in self.figures if figure.name == name)

    def each(self, before: Memory, after: Memory, *kinds: str) -> float:
        """The growth in memory of the given kinds, for each message."""
        return sum(after[kind] - before[kind] for kind in kinds) / self.messages


def node(measuring: Measuring) -> None:
    """The node with nothing to do."""
    memory = measuring.now()
    measuring.note("node", "the node, without queues", memory["erlang"], resident=memory["rss"])


def idle_queues(measuring: Measuring) -> None:
    """Queues without messages: just declared, and hibernating."""
    with measuring.broker.channel() as channel:
        before = measuring.now()
        for number in range(IDLE_QUEUES):
            channel.queue_declare(f"idle-{number}", durable=True)
        awake = measuring.looking.measure(collect=False)
        time.sleep(HIBERNATED_AFTER_S)
        asleep = measuring.looking.measure(collect=False)
        for number in range(IDLE_QUEUES):
            channel.queue_delete(f"idle-{number}")
    for name, of, memory in (("queue_awake", "a queue at work", awake), ("queue_asleep", "a queue asleep", asleep)):
        grown = {kind: (memory[kind] - before[kind]) / IDLE_QUEUES for kind in ("erlang", "rss")}
        measuring.note(name, of, grown["erlang"], resident=grown["rss"])


def embedded(measuring: Measuring) -> None:
    """Small bodies: ready, and unacked."""
    with measuring.queues() as before:
        measuring.fill(EMBEDDED, persistent=False)
        ready = measuring.now()
        measuring.note(
            "alpha",
            "ready, body in RAM, beside the body",
            measuring.each(before, ready, "erlang") - EMBEDDED,
            resident=measuring.each(before, ready, "rss") - EMBEDDED,
        )
        with measuring.broker.channel() as channel:
            measuring.take_all(channel)
            unacked = measuring.now()
            measuring.note(
                "unacked", "unacked, body in RAM, beside the body", measuring.each(before, unacked, "erlang") - EMBEDDED
            )


def stored(measuring: Measuring) -> None:
    """Bodies in the message store: ready in RAM, ready on disk, unacked on disk."""
    with measuring.queues() as before:
        measuring.fill(STORED, persistent=True)
        ready = measuring.now()
        measuring.note("store_entry", "a body in the store", measuring.each(before, ready, "ets"))
        measuring.page()
        paged = measuring.now()
        measuring.note("beta", "ready, position in RAM, body on disk", measuring.each(before, paged, "processes"))
        grows = max(measuring.broker.vhosts_directory.glob("*/msg_store_persistent/*.rdq"), key=lambda f: int(f.stem))
        measuring.note(
            "open_file",
            f"of the file that the store writes, now {grows.stat().st_size:,}",
            paged["binary"] - before["binary"],
        )
        with measuring.broker.channel() as channel:
            measuring.take_all(channel)
            measuring.page()
            unacked = measuring.now()
            measuring.note("unacked_on_disk", "unacked, body on disk", measuring.each(before, unacked, "processes"))


def on_disk(measuring: Measuring) -> None:
    """One long queue that keeps nothing in RAM on command; a segment or two stay."""
    names, measuring.names = measuring.names, measuring.names[:1]
    with measuring.queues() as before:
        measuring.fill(EMBEDDED, persistent=True)
        for _ in range(measuring.messages // PAGED_AT_ONCE + 2):
            measuring.page()
        paged = measuring.now()
        [queue] = measuring.names
        in_ram = int(measuring.broker.eval(_IN_RAM.format(queue=queue)))
        grown = paged["erlang"] - before["erlang"] - in_ram * (EMBEDDED + measuring.measured("alpha"))
        measuring.note("delta", "ready, on disk alone", grown / (measuring.messages - in_ram))
    measuring.names = names


STATES: Final[tuple[Callable[[Measuring], None], ...]] = (node, idle_queues, embedded, stored, on_disk)


def main(
    messages: Annotated[int, typer.Option(help="Messages of each state.")] = 20_000,
    write: Annotated[bool, typer.Option(help="Keep the figures in benchmarks/results.")] = True,
) -> None:
    """What a message takes of a RabbitMQ's memory, in each state."""
    sys.path.insert(0, str(PROJECT))
    from tests.support.broker import Broker
    from tests.support.recorder.paging_recorder import Looking, settings

    console = Console()
    with tempfile.TemporaryDirectory(prefix="warren-memory-") as scratch, Broker(Path(scratch) / "broker") as broker:
        broker.settings = settings()
        broker.start()
        measuring = Measuring(Looking(broker, Path(scratch)), messages)
        for state in STATES:
            with console.status(state.__name__):
                state(measuring)
    table = Table("", "what", "bytes measured", "in the profile", "resident")
    for figure in measuring.figures:
        resident = "" if figure.resident is None else f"{figure.resident:,.0f}"
        profile = "" if figure.profile is None else f"{figure.profile:,}"
        table.add_row(figure.name, figure.of, f"{figure.measured:,.0f}", profile, resident)
    console.print(table)
    if write:
        results = {
            "machine": machine_facts(),
            "messages": messages,
            "figures": [attrs.asdict(figure) for figure in measuring.figures],
        }
        OUT.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
