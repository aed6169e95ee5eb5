"""``warren spark rebuild``."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.options import EXIT_DAMAGE, CheckOption, JsonOption, SetOption, parse_settings
from warren.commands.output import print_json, report_error
from warren.commands.spark.arguments import Master, Paths, job
from warren.salvage.names import printable


def rebuild(
    paths: Paths,
    out: Annotated[
        str,
        typer.Option("--out", metavar="DIR", help="A new directory that all of Spark's machines share."),
    ],
    *,
    check: CheckOption = False,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild ConsumeQueue and index files of many RocketMQ stores from their CommitLogs alone.

    One store's files lie directly in DIR, of several each has a folder there. Exit code 1: something differs from the
    files that are there (--check), or of a CommitLog could not be read.
    """
    reports = job("rebuild").run(paths, master, parse_settings(setting), out, check=check)
    for report in reports:
        for note in report.notes:
            report_error(note)
        for finding in report.damage:
            report_error(finding)
    if as_json:
        documents = [report.to_json() for report in reports]
        print_json(documents[0] if len(documents) == 1 else {"nodes": documents})
    else:
        for report in reports:
            place = printable(report.out)
            print(f"{printable(report.node)}: {report.records:,} records: {len(report.files):,} files in {place}")
            for file in report.differing:
                place = "" if file.file_offset is None else f" from offset {file.file_offset:,} on"
                print(f"{printable(report.node)}: {printable(file.name)}: {file.outcome}{place}")
            if check and not report.differing:
                print(f"{printable(report.node)}: {len(report.compared):,} files are as they were")
    if any(report.differing or report.damage for report in reports):
        raise typer.Exit(EXIT_DAMAGE)
