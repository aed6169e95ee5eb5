"""The options of ``spark.readStream.format("warren")``, beside those that reading has anyway."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final, Literal, Self

import attrs

from warren.tables.pipeline_errors import PipelineError
from warren.tables.read_options import READ_OPTIONS, OptionTexts, ReadOptions

DEFAULT_PARTITION_BYTES: Final = 64 << 20
"""For a micro-batch, less than for a table, so that it keeps several cores busy."""

EARLIEST: Final = -2
LATEST: Final = -1
"""Special values of a queue's number."""

Numbers = Mapping[str, Mapping[int, int]]
"""By topic and queue id: the number of a message in its queue."""

STREAM_OPTIONS: Final = (
    "topic",
    "maxRecordsPerTrigger",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "sync",
)
"""Those that Spark's Kafka source has, too, mean the same here."""

_OF_KAFKA: Final = {
    "subscribe": "the option topic has the names of topics",
    "subscribepattern": "without the option topic all topics are read; filter by the column topic",
    "assign": "the option topic has the names of topics; filter by the column queue_id",
    "kafka.bootstrap.servers": "the path to load is that of a store",
}
"""Kafka's options that have another form here."""


@attrs.frozen(kw_only=True)
class Position:
    """Where queues begin, or end: one word for all, a time, or numbers; queues without a number follow the word."""

    word: Literal["earliest", "latest", "never"]
    timestamp_ms: int | None = None
    everywhere: Numbers = attrs.Factory(dict)
    """For all nodes."""
    by_node: Mapping[str, Numbers] = attrs.Factory(dict)
    times: Numbers = attrs.Factory(dict)
    """For all nodes, milliseconds in place of numbers."""

    def number(self, node: str, topic: str, queue_id: int) -> int | None:
        """Return the number given for a queue; ``None`` if there is no such number."""
        numbers = self.by_node.get(node, self.everywhere)
        return numbers.get(topic, {}).get(queue_id)


@attrs.frozen(kw_only=True)
class StreamOptions:
    """What to follow, and how."""

    read: ReadOptions
    topics: tuple[str, ...] | None = None
    """``None``: all topics, including future ones."""
    max_records: int | None = None
    """The most records of one micro-batch."""
    min_partitions: int | None = None
    """About the least number of tasks for one micro-batch of a node."""
    starting: Position
    ending: Position
    fail_on_data_loss: bool = True
    sync: bool = True
    """Whether messages are made safe before they are handed out."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse options. Raises :class:`PipelineError` for an unknown option or an invalid value."""
        all_options = OptionTexts.of(options)
        for name in _OF_KAFKA.keys() & all_options.texts.keys():
            raise PipelineError(f"option {name} is Kafka's: {_OF_KAFKA[name]}")
        all_options.check_known((*STREAM_OPTIONS, *READ_OPTIONS))
        texts = {"table": "records", "partitionbytes": str(DEFAULT_PARTITION_BYTES), **all_options.texts}
        own_options = OptionTexts({name: texts.pop(name) for name in map(str.lower, STREAM_OPTIONS) if name in texts})
        if texts["table"] != "records":
            raise PipelineError(f"option table is {texts['table']!r}: a stream has the table records")
        return cls(
            read=ReadOptions.of(texts),
            topics=_topics(own_options.texts.get("topic")),
            max_records=_max_records(own_options),
            min_partitions=own_options.count("minPartitions"),
            starting=_position(own_options, "starting", "earliest"),
            ending=_position(own_options, "ending", "never"),
            fail_on_data_loss=own_options.yes_or_no("failOnDataLoss"),
            sync=own_options.yes_or_no("sync"),
        )


def _max_records(options: OptionTexts) -> int | None:
    ours, kafkas = options.count("maxRecordsPerTrigger"), options.count("maxOffsetsPerTrigger")
    if ours is not None and kafkas is not None:
        raise PipelineError("options maxRecordsPerTrigger and maxOffsetsPerTrigger: only one of them")
    return kafkas if ours is None else ours


def _topics(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    topics = tuple(dict.fromkeys(filter(None, (topic.strip() for topic in text.split(",")))))
    if not topics or any("/" in topic or topic in (".", "..") for topic in topics):
        raise PipelineError(f"option topic is {text!r}, not the names of topics with commas between")
    return topics


def _position(options: OptionTexts, which: str, word: Literal["earliest", "never"]) -> Position:
    timestamp = options.count(f"{which}Timestamp", 0)
    name = f"{which}Offsets"
    text, times = options.texts.get(name.lower()), options.texts.get(f"{name}ByTimestamp".lower())
    if text is not None and (timestamp is not None or times is not None):
        other = f"{which}Timestamp" if times is None else f"{name}ByTimestamp"
        raise PipelineError(f"options {name} and {other}: only one of them")
    if text is None:
        return Position(word=word, timestamp_ms=timestamp, times=_times(f"{name}ByTimestamp", times))
    words = ("earliest", "latest") if which == "starting" else ("latest",)
    if text.lower() in words:
        return Position(word="earliest" if text.lower() == "earliest" else "latest")
    message = f'option {name} is {text!r}, not {" or ".join(words)} or JSON as {{"topic": {{"0": 17}}}}'
    try:
        offsets = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(message) from error
    allowed = (EARLIEST, LATEST) if which == "starting" else (LATEST,)
    if (numbers := _numbers(offsets, allowed)) is not None:
        return Position(word=word, everywhere=numbers)
    if isinstance(offsets, dict):
        # Offsets of a query's progress have the stores' anchors under an empty name.
        by_node = {node: _numbers(node_offsets, allowed) for node, node_offsets in offsets.items() if node}
        valid = {node: numbers for node, numbers in by_node.items() if numbers is not None}
        if len(valid) == len(by_node):
            return Position(word=word, by_node=valid)
    raise PipelineError(message)


def _times(name: str, text: str | None) -> Numbers:
    times: Numbers | None = {}
    if text is not None:
        try:
            times = _numbers(json.loads(text), ())
        except (ValueError, RecursionError):
            times = None
    if times is None:
        raise PipelineError(f'option {name} is {text!r}, not JSON as {{"topic": {{"0": 1700000000000}}}}')
    return times


def _numbers(offsets: object, allowed: Collection[int]) -> Numbers | None:
    """Return the numbers by topic and queue; ``None`` if ``offsets`` has another form."""
    if not isinstance(offsets, dict):
        return None
    numbers: dict[str, dict[int, int]] = {}
    for topic, queues in offsets.items():
        if not isinstance(queues, dict):
            return None
        for queue, number in queues.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not is_number or not queue.isdecimal() or (number < 0 and number not in allowed):
                return None
            numbers.setdefault(topic, {})[int(queue)] = number
    return numbers
