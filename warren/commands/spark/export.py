"""``warren spark export``."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.findings import FindingReporter
from warren.commands.options import (
    EXIT_DAMAGE,
    JsonOption,
    OnlyVhostOption,
    QueueOption,
    SetOption,
    TableFormat,
    WhereOption,
    distinct,
    parse_settings,
)
from warren.commands.output import print_json, report_error
from warren.commands.spark.arguments import Master, Out, Paths, job
from warren.salvage.export import Selection
from warren.salvage.names import printable


def export(
    paths: Paths,
    *,
    out: Out,
    output_format: Annotated[
        TableFormat, typer.Option("--format", help="One JSON object per line, or Parquet.")
    ] = TableFormat.JSONL,
    vhost: OnlyVhostOption = None,
    queue: QueueOption = None,
    where: WhereOption = None,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export the messages of many brokers, as warren export and warren topic scan do, with node and position.

    Exit code 1: some could not be read; stderr says which and why, and all the others are there.
    """
    export_job = job("export")
    order = export_job.Order(
        out=out,
        format=output_format.value,
        selection=Selection(vhost=vhost, queues=distinct(queue), where=where),
        settings=parse_settings(setting),
    )
    exported = export_job.run(paths, order, master)
    for note in exported.notes:
        report_error(note)
    findings = FindingReporter()
    for _, finding in exported.problems:
        findings(finding)
    findings.rest()
    if as_json:
        print_json(exported.to_json())
    else:
        size = f"{exported.payload_bytes:,} bytes of payload"
        print(f"{exported.messages:,} messages, {size}, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)
