"""The command ``warren topic rebuild``: a stopped store's ConsumeQueues and index, made from its CommitLog again."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.options import EXIT_DAMAGE, CheckOption, JsonOption, SetOption, StorePath
from warren.commands.output import print_json
from warren.commands.topics.topic_reading import Findings
from warren.commands.topics.topic_sources import opened_store
from warren.salvage.names import Json, printable
from warren.salvage.progress_bars import reading_bar
from warren.salvage.rocketmq.comparing import Compared, compare
from warren.salvage.rocketmq.rebuilding import rebuild


def rebuild_command(
    path: StorePath,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="A new or empty directory.")],
    *,
    check: CheckOption = False,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild ConsumeQueue and index files from the CommitLog alone.

    Exit code 1: something differs from the files that are there (--check), or of the CommitLog could not be read.
    """
    findings, compared = Findings(), list[Compared]()
    with opened_store(path, setting) as store:
        with reading_bar(store.store.commit_log, "Reading the CommitLog") as advance:
            rebuilt = rebuild(store, out, advance)
        try:
            for finding in rebuilt.damage:
                findings.add(finding)
            report: dict[str, Json] = {"out": out, "records": rebuilt.records, "files": rebuilt.files}
            if check:
                compared = list(compare(store, rebuilt))
        finally:
            rebuilt.close()
    differing = [file for file in compared if not file.is_good]
    if check:
        report["check"] = {"equal": not differing, "files": [file.to_json() for file in compared]}
    if as_json:
        print_json(report)
    else:
        print(f"{rebuilt.records:,} records: {len(rebuilt.files):,} files in {printable(out)}")
        for file in differing:
            place = "" if file.file_offset is None else f" from offset {file.file_offset:,} on"
            print(f"{printable(file.name)}: {file.outcome}{place}")
        if check and not differing:
            print(f"{len(compared):,} files are as they were")
    if differing:
        raise typer.Exit(EXIT_DAMAGE)
    findings.exit()
