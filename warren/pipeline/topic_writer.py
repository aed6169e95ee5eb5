"""``df.write.format("warren")`` and ``writeStream``: rows of a frame, appended to topics of a warren node.

Tasks stage their rows as files (:mod:`warren.pipeline.staging`); when all are there, the driver opens the node and
appends them, in the order of the partitions. So a task that fails or runs twice leaves nothing in the node. A stream
has each of its batches in the node once, and so does a batch that gives its ``query`` and ``epoch``: see
:mod:`warren.pipeline.write_ledger`. Other batches are appended whenever they are written, and one that is killed while
the driver appends is there in part.

The staged files lie beside the node, in ``<path>.staging`` or in ``stagingPath``, which executors and driver must both
reach; the node itself must be a directory of the driver's machine that no process has open.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import warren
from warren.actors.engines.topics.names import check_user_topic
from warren.actors.engines.topics.routing import Part, Router
from warren.actors.engines.topics.schedule import to_scheduled
from warren.actors.node.admission import Admission
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import size_of
from warren.config import Config
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Record
from warren.pipeline.staging import WRITE_PROPERTY, Staged, check_columns, chunks, stage
from warren.pipeline.write_ledger import Intent, Ledger
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.rocketmq.store_places import store_at
from warren.storage.errors import DataError, WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.tables.pipeline_errors import PipelineError
from warren.tables.read_options import OptionTexts
from warren.verbs.steps import call

_OPTIONS: Final = ("path", "topic", "queues", "query", "epoch", "stagingPath", "config")
_QUERY = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_STREAM_QUERY: Final = "sql.streaming.queryId"
_STREAM_EPOCH: Final = "streaming.sql.batchId"
"""Local properties of a task of a stream."""
_CHECKPOINT: Final = "checkpointlocation"
"""An option of a stream that is Spark's own."""
_AHEAD: Final = 4
"""Chunks that are on their way to the disk at a time."""


