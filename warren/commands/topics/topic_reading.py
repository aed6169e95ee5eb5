"""The commands ``warren topic …`` that look into topics: those of a stopped RocketMQ's store folder, or of a warren's.

If a node runs on a directory, the commands that it can answer ask it (:mod:`warren.commands.topics.topic_sources`).
Otherwise the store is opened read-only, and every answer is the one that the original would give after its recovery;
stderr says what that cuts off, and ``--start`` adds what it builds as it starts. Exit code 1: something could not be
read (stderr says which and why, and all the rest is there) or, of ``rebuild --check``, differs; 2: nothing can be
answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Annotated, Final, TypeAlias

import attrs
import typer

from warren.commands.exporting import opened_records
from warren.commands.message_lines import JSON, FormatOption, RecordForm, topic_lines
from warren.commands.options import (
    EXIT_DAMAGE,
    JsonOption,
    LimitOption,
    OffsetOption,
    OutFileOption,
    QueueIdOption,
    RawBodiesOption,
    SetOption,
    StartOption,
    StorePath,
    TextOption,
    TopicOption,
    UsageError,
    WhereOption,
    parse_settings,
)
from warren.commands.output import opened, print_json, report_error
from warren.commands.topics.topic_sources import NoTopicError, StoredTopics, opened_source, opened_store
from warren.msg_store.commit_log.commit_log_format import Blank, Record
from warren.msg_store.commit_log.record_check import WRONG_CRC
from warren.salvage.json_lines import JsonLines
from warren.salvage.names import printable, to_json
from warren.salvage.progress_bars import counting_bar, reading_bar
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.record_lines import blank_line
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.salvage.rocketmq.store_reading import as_sent, queue_entries, salvaged_records, scan_records
from warren.salvage.saved_messages import RecordSelection
from warren.salvage.source import open_place
from warren.storage.java_hash import index_hash, java_hash

Item: TypeAlias = Record | Blank | Finding
Bar: TypeAlias = Callable[..., AbstractContextManager[Callable[[int], object]]]
"""Opens a progress bar; called with ``is_shown``."""

_LAST_MS: Final = (1 << 63) - 1


@attrs.frozen(kw_only=True)
class RecordOptions:
    """Which records to write, and how."""

    where: WhereOption = None
    limit: LimitOption = None
    out: OutFileOption = None
    format: FormatOption = None
    with_text: TextOption = False
    raw_bodies: RawBodiesOption = False


@attrs.frozen(kw_only=True)
class QueryOptions:
    """Which answers of the index to take."""

    limit: Annotated[
        int, typer.Option("--max", metavar="N", min=0, help="At most N messages; never more than maxMsgsNumBatch.")
    ] = 32
    begin: Annotated[
        int, typer.Option("--begin", metavar="MS", help="Stored at or after this time, in ms since 1970.")
    ] = 0
    end: Annotated[int, typer.Option("--end", metavar="MS", help="Stored at or before this time.")] = _LAST_MS
    offsets: Annotated[
        bool,
        typer.Option(
            "--offsets",
            help="Only the physical offsets, as the index returns them: also those of other keys of the same hash.",
        ),
    ] = False
    is_exact: Annotated[
        bool, typer.Option("--exact", help="With --offsets or --json: leave out other keys and duplicates.")
    ] = False


class Findings:
    """Reports on stderr what could not be read, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, finding: Finding) -> None:
        report_error(finding)
        self.count += finding.severity == "damage"

    def cut(self, store: RocketmqStore) -> None:
        """If recovery ended the log early, report how to read what comes after."""
        if (cut := store.log_cut) is None:
            return
        hint = "--set checkCRCOnRecover=false continues there, and " if WRONG_CRC in cut.what else ""
        report_error(f"the messages after that are left out: {hint}`warren topic scan --salvage` reads the intact ones")
        self.count += 1

    def exit(self) -> None:
        if self.count:
            raise typer.Exit(EXIT_DAMAGE)


# ── messages in order ────────────────────────────────────────────────────────────────────────────────────────────────


