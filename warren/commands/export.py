"""The command ``warren export``: the messages of a broker's queues, written out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from warren.commands.findings import FindingReporter
from warren.commands.options import (
    EXIT_DAMAGE,
    STDOUT,
    OnlyVhostOption,
    QueueOption,
    SourcePath,
    TableFormat,
    UsageError,
    distinct,
)
from warren.commands.output import opened, print_json
from warren.salvage.export import MessageWriter, Selection, export_source, export_to
from warren.salvage.names import from_text, printable
from warren.salvage.rocketmq.progress import writing_bar
from warren.salvage.source import open_source


def export(
    path: SourcePath,
    *,
    vhost: OnlyVhostOption = None,
    queue: QueueOption = None,
    include_acked: Annotated[
        bool, typer.Option("--include-acked", help='Also acked messages that are still there, marked "acked": true.')
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help='Also stored messages that no queue needs, marked "orphan": true.')
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write to FILE, and to stdout how many; -: the messages to stdout."),
    ] = None,
    output_format: Annotated[
        TableFormat | None,
        typer.Option(
            "--format",
            help="A JSON object on a line for each message, or Parquet; default: Parquet where FILE ends in .parquet.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: say in JSON how many.")] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exit code 1: some could not be read, or something is damaged so that messages may be missing; stderr says what and
    why, and all the others are there.
    """
    selection = Selection(vhost=vhost, queues=distinct(queue), include_acked=include_acked, orphans=orphans)
    out = None if out == STDOUT else out
    output_format = output_format or _format_of(out)
    rows = _parquet_rows(out) if output_format is TableFormat.PARQUET else None
    wanted = () if orphans else tuple(map(from_text, selection.queues))
    with open_source(path, wanted) as source, opened(out, path) as write:
        findings = FindingReporter()
        with writing_bar(write, "Exporting", to_stdout=out is None) as writing:
            if rows is None:
                exported = export_source(source, selection, writing, findings)
            else:
                with rows(writing, path, include_acked=include_acked, orphans=orphans) as writer:
                    exported = export_to(source, selection, writer, findings)
    findings.rest()
    if out is not None and as_json:
        counts = {"messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        print_json({"out": out, "format": str(output_format), **counts})
    elif out is not None:
        print(f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def _format_of(out: str | None) -> TableFormat:
    """As the name's ending says."""
    return TableFormat.PARQUET if out is not None and out.lower().endswith(".parquet") else TableFormat.JSONL


def _parquet_rows(out: str | None) -> Callable[..., AbstractContextManager[MessageWriter]]:
    """What opens a writer of Parquet: :func:`warren.arrow.parquet_export.parquet_rows`."""
    if out is None and sys.stdout.isatty():
        raise UsageError("--format parquet: is nothing for a terminal; say --out FILE")
    try:
        from warren.arrow.parquet_export import parquet_rows  # noqa: PLC0415
    except ImportError as error:
        raise UsageError('--format parquet: needs pyarrow: pip install "warrenmq[parquet]"') from error
    return parquet_rows