@attrs.frozen(kw_only=True)
class WriteOptions:
    """Where and how to write."""

    path: str
    topic: str | None = None
    queues: int | None = None
    query: str | None = None
    epoch: int | None = None
    staging: str
    config: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Parse options. Raises :class:`PipelineError` for an unknown option or an invalid value."""
        option_texts = OptionTexts.of(
            {name: text for name, text in options.items() if name.lower() != _CHECKPOINT or not is_stream}
        )
        option_texts.check_known(_OPTIONS, "unknown for writing")
        texts = option_texts.texts
        if "path" not in texts:
            raise PipelineError("option path is missing")
        path, topic, query = _local(texts["path"]), texts.get("topic"), texts.get("query")
        if topic is not None:
            check_user_topic(topic)
        if query is not None and not _QUERY.fullmatch(query):
            raise PipelineError(f"option query is {query!r}, not a name of letters, digits, '.', '_' and '-'")
        epoch = option_texts.count("epoch", 0)
        if is_stream and epoch is not None:
            raise PipelineError("option epoch: a stream uses its batch's number")
        if not is_stream and (query is None) != (epoch is None):
            raise PipelineError("options query and epoch: give both, or neither")
        return cls(
            path=path,
            topic=topic,
            queues=option_texts.count("queues"),
            query=query,
            epoch=epoch,
            staging=os.path.abspath(texts.get("stagingpath", f"{path}.staging")),
            config=texts.get("config"),
        )


def _local(text: str) -> str:
    """Return the path of a node that can be opened."""
    path = text.removeprefix("file://")
    if "://" in path:
        raise PipelineError(f"{text}: the node to write to must be a directory of this machine")
    path = os.path.abspath(path)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise PipelineError(f"{text}: is not a directory")
    if store_at(ReadOnlyFileSystem(RealFileSystem()), path) == path:
        raise PipelineError(f"{text}: is a RocketMQ store folder, not a warren node's directory")
    return path


# ── what Spark calls ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Writer:
    """What batches and streams have in common."""

    _is_stream = False

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten, only appended to: mode append")
        check_columns(schema, has_topic=options.topic is not None)
        self._options = options
        self._name = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options, context = self._options, TaskContext.get()
        query, epoch = options.query, options.epoch
        if self._is_stream and context is not None:  # a batch may be written by a stream's foreachBatch
            query = query or context.getLocalProperty(_STREAM_QUERY)
            epoch = int(context.getLocalProperty(_STREAM_EPOCH) or 0)
        return stage(
            iterator,
            os.path.join(options.staging, self._name if query is None else f"{query}-{epoch}"),
            partition=0 if context is None else context.partitionId(),
            query=query,
            topic=options.topic,
            sync=query is not None,
        )

    def _commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None) -> None:
        staged = sorted(
            (message for message in messages if isinstance(message, Staged)), key=lambda message: message.partition
        )
        if not any(message.rows for message in staged):
            _discard(self._options, staged, epoch)
            return
        if epoch is not None and _query_of(staged) is None:
            raise PipelineError("a stream needs option query")
        try:
            append_all(self._options, staged, epoch)
        except BaseException:
            _discard(self._options, staged, epoch)
            raise
        _clean(self._options, staged)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        _discard(self._options, staged, epoch)
        shutil.rmtree(os.path.join(self._options.staging, self._name), ignore_errors=True)
        _remove_empty(self._options.staging)


class TopicWriter(_Writer, DataSourceArrowWriter):
    """A batch's writing."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.epoch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages, self._options.epoch)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream's writing of one batch."""

    _is_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages, batchId)


def _discard(options: WriteOptions, staged: Sequence[Staged], epoch: int | None) -> None:
    """Delete what was staged, unless it is decided that it will be appended."""
    needed_paths: tuple[str, ...] = ()
    query = _query_of(staged)
    if query is not None:
        with suppress(WarrenError):  # the first error is what matters
            intent = Ledger.load(RealFileSystem(), options.path, query).intent
            needed_paths = intent.files if intent is not None and intent.epoch == epoch else ()
    for message in staged:
        if message.path is not None and message.path not in needed_paths:
            with suppress(OSError):
                os.unlink(message.path)
        _remove_empty(message.directory)
    _remove_empty(options.staging)


def _clean(options: WriteOptions, staged: Sequence[Staged]) -> None:
    """Delete what was staged for finished batches, also by tasks that were abandoned."""
    directories = {message.directory for message in staged}
    query = _query_of(staged)
    if query is not None and os.path.isdir(options.staging):
        ledger = Ledger.load(RealFileSystem(), options.path, query)
        for name in os.listdir(options.staging):
            owner, _, epoch = name.rpartition("-")
            if owner == query and epoch.isdecimal() and ledger.is_done(int(epoch)):
                directories.add(os.path.join(options.staging, name))
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
    _remove_empty(options.staging)


def _remove_empty(directory: str) -> None:
    with suppress(OSError):
        os.rmdir(directory)


def _query_of(staged: Sequence[Staged]) -> str | None:
    return next((message.query for message in staged), None)


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────


def append_all(options: WriteOptions, staged: Sequence[Staged], epoch: int | None) -> None:
    """Append what was staged, unless it is there; an epoch that was begun before is finished first."""
    config = Config.of(options.config, attach=False)
    query = _query_of(staged)
    with warren.open(options.path, config) as node:
        ledger = None if query is None or epoch is None else Ledger.load(RealFileSystem(), options.path, query)
        if ledger is not None and ledger.intent is not None:
            _Appending(node, options, ledger.intent, ledger.query).run(again=True)
            ledger.finish()
        if ledger is not None and epoch is not None and ledger.is_done(epoch):
            return
        _check(node, options, staged)
        files = tuple(message.path for message in staged if message.path is not None)
        intent = Intent(0, 0, sum(message.rows for message in staged), files)
        if ledger is not None and epoch is not None:
            log = node._running.topics_now().log
            call(log, log.sync).get()
            intent = ledger.begin(epoch, node._running.topics_now().store.commit_log.end, intent.rows, files)
        _Appending(node, options, intent, query if ledger is not None else None).run(again=False)
        if ledger is not None:
            ledger.finish()


def _check(node: warren.Node, options: WriteOptions, staged: Sequence[Staged]) -> None:
    """Raise :class:`PipelineError` for what the node would refuse, before anything is appended; topics are made."""
    highest: Counter[str] = Counter()
    for message in staged:
        for name, queue_id in message.queue_ids.items():
            highest[name] = max(highest.get(name, -1), queue_id)
    for name, queue_id in highest.items():
        queues = node.topic(name, queues=options.queues).queues
        if queue_id >= queues:
            raise PipelineError(
                f"topic {name}: a row is for queue {queue_id}, but there are {queues} queues; raise option queues"
            )
    settings = node.config.topics
    limit = min(settings.max_message_size, settings.mapped_file_size_commit_log)
    largest = max(message.largest_bytes for message in staged)
    if largest > limit:
        raise PipelineError(f"a message takes {largest} bytes in the CommitLog; at most {limit} are possible")


@attrs.define
class _Appending:
    """Appends the rows of an intent; call :meth:`run` once."""

    node: warren.Node
    options: WriteOptions
    intent: Intent
    query: str | None
    """``None``: rows are not marked."""
    _topics: dict[str, tuple[warren.Topic, Router]] = attrs.Factory(dict)
    _on_their_way: deque[Confirm] = attrs.Factory(deque)

    def run(self, *, again: bool) -> None:
        """Append all rows, except (``again``) those that are there; they are safe when this returns."""
        present_rows: set[int] = self._present_rows() if again else set()
        first = 0
        for chunk in chunks(self.intent.files) if len(present_rows) < self.intent.rows else ():
            missing = [row for row in range(chunk.num_rows) if first + row not in present_rows]
            if missing:
                self._append(chunk.take(pa.array(missing, pa.int64())), [first + row for row in missing])
            first += chunk.num_rows
        while self._on_their_way:
            self._on_their_way.popleft().wait()
        log = self.node._running.topics_now().log
        call(log, log.sync).get()  # also for the rows that were found

    def _present_rows(self) -> set[int]:
        """Return the numbers of the rows that are in the CommitLog."""
        log = self.node._running.topics_now().store.commit_log
        if log.min_offset > self.intent.log_end:
            raise PipelineError(
                f"{self.options.path}: epoch {self.intent.epoch} of {self.query} was begun, but its messages have "
                "expired; what is missing is unknown"
            )
        mark, rows = self._mark(), set()
        for record in log.items(self.intent.log_end):
            if isinstance(record, Record) and (row := _row_of(record.properties, mark)) is not None:
                rows.add(row)
        return rows

    def _mark(self) -> bytes:
        return f"{WRITE_PROPERTY}\x01{self.query}/{self.intent.epoch}/".encode()

    def _append(self, chunk: pa.RecordBatch, rows: Sequence[int]) -> None:
        log = self.node._running.topics_now().log.intake
        batches, confirm = list(self._batches(chunk, rows)), Confirm(log)
        Admission(
            lambda: [log],
            lambda _: size_of(batches),
            lambda _, reserved_bytes, __: log.hand_over(batches, confirm, reserved_bytes),
        ).get()
        self._on_their_way.append(confirm)
        if len(self._on_their_way) > _AHEAD:
            self._on_their_way.popleft().wait()

    def _topic(self, name: str) -> tuple[warren.Topic, Router]:
        if name not in self._topics:
            topic = self.node.topic(name, queues=self.options.queues)
            self._topics[name] = topic, Router(topic.queues)
        return self._topics[name]

    def _batches(self, chunk: pa.RecordBatch, rows: Sequence[int]) -> Iterator[Batch]:
        """Yield a chunk's messages in order, as far as there is an order: within each queue."""
        columns: dict[str, list[Any]] = {name: chunk.column(name).to_pylist() for name in chunk.schema.names}
        properties = columns["properties"]
        if self.query is not None:
            mark = self._mark()
            properties = [
                b"%b%b%b%d" % (encoded, b"\x02" if encoded else b"", mark, row)
                for encoded, row in zip(properties, rows, strict=True)
            ]
        kinds = [
            (topic, bool(level), 0 if queue_id is not None else 1 if key is not None else 2)
            for topic, level, queue_id, key in zip(
                columns["topic"], columns["delay_level"], columns["queue_id"], columns["key"], strict=True
            )
        ]
        start = 0
        for stop in range(1, len(kinds) + 1):
            if stop < len(kinds) and kinds[stop] == kinds[start]:
                continue
            run = slice(start, stop)
            part = {name: values[run] for name, values in columns.items()}
            yield from self._alike(kinds[start], part, properties[run])
            start = stop

    def _alike(
        self, kind: tuple[str, bool, int], columns: Mapping[str, list[Any]], properties: list[bytes]
    ) -> Iterator[Batch]:
        """Messages of one topic that find their queue in the same way."""
        name, is_delayed, routing = kind
        (topic, router), bodies = self._topic(name), columns["body"]
        if routing == 0:
            parts = router.by_choice(len(bodies), columns["queue_id"].__getitem__)
        else:
            parts = router.by_keys(columns["key"]) if routing == 1 else router.in_turn(len(bodies))
        for part in parts:
            if not is_delayed:
                yield topic._verbs.batch(part, bodies, properties)
                continue
            for at in part.positions:
                batch = topic._verbs.batch(Part(part.queue_id, range(1)), [bodies[at]], properties[at])
                yield to_scheduled(batch, columns["delay_level"][at], self.node.config.topics)


def _row_of(properties: bytes, mark: bytes) -> int | None:
    at = properties.find(mark)
    if at < 0 or (at and properties[at - 1] != 2):
        return None
    digits = properties[at + len(mark) :].partition(b"\x02")[0]
    if not digits.isdigit():
        raise DataError(WRITE_PROPERTY, None, f"a row's number is {digits!r}")
    return int(digits)