def read(
    path: StorePath,
    topic: TopicOption,
    queue_id: QueueIdOption,
    *,
    offset: OffsetOption = None,
    options: RecordOptions,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write out the messages of one queue of a topic, in order, one JSON object per line, or as --format says.

    A node that runs is asked; otherwise the files are. Exit code 1: some could not be read; stderr says which and why,
    and all the others are there.
    """
    findings, selection = Findings(), RecordSelection.of(options.where, options.limit)
    with opened_source(path, setting, start=start) as source:
        if isinstance(source, StoredTopics):
            findings.cut(source.opened)
        at_most = options.limit if options.where is None else None
        items = source.messages(topic, queue_id, offset, at_most)
        first, end = source.bounds(topic).get(queue_id, (0, 0))
        if offset is not None and offset < first:
            report_error(f"the queue begins at {first}")
        remaining = max(end - max(offset or 0, first), 0)
        count = remaining if at_most is None else min(remaining, at_most)
        bar = partial(counting_bar, "Reading", lambda: count)
        numbered = enumerate(items, 1)
        _write_records(path, numbered, bar, options, selection=selection, findings=findings, first_offset=offset or 0)
    findings.exit()


def scan(
    path: StorePath,
    *,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage", help="All intact messages of the CommitLog as it is, before recovery, also after damage."
        ),
    ] = False,
    blanks: Annotated[
        bool,
        typer.Option(
            "--blanks", help='With JSON lines: also the filler at the end of each file, marked "blank": true.'
        ),
    ] = False,
    options: RecordOptions,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write out every message of every topic in the order of the CommitLog, one JSON object per line.

    Exit code 1: there is damage in between; stderr says where and what, and it goes on at the next file; with --salvage
    at the next record, and without fillers.
    """
    findings, selection = Findings(), RecordSelection.of(options.where, options.limit)
    items: Iterable[tuple[int | None, Item]]
    bar: Bar
    if salvage:
        with open_place(path) as place:
            directory = place.store()
            settings, _, _ = infer(place.files, directory, parse_settings(setting))
            items = enumerate(salvaged_records(place.files, directory, settings), 1)
            bar = partial(counting_bar, "Reading the CommitLog", lambda: None)
            _write_records(path, items, bar, options, selection=selection, findings=findings, blanks=blanks)
    else:
        with opened_store(path, setting, start=start) as store:
            findings.cut(store)
            bar = partial(reading_bar, store.store.commit_log, "Reading the CommitLog")
            items = (
                (None if isinstance(item, Finding) else item.physical_offset, item) for item in scan_records(store)
            )
            _write_records(path, items, bar, options, selection=selection, findings=findings, blanks=blanks)
    findings.exit()


def _write_records(
    path: str,
    items: Iterable[tuple[int | None, Item]],
    opened_bar: Bar,
    options: RecordOptions,
    *,
    selection: RecordSelection,
    findings: Findings,
    blanks: bool = False,
    first_offset: int = 0,
) -> None:
    """Write the selected records, and say how many; each item comes with the position to advance the bar to.

    ``first_offset``: of a batch, only its messages from this queue offset on.
    """
    with (
        opened_records(options.out, path, options.format, with_text=options.with_text) as output,
        opened_bar(is_shown=output.may_show) as advance_to,
    ):
        blank_lines = output.writer if blanks and selection.where is None else None
        for position, stored in items:
            for item in (stored,) if options.raw_bodies else as_sent((stored,), path, first_offset):
                match item:
                    case Record() if selection.takes(item):
                        output.writer.record(selection.records - 1, item)
                    case Blank() if isinstance(blank_lines, JsonLines) and not selection.is_done:
                        blank_lines.line(blank_line(item))
                    case Finding():
                        findings.add(item)
            if position is not None:
                advance_to(position)
            if selection.is_done:
                break
        output.writer.flush()
    if output.out is not None:
        size = f"{selection.payload_bytes:,} bytes of payload"
        print(f"{selection.records:,} messages, {size}, in {printable(output.out)}")


# ── entries, keys, ids, times ────────────────────────────────────────────────────────────────────────────────────────


def entries(
    path: StorePath,
    topic: TopicOption,
    queue_id: QueueIdOption,
    *,
    offset: OffsetOption = None,
    limit: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help="At most N entries.")] = None,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write out a queue's ConsumeQueue: physical offset, size and tags code, one JSON array per line.

    Exit code 1: a file of the queue is missing; stderr says which entries were in it.
    """
    findings = Findings()
    with opened_store(path, setting, start=start) as store, opened(None, path) as write:
        for entry in queue_entries(store.queue(topic, queue_id), offset, limit):
            if isinstance(entry, Finding):
                findings.add(entry)
            else:
                write(to_json(list(entry[1:])) + b"\n")
    findings.exit()


def query(
    path: StorePath,
    topic: TopicOption,
    key: Annotated[str, typer.Option("--key", metavar="K", help="Which key.")],
    *,
    options: QueryOptions,
    form: RecordForm,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write out the messages with a key, newest first, one JSON object per line, or as --format says.

    Exit code 1: the index is damaged, and older messages with the key may be missing; or some messages could not be
    read; stderr says which and why. Exit code 2: there is no such topic.
    """
    if form.format is not None and (options.offsets or as_json):
        raise UsageError("--format is for messages; leave out --offsets and --json")
    findings = Findings()
    lines = None if options.offsets or as_json else topic_lines(form.format or JSON)
    physical_offsets: list[int] = []
    with opened_source(path, setting, start=start) as source, opened(None, path) as write:
        answers: Iterator[Record | int | Finding]
        ask = source.query if options.is_exact or lines is not None else source.index_answers
        answers = ask(topic, key, options.limit, options.begin, options.end)
        if lines is not None and not form.raw_bodies:
            answers = as_sent(answers, path)
        first = next(answers, None)
        if first is None and source.topics():  # without any ConsumeQueue the names of the topics are unknown
            source.bounds(topic)  # refuses a topic that does not exist
        for answer in () if first is None else chain((first,), answers):
            if isinstance(answer, Finding):
                findings.add(answer)
            elif lines is not None and isinstance(answer, Record):
                write(b"".join(lines(answer)))
            else:
                physical_offsets.append(answer.physical_offset if isinstance(answer, Record) else answer)
    if lines is not None:
        findings.exit()
        return
    if as_json:
        print_json({"physical_offsets": physical_offsets})
    else:
        for physical_offset in physical_offsets:
            print(physical_offset)
    findings.exit()


