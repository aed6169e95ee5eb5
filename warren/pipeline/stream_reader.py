"""``spark.readStream.format("warren")``: topics of one node or many as a stream, in micro-batches.

*Where a query is* is a number for each node, topic and queue: that of the next message. Spark keeps it in the query's
checkpoint as JSON, ``{node: {topic: {queue: number}}}``. A queue that is not in it begins with its first message. So a
micro-batch is a range of offsets of each queue, the same whenever it is asked for again. A sink that writes each batch
once has each message once. Below an empty name are the *anchors*, ``{node: {physical offset: time}}``: one message of
each store, by which another store in its place is noticed, whatever number of messages that has.

*How far it may go* is defined in :mod:`warren.pipeline.live_store`. The maximum of a batch (``maxRecordsPerTrigger``)
is shared evenly over the queues, and what one does not need goes to the others.

*How a batch is read.* Queues of a topic lie mixed in the CommitLog, so tasks are cut by physical offset: a task has of
each queue the messages that lie in its part of the log, reads that part once, and its rows are in physical order, which
keeps each queue's.

*Messages that expired* before they were read stop the query, or are passed over (``failOnDataLoss``). So do another
store in a store's place, and a queue that ends before the place where the query is: its topic was deleted and made
again, or it lost messages. With ``failOnDataLoss=false`` such a queue is read from its first message; the offset of the
batch may then be lower than the one before it. For a queue that ends early the query waits first, up to a minute,
because a node that crashed rebuilds the entries of its queues.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from warren.actors.engines.topics.queue_rows import QueueKey
from warren.arrow.arrays import as_batch
from warren.pipeline.live_store import Anchor, LiveStore, View
from warren.pipeline.shown_columns import ShownTable
from warren.pipeline.stream_options import EARLIEST, LATEST, Position, StreamOptions
from warren.pipeline.stream_rows import read_rows
from warren.pipeline.stream_tasks import OffsetRange, StreamTask, cut, places
from warren.storage.errors import DataError, StorageError, did_you_mean
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node, find_nodes

Offsets = dict[str, dict[str, dict[str, int]]]
"""By node, topic and queue id: the number of the next message."""

_ANCHORS: Final = ""
"""The place of the anchors among the nodes; no node has this name."""

QueuePlace = tuple[str, str, str]
"""A node, a topic and a queue id."""

_Result = TypeVar("_Result")

_LOOKS: Final = 3
_POLL_S: Final = 0.05
PATIENCE_S: Final = 60.0
"""How long a batch waits for entries that were there before; the recovery of a large store takes a while."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reading."""

    def __init__(self, options: StreamOptions, schema: StructType, table: ShownTable) -> None:
        self._options, self._schema, self._table = options, schema, table
        self._stores: dict[str, LiveStore] | None = None
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> Offsets:
        return _insisting(self._initial)

    def _initial(self) -> Offsets:
        offsets: Offsets = {}
        starting = self._options.starting
        for name, store in self._nodes().items():
            offsets[name] = {}
            with store.view(self._options.topics) as view:
                for key, ends in sorted(store.ends_of(view).items()):
                    number = _placed(starting, name, key, ends, view)
                    if number is not None and number > ends[1]:
                        raise PipelineError(
                            f"option startingOffsets: {name}: topic {key[0]}, queue {key[1]} ends at message {ends[1]},"
                            f" before {number}"
                        )
                    offsets[name].setdefault(key[0], {})[str(key[1])] = ends[0] if number is None else number
        self._check_names(offsets)
        return self._anchored(offsets)

    def _check_names(self, offsets: Offsets) -> None:
        """Raise :class:`PipelineError` for a topic, queue or node that is named, and that is not there.

        Where no node has a topic yet, any may come.
        """
        topics = sorted({topic for queues in offsets.values() for topic in queues})
        for topic in self._options.topics or ():
            if topic not in topics and (others := self._all_topics()):
                near = did_you_mean(topic, others) or ";"
                raise PipelineError(f"option topic: there is no topic {topic!r}{near} there are {', '.join(others)}")
        starting = self._options.starting
        for node in starting.by_node:
            if node not in offsets:
                raise PipelineError(f"option startingOffsets: {node} is not loaded")
        for name, queues in offsets.items():
            for topic, numbers in starting.by_node.get(name, starting.everywhere).items():
                for queue_id, number in numbers.items():
                    if number > 0 and str(queue_id) not in queues.get(topic, {}):
                        raise PipelineError(
                            f"option startingOffsets: {name}: topic {topic}, queue {queue_id} has no messages, and "
                            f"cannot begin at message {number}"
                        )

    def _all_topics(self) -> list[str]:
        topics = set[str]()
        for store in self._nodes().values():
            with store.view() as view:
                topics |= {topic for topic, _ in view.queues}
        return sorted(topics)

    def getDefaultReadLimit(self) -> ReadLimit:
        max_records = self._options.max_records
        return ReadAllAvailable() if max_records is None else ReadMaxRows(max_records)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        available, restarted = self._seen(start)
        self._latest = available if self._target is None else self._target
        begin: Offsets = {node: {t: dict(queues) for t, queues in topics.items()} for node, topics in start.items()}
        for node, topic, queue in restarted:
            begin[node][topic][queue] = 0
        waiting = {
            (node, topic, queue): number - _number(begin, node, topic, queue)
            for node, topics in self._latest.items()
            for topic, queues in topics.items()
            for queue, number in queues.items()
        }
        waiting = {place: count for place, count in waiting.items() if count > 0}
        if isinstance(limit, ReadMaxRows):
            waiting = rationed(waiting, limit.max_rows)
        end = begin
        for (node, topic, queue), count in waiting.items():
            end.setdefault(node, {}).setdefault(topic, {})[queue] = _number(begin, node, topic, queue) + count
        return start if end == start else self._anchored(end)

    def _anchored(self, offsets: Offsets) -> Offsets:
        """Add the stores' anchors."""
        anchors: dict[str, Anchor] = {}
        for name, store in self._nodes().items():
            with store.view(()) as view:
                if anchor := store.anchor(view):
                    anchors[name] = anchor
        rest = {name: topics for name, topics in offsets.items() if name != _ANCHORS}
        return {**rest, _ANCHORS: anchors} if anchors else rest

    def _replaced(self, start: Offsets) -> set[str]:
        """Return the nodes whose stores are others than those with the anchors of ``start``.

        Raises :class:`PipelineError` if there is one and ``failOnDataLoss`` is set.
        """
        replaced = set[str]()
        for name, anchor in start.get(_ANCHORS, {}).items():
            if name in self._nodes():
                with self._nodes()[name].view(()) as view:
                    replaced |= {name} if view.contradicts(anchor) else set()
        if replaced and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{min(replaced)}: holds another store than the one that the query has read so far; with "
                "failOnDataLoss=false the stream continues with the first message of this one"
            )
        return replaced

    def _seen(self, start: Offsets) -> tuple[Offsets, list[QueuePlace]]:
        """Return up to where messages are available, and the queues that end before the query's place in them.

        Such a queue gets time, because its node may be rebuilding its entries. Raises :class:`PipelineError` if it
        still ends early then and ``failOnDataLoss`` is set.
        """
        deadline = time.monotonic() + PATIENCE_S
        replaced = _insisting(functools.partial(self._replaced, start))
        afresh = [place for place in self._queues_of(start) if place[0] in replaced]
        while True:
            available, ends = _insisting(self._look)
            early = [
                place
                for place in self._queues_of(start)
                if place[0] not in replaced and _number(start, *place) > _number(ends, *place)
            ]
            if not early or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        if early and self._options.fail_on_data_loss:
            node, topic, queue = place = early[0]
            raise PipelineError(
                f"{node}: topic {topic}, queue {queue}: the query is at message {_number(start, *place)}, but the "
                f"queue ends at {_number(ends, *place)}: the topic was created again, or lost messages; with "
                "failOnDataLoss=false the stream continues with the queue's first message"
            )
        return available, afresh + early

    def _queues_of(self, offsets: Offsets) -> Iterator[QueuePlace]:
        """The queues in ``offsets`` whose nodes and topics this query reads."""
        chosen = self._options.topics
        for node, topics in offsets.items():
            for topic, queues in topics.items():
                if node in self._nodes() and (chosen is None or topic in chosen):
                    yield from ((node, topic, queue) for queue in queues)

    def reportLatestOffset(self) -> Offsets | None:
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        self._target, _ = _insisting(self._look)

    def _look(self) -> tuple[Offsets, Offsets]:
        """Return up to where messages are available, by ``endingOffsets`` too, and where the queues end.

        Queues that never had a message are left out.
        """
        available: Offsets = {}
        ends: Offsets = {}
        for name, store in self._nodes().items():
            available[name], ends[name] = {}, {}
            with store.view(self._options.topics) as view:
                for (topic, queue_id), (first, end) in sorted(store.ends_of(view).items()):
                    limit = _placed(self._options.ending, name, (topic, queue_id), (first, end), view)
                    if end:
                        available[name].setdefault(topic, {})[str(queue_id)] = end if limit is None else min(end, limit)
                        ends[name].setdefault(topic, {})[str(queue_id)] = end
        return available, ends

    def _nodes(self) -> dict[str, LiveStore]:
        if self._stores is None:
            options = self._options
            self._stores = {
                node.name: LiveStore(node, dict(options.read.settings), options.sync)
                for node in find_nodes(options.read.paths, may_run=True)
            }
        return self._stores

    def commit(self, end: Offsets) -> None:
        """Do nothing: messages stay until they expire."""

    def stop(self) -> None:
        self._stores = None

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        stores, replaced = self._nodes(), _insisting(functools.partial(self._replaced, start))
        tasks: list[StreamTask] = []
        for name, topics in end.items():
            if name == _ANCHORS:
                continue
            if name in stores:
                before = {} if name in replaced else start
                ranges = [
                    OffsetRange(topic, int(queue), begin if begin < stop else 0, stop)
                    for topic, queues in topics.items()
                    for queue, stop in queues.items()
                    if (begin := _number(before, name, topic, queue)) != stop and stop
                ]
                tasks += _insisting(functools.partial(self._tasks, stores[name], ranges))
            elif self._options.fail_on_data_loss:
                raise PipelineError(
                    f"the query's checkpoint has the node {name}, which is not loaded now; "
                    "with failOnDataLoss=false it is left out"
                )
        return [InputPartition(task) for task in tasks]

    def _tasks(self, store: LiveStore, ranges: list[OffsetRange]) -> list[StreamTask]:
        if not ranges:
            return []
        with _waited_for(store, ranges, may_be_gone=not self._options.fail_on_data_loss) as view:
            remaining = [part for span in ranges if (part := self._there(store.node, view, span)) is not None]
            options = self._options
            return list(cut(store.node, view, remaining, options.read.partition_bytes, options.min_partitions))

    def _there(self, node: Node, view: View, span: OffsetRange) -> OffsetRange | None:
        """Return what has not expired. Raises :class:`PipelineError` if some has and ``failOnDataLoss`` is set."""
        first = view.first(span.key) if span.key in view.queues else span.stop
        if first <= span.begin:
            return span
        if self._options.fail_on_data_loss:
            last = min(first, span.stop) - 1
            raise PipelineError(
                f"{node.name}: topic {span.topic}, queue {span.queue_id}: messages {span.begin} to {last} have expired "
                "before they were read; with failOnDataLoss=false the stream continues after them"
            )
        return attrs.evolve(span, begin=first) if first < span.stop else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: StreamTask = partition.value
        options, arrow = self._options, to_arrow_schema(self._schema, timezone="UTC")
        store = LiveStore(task.node, dict(options.read.settings), sync=False)
        with _waited_for(store, task.ranges) as view:
            positions, sizes = places(view, task.ranges)
            retained = positions >= view.log.min_offset
            lost = sum(span.stop - span.begin for span in task.ranges) - int(retained.sum())
            if lost and options.fail_on_data_loss:
                raise PipelineError(
                    f"{task.node.name}: {lost} messages expired while they were read; with "
                    "failOnDataLoss=false the stream continues after them"
                )
            may_expire = not options.fail_on_data_loss
            for rows in read_rows(
                task.node, view.log, positions[retained], sizes[retained], options.read, may_expire=may_expire
            ):
                if len(rows):
                    yield as_batch(self._table.shown(rows, view.log.mapped.files), arrow)


