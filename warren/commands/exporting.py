"""Where the commands that write messages write them to, and in which form: the options ``--out``, ``--format`` and
``--text``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import attrs

from warren.commands.message_lines import JSON, Lines, topic_lines
from warren.commands.options import STDOUT, UsageError
from warren.commands.output import opened, opened_folder
from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.export import MessageWriter, RecordWriter
from warren.salvage.formats import Format, format_of
from warren.salvage.json_lines import JsonLines
from warren.salvage.message_batches import Body, MessageBatch
from warren.storage.errors import SettingsError


@attrs.frozen(kw_only=True)
class Form:
    """The options of a writer."""

    format: Format = Format.JSONL
    with_text: bool = False
    """Bodies that are UTF-8 as text."""
    node: str = ""
    """The value of the column ``node`` of Parquet."""
    records: bool = False
    """Whether the messages are a topic's records."""
    include_acked: bool = False
    orphans: bool = False
    """Whether acked messages and orphans may occur."""

    def check(self) -> None:
        """Raise :class:`SettingsError` for options that do not go together, or need a missing package."""
        if self.with_text and self.format not in (Format.JSONL, Format.CSV):
            raise SettingsError(f"--text: is for jsonl and csv; in {self.format} bodies are bytes")
        if self.format is Format.PARQUET:
            _parquet()


@contextmanager
def writer_of(form: Form, write: Callable[[bytes | bytearray], object]) -> Iterator[MessageWriter]:
    """A writer of messages in that form; ``write`` gets the bytes."""
    form.check()
    match form.format:
        case Format.JSONL:
            yield JsonLines(write, with_text=form.with_text)
        case Format.CSV:
            from warren.salvage.csv_rows import MESSAGE_COLUMNS, RECORD_COLUMNS, CsvRows

            yield CsvRows(write, RECORD_COLUMNS if form.records else MESSAGE_COLUMNS, with_text=form.with_text)
        case Format.BODIES:
            yield body_lines(write)
        case Format.PARQUET:
            include_acked, orphans, records = form.include_acked, form.orphans, form.records
            rows = _parquet()(write, form.node, include_acked=include_acked, orphans=orphans, records=records)
            with rows as writer:
                yield writer


def _parquet() -> Callable[..., AbstractContextManager[MessageWriter]]:
    """The function that opens a writer of Parquet: :func:`warren.arrow.parquet_export.parquet_rows`."""
    try:
        from warren.arrow.parquet_export import parquet_rows
    except ImportError as error:
        raise SettingsError('--format parquet: needs pyarrow: pip install "warrenmq[parquet]"') from error
    return parquet_rows


# ── bodies alone ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Bodies:
    """Hands bodies to ``write``, in order."""

    def __init__(self, write: Callable[[Body], object]) -> None:
        self._write = write

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Messages of a queue."""
        for row in batch.mixed().rows:
            self._write(row.body)

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to."""
        self._write(orphan.body)

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""
        self._write(record.body)

    def flush(self) -> None:
        """Nothing is buffered."""


def body_lines(write: Callable[[bytes], object]) -> Bodies:
    """Each body followed by a newline, as ``kcat -C`` and ``jq -c`` write them."""
    return Bodies(lambda body: write(b"".join((body, b"\n"))))


def body_files(directory: str) -> Bodies:
    """Each body in a file of its own, named by its number: ``00000001``, ``00000002``, …"""
    number = 0

    def write(body: Body) -> None:
        nonlocal number
        number += 1
        with open(os.path.join(directory, f"{number:08}"), "xb") as file:
            file.write(body)

    return Bodies(write)


@attrs.frozen(kw_only=True)
class RecordOutput:
    """An output of a topic's records that is open."""

    writer: RecordWriter
    out: str | None
    """``None``: it is stdout."""

    @property
    def may_show(self) -> bool:
        """Whether a progress bar would not mix with the output."""
        return self.out is not None or not sys.stdout.isatty()


@attrs.frozen(kw_only=True)
class Output(RecordOutput):
    """An output of messages that is open."""

    writer: MessageWriter
    format: Format
    of_node: Callable[[str], MessageWriter]
    """Makes a writer of the same output whose lines begin with a node's name; for lines of JSON."""


class RecordLines:
    """Writes records as a template says."""

    def __init__(self, write: Callable[[bytes], object], lines: Lines) -> None:
        self._write = write
        self._lines = lines

    def record(self, position: int, record: Record) -> None:
        """One record."""
        self._write(b"".join(self._lines(record)))

    def flush(self) -> None:
        """Nothing is held back."""


@contextmanager
def opened_records(
    out: str | None, source: str, format_name: str | None, *, with_text: bool = False
) -> Iterator[RecordOutput]:
    """Open a writer of a topic's records to ``out``, in a format of an export or as a template says."""
    if format_name in (None, JSON) or format_name in {*Format}:
        record_format = None if format_name is None else Format.JSONL if format_name == JSON else Format(format_name)
        with opened_writer(out, source, record_format, with_text=with_text, records=True) as output:
            yield output
        return
    if with_text:
        raise UsageError("--text: is for jsonl and csv")
    lines = topic_lines(format_name or JSON)
    out = None if out == STDOUT else out
    with opened(out, source) as write:
        yield RecordOutput(writer=RecordLines(write, lines), out=out)


@contextmanager
def opened_writer(
    out: str | None,
    source: str,
    output_format: Format | None,
    *,
    with_text: bool = False,
    include_acked: bool = False,
    orphans: bool = False,
    records: bool = False,
) -> Iterator[Output]:
    """Open a writer of the messages of ``source`` to ``out``, which is written completely or not at all."""
    out = None if out == STDOUT else out
    output_format = output_format or format_of(out)
    form = Form(
        format=output_format,
        with_text=with_text,
        node=source,
        records=records,
        include_acked=include_acked,
        orphans=orphans,
    )
    form.check()
    if out is None and output_format is Format.PARQUET and sys.stdout.isatty():
        raise UsageError("--format parquet: is nothing for a terminal; say --out FILE")
    if output_format is Format.BODIES and out is not None and (out.endswith("/") or os.path.isdir(out)):
        with opened_folder(out, source) as folder:
            writer = body_files(folder)
            yield Output(writer=writer, out=out, format=output_format, of_node=lambda _: writer)
        return
    with opened(out, source) as write, writer_of(form, write) as lines:
        of_node = partial(JsonLines, write, with_text=with_text)
        yield Output(writer=lines, out=out, format=output_format, of_node=of_node)