def message(
    path: StorePath,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="RocketMQ's offsetMsgId, as topic read writes it.")],
    *,
    form: RecordForm,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write out the message with an id, as a JSON object unless --format says otherwise."""
    lines, findings = topic_lines(form.format or JSON), Findings()
    with opened_source(path, setting) as source, opened(None, path) as write:
        try:
            record = source.message(message_id)
        except LookupError as error:
            raise NoTopicError(str(error)) from error
        for item in (record,) if form.raw_bodies else as_sent((record,), path):
            if isinstance(item, Finding):
                findings.add(item)
            else:
                write(b"".join(lines(item)))
    findings.exit()


def offset_at(
    path: StorePath,
    topic: TopicOption,
    queue_id: QueueIdOption,
    timestamp: Annotated[int, typer.Option("--timestamp", metavar="MS", help="Milliseconds since 1970.")],
    *,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the message of a queue that was stored at a time: in files as RocketMQ does, by their modification times;
    on a running node, the first one stored then or later."""
    with opened_source(path, setting, start=start) as source:
        queue_offset = source.offset_at(topic, queue_id, timestamp)
    if as_json:
        print_json({"offset": queue_offset})
    else:
        print(queue_offset)


def hash_key(key: Annotated[str, typer.Argument(metavar="KEY")], *, as_json: JsonOption = False) -> None:
    """Print a string's hash codes as JSON. Index files store that of TOPIC#KEY, ConsumeQueues that of the tags."""
    print_json({"java_hash": java_hash(key), "index_hash": index_hash(key), "tags_code": java_hash(key)})
