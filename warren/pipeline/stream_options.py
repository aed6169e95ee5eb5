"""The options of ``spark.readStream.format("warren")``, beside those that reading has anyway."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final, Literal, Self

import attrs

from warren.pipeline.errors import PipelineError
from warren.tables.options import READ_OPTIONS, OptionTexts, ReadOptions

DEFAULT_PARTITION_BYTES: Final = 64 << 20
"""For a micro-batch, less than for a table, so that it keeps several cores busy."""

EARLIEST: Final = -2
LATEST: Final = -1
"""Special values of a queue's number."""

Numbers = Mapping[str, Mapping[int, int]]
"""By topic and queue id: the number of a message in its queue."""

_OWN: Final = (
    "topic",
    "maxRecordsPerTrigger",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "sync",
)


@attrs.frozen(kw_only=True)
class Position:
    """Where queues begin, or end: one word for all, a time, or numbers; queues without a number follow the word."""

    word: Literal["earliest", "latest", "never"]
    timestamp_ms: int | None = None
    everywhere: Numbers = attrs.Factory(dict)
    """For all nodes."""
    by_node: Mapping[str, Numbers] = attrs.Factory(dict)

    def number(self, node: str, topic: str, queue_id: int) -> int | None:
        """Return the number given for a queue; ``None`` if there is no such number."""
        said = self.by_node.get(node, self.everywhere)
        return said.get(topic, {}).get(queue_id)


@attrs.frozen(kw_only=True)
class StreamOptions:
    """What to follow, and how."""

    read: ReadOptions
    topics: tuple[str, ...] | None = None
    """``None``: all topics, including future ones."""
    max_records: int | None = None
    """The most records of one micro-batch."""
    starting: Position
    ending: Position
    fail_on_data_loss: bool = True
    sync: bool = True
    """Whether messages are made safe before they are handed out."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Raises :class:`PipelineError` for an option that is not known, or has no such value."""
        given = OptionTexts.of(options)
        given.check_known((*_OWN, *READ_OPTIONS))
        texts = {"table": "records", "partition_bytes": str(DEFAULT_PARTITION_BYTES), **given.texts}
        said = OptionTexts({name: texts.pop(name) for name in map(str.lower, _OWN) if name in texts})
        if texts["table"] != "records":
            raise PipelineError(f"option table is {texts['table']!r}: a stream has the table records")
        return cls(
            read=ReadOptions.of(texts),
            topics=_topics(said.texts.get("topic")),
            max_records=said.count("maxRecordsPerTrigger"),
            starting=_position(said, "starting", "earliest"),
            ending=_position(said, "ending", "never"),
            fail_on_data_loss=said.yes_or_no("failOnDataLoss"),
            sync=said.yes_or_no("sync"),
        )


def _topics(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    topics = tuple(dict.fromkeys(filter(None, (topic.strip() for topic in text.split(",")))))
    if not topics or any("/" in topic or topic in (".", "..") for topic in topics):
        raise PipelineError(f"option topic is {text!r}, not the names of topics with commas between")
    return topics


def _position(said: OptionTexts, which: str, word: Literal["earliest", "never"]) -> Position:
    timestamp = said.count(f"{which}Timestamp", 0)
    name = f"{which}Offsets"
    text = said.texts.get(name.lower())
    if text is None:
        return Position(word=word, timestamp_ms=timestamp)
    if timestamp is not None:
        raise PipelineError(f"options {name} and {which}Timestamp: only one of them")
    words = ("earliest", "latest") if which == "starting" else ("latest",)
    if text.lower() in words:
        return Position(word="earliest" if text.lower() == "earliest" else "latest")
    wanted = f'option {name} is {text!r}, not {" or ".join(words)} or JSON as {{"topic": {{"0": 17}}}}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(wanted) from error
    allowed = (EARLIEST, LATEST) if which == "starting" else (LATEST,)
    if (numbers := _numbers(found, allowed)) is not None:
        return Position(word=word, everywhere=numbers)
    if isinstance(found, dict):
        by_node = {node: _numbers(inner, allowed) for node, inner in found.items()}
        known = {node: numbers for node, numbers in by_node.items() if numbers is not None}
        if len(known) == len(by_node):
            return Position(word=word, by_node=known)
    raise PipelineError(wanted)


def _numbers(found: object, allowed: Collection[int]) -> Numbers | None:
    """Return the numbers by topic and queue; ``None`` if ``found`` has another form."""
    if not isinstance(found, dict):
        return None
    numbers: dict[str, dict[int, int]] = {}
    for topic, queues in found.items():
        if not isinstance(queues, dict):
            return None
        for queue, number in queues.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not is_number or not queue.isdecimal() or (number < 0 and number not in allowed):
                return None
            numbers.setdefault(topic, {})[int(queue)] = number
    return numbers
