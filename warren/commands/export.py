"""The command ``warren export``: the messages of a broker's queues, written out."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.exporting import opened_writer
from warren.commands.findings import FindingReporter
from warren.commands.options import (
    EXIT_DAMAGE,
    LimitOption,
    MessageFormatOption,
    OnlyVhostOption,
    OutFileOption,
    QueueOption,
    SourcePath,
    TextOption,
    WhereOption,
    distinct,
)
from warren.commands.output import print_json
from warren.salvage.export import Selection, count_chosen, export_to
from warren.salvage.names import from_text, printable
from warren.salvage.rocketmq.progress import counting_bar
from warren.salvage.source import open_source


def export(
    path: SourcePath,
    *,
    vhost: OnlyVhostOption = None,
    queue: QueueOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    include_acked: Annotated[
        bool, typer.Option("--include-acked", help='Also acked messages that are still there, marked "acked": true.')
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help='Also stored messages that no queue needs, marked "orphan": true.')
    ] = False,
    out: OutFileOption = None,
    output_format: MessageFormatOption = None,
    with_text: TextOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: say in JSON how many.")] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exit code 1: some could not be read, or something is damaged so that messages may be missing; stderr says what and
    why, and all the others are there. `warren import` and `warren shovel` publish what was written.
    """
    selection = Selection(
        vhost=vhost,
        queues=distinct(queue),
        include_acked=include_acked,
        orphans=orphans,
        where=where,
        limit=limit,
    )
    selection.condition()  # says what is wrong with it before anything is opened
    wanted = () if orphans else tuple(map(from_text, selection.queues))
    findings = FindingReporter()
    with (
        open_source(path, wanted) as source,
        opened_writer(
            out, path, output_format, with_text=with_text, include_acked=include_acked, orphans=orphans
        ) as output,
        counting_bar("Exporting", lambda: count_chosen(source, selection), is_shown=output.may_show) as passed,
    ):
        exported = export_to(source, selection, output.writer, findings, passed)
    findings.rest()
    if output.out is not None and as_json:
        counts = {"messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        print_json({"out": output.out, "format": str(output.format), **counts})
    elif output.out is not None:
        print(
            f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(output.out)}"
        )
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)