def _insisting(look: Callable[[], _Result]) -> _Result:
    """Return the result of ``look``; retry it, because a file may have expired meanwhile."""
    for _ in range(_LOOKS - 1):
        with suppress(StorageError, DataError):
            return look()
    return look()


def _number(offsets: Offsets, node: str, topic: str, queue: str) -> int:
    return offsets.get(node, {}).get(topic, {}).get(queue, 0)


def _placed(position: Position, node: str, key: QueueKey, ends: tuple[int, int], view: View) -> int | None:
    """Return the number of a position in a queue; ``None`` if the position does not give one."""
    timestamp_ms = position.times.get(key[0], {}).get(key[1], position.timestamp_ms)
    if timestamp_ms is not None:
        return min(view.at_time(key, timestamp_ms), ends[1])
    number = position.number(node, *key)
    if number is None:
        number = {"earliest": EARLIEST, "latest": LATEST, "never": None}[position.word]
    return ends[0] if number == EARLIEST else ends[1] if number == LATEST else number


def rationed(waiting: Mapping[Any, int], most: int) -> dict[Any, int]:
    """Share ``most`` records evenly, but give no place more than it has waiting. The remainder goes, one by one, to the
    places with the most still waiting, so that none is passed over for ever."""
    shares: dict[Any, int] = {}
    left = most
    for place, count in sorted(waiting.items(), key=lambda entry: entry[1]):
        shares[place] = min(count, left // (len(waiting) - len(shares)))
        left -= shares[place]
    for place in sorted(shares, key=lambda place: shares[place] - waiting[place])[:left]:
        shares[place] += shares[place] < waiting[place]
    return {place: share for place, share in shares.items() if share}


# ── a task's part of the log ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _waited_for(store: LiveStore, ranges: Sequence[OffsetRange], *, may_be_gone: bool = False) -> Iterator[View]:
    """Yield a view in which the entries of the ranges are there, or have expired.

    Raises :class:`PipelineError` if they do not come; with ``may_be_gone``, not for a queue that does not exist.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with store.view(only=[span.key for span in ranges]) as view:
            missing = [span for span in ranges if not _is_there(view, span)]
            is_late = time.monotonic() > deadline
            if not missing or (is_late and may_be_gone and not any(span.key in view.queues for span in missing)):
                yield view
                return
        if is_late:
            raise PipelineError(
                f"{store.node.name}: {missing[0]}: its entries are gone; if the node crashed, open it: "
                "that rebuilds them"
            )
        time.sleep(_POLL_S)


def _is_there(view: View, span: OffsetRange) -> bool:
    queue = view.queues.get(span.key)
    return queue is not None and queue.max_offset >= span.stop
