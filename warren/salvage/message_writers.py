"""Writers of messages by the names of their formats: what ``warren export`` and ``warren topic read`` write with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import attrs

from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.export import MessageWriter
from warren.salvage.formats import Format
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
