"""``republish``: exported messages to a live RabbitMQ, many queues at a time, each in order.

The rows of one queue go to one task, sorted by node and position. It publishes as ``warren shovel`` does, into the
queue of the message's own name, and waits for confirms with no more than a window of messages on the way. What was
confirmed is written into a ledger before more goes (:mod:`~warren.pipeline.jobs.republish_ledger`), and what a ledger
has is left out: a run that was cut off is run again, with the same ``--out``. No message is lost then, and messages
come twice only if they were on the way and not yet in the ledger.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from warren.pipeline.jobs.republish_ledger import Ledger, Whose
from warren.pipeline.jobs.rows_in import Rows, answers, exported_rows, format_of, letter_of, of_table
from warren.pipeline.jobs.running import check_format, load, running
from warren.salvage.names import Json, as_text, to_text
from warren.shovel.address import Address
from warren.shovel.broker_destination import BrokerDestination
from warren.shovel.connection import Connection, Loop
from warren.shovel.exported_rows import name_of
from warren.shovel.letter import Letter, Position
from warren.shovel.pump import Moved, Pump
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import find_nodes

WINDOW: int = 1000
"""Messages of a queue that are on their way at once."""


@attrs.frozen(kw_only=True)
class Order:
    """What is to be published, and how."""

    to: str
    """The broker, as amqp://user:password@host:port/vhost."""
    ledger: str
    """A directory; it may be one of an earlier run."""
    vhost: str | None = None
    """The vhost of the rows; ``None``: they have only one."""
    format: str | None = None
    """The format of an export; ``None``: taken from the names of the files."""
    connections: int | None = None
    """Queues that are filled at the same time; ``None``: one for each core."""
    as_published: bool = False
    """To the exchange that each message was published to first, and not straight into its queue."""
    window: int = WINDOW


@attrs.frozen(kw_only=True)
class Republished:
    """The result for one queue of one node."""

    node: str
    queue: str
    messages: int
    """Messages that this run published."""
    already: int
    """Messages that were in the ledger already."""
    payload_bytes: int


def to_json(order: Order, done: Sequence[Republished]) -> dict[str, Json]:
    """The summary."""
    return {
        "to": str(Address.of(order.to)),
        "out": order.ledger,
        "queues": len(done),
        "messages": sum(result.messages for result in done),
        "already": sum(result.already for result in done),
        "bytes": sum(result.payload_bytes for result in done),
    }


def run(paths: Sequence[str], order: Order, master: str | None = None) -> list[Republished]:
    """Publish the rows of exports, or the messages of nodes."""
    address = Address.of(order.to)  # says what is wrong with a URL before Spark starts
    check_format(order.format)
    try:
        os.makedirs(order.ledger, exist_ok=True)
    except OSError as error:
        raise PipelineError(f"{order.ledger}: {error.strerror or error}") from error
    with running("Publishing", master) as (spark, _):
        rows = _one_vhost(_rows_of(spark, paths, order), order)
        at_once = order.connections or spark.sparkContext.defaultParallelism
        directory = os.path.abspath(order.ledger)
        publish_all = partial(publish, order=attrs.evolve(order, ledger=directory), shown=str(address))
        return sorted(answers(by_queue(rows, at_once), publish_all), key=lambda result: (result.queue, result.node))


def by_queue(rows: DataFrame, partitions: int) -> DataFrame:
    """Return ``partitions`` partitions; all rows of a queue are in one of them, in order."""
    return rows.repartition(partitions, "vhost", "queue").sortWithinPartitions("vhost", "queue", "node", "position")


def _rows_of(spark: SparkSession, paths: Sequence[str], order: Order) -> DataFrame:
    input_format = order.format or format_of(paths)
    if input_format is not None:
        return exported_rows(spark, paths, input_format)
    return of_table(load(spark, "messages", find_nodes(list(paths))), ", ".join(paths))


def _one_vhost(rows: DataFrame, order: Order) -> DataFrame:
    """The rows of one vhost: a broker's URL names only one."""
    if order.vhost is not None:
        return rows.filter(F.col("vhost").eqNullSafe(as_text(order.vhost)))
    vhosts = sorted(str(row[0]) for row in rows.select("vhost").distinct().limit(10).collect())
    if len(vhosts) > 1:
        raise PipelineError(f"queues of several vhosts, {', '.join(vhosts)}: say which with --vhost")
    return rows


def publish(rows: Rows, order: Order, shown: str) -> Iterator[Republished]:
    """In a task, publish all rows of some queues, one queue after the other; yield the result of each."""
    with ExitStack() as stack:
        destination: BrokerDestination | None = None
        for (vhost, queue, node), queue_rows in groupby(rows, key=_whose):
            if vhost is None or queue is None:
                raise PipelineError(f"{node}: messages of topics, which go into no queue")
            if destination is None:
                loop = Loop()
                connection = stack.enter_context(Connection.open(Address.of(order.to), loop, _notify))
                destination = BrokerDestination(connection, as_published=order.as_published)
            whose = Whose(node=node, vhost=to_text(name_of(vhost)), queue=to_text(name_of(queue)), to=shown)
            with Ledger.open(order.ledger, whose) as ledger:
                republished = _publish_queue(_QueueRows(whose, ledger, queue_rows), destination, order)
            yield republished


def _publish_queue(source: _QueueRows, destination: BrokerDestination, order: Order) -> Republished:
    vhost, queue = source.vhost, source.name
    moved = Moved(to_text(vhost), to_text(queue), to_text(queue))
    if source.has_letters():
        intake = destination.intake(vhost, queue, queue)
        Pump(source, intake, moved, order.window, _now_us, lambda _: None).run(sys.maxsize)
    return Republished(
        node=source.whose.node,
        queue=moved.queue,
        messages=moved.messages,
        already=source.already,
        payload_bytes=moved.payload_bytes,
    )


@attrs.define
class _QueueRows:
    """Rows of one queue as a source for the pump: messages in the ledger are settled."""

    whose: Whose
    _ledger: Ledger
    _left: Iterator[Mapping[str, Any]]
    already: int = 0
    _next: Letter | None = None

    @property
    def vhost(self) -> bytes:
        return self.whose.vhost.encode("utf-8", "surrogateescape")

    @property
    def name(self) -> bytes:
        return self.whose.queue.encode("utf-8", "surrogateescape")

    def count(self) -> int:
        """Return 0: the number is not known before all rows have been read."""
        return 0

    def has_letters(self) -> bool:
        """Whether there is anything that the ledger does not have."""
        self._next = next(self._unsent(), None)
        return self._next is not None

    def letters(self, limit: int) -> Iterator[Letter | None]:
        """Yield the messages that the ledger does not have, after :meth:`has_letters`."""
        if self._next is not None:
            yield self._next
        yield from self._unsent()

    def _unsent(self) -> Iterator[Letter]:
        for row in self._left:
            if self._ledger.has(row["position"]):
                self.already += 1
            else:
                yield letter_of(row)

    def settle(self, positions: Sequence[Position]) -> None:
        """Record that the broker has them."""
        self._ledger.add(position for _, position in positions)

    def finish(self) -> None:
        """Do nothing: the ledger is complete."""


def _whose(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["vhost"], row["queue"], row["node"]


def _notify(text: str) -> None:
    print(text, file=sys.stderr)


def _now_us() -> int:
    return time.time_ns() // 1000
