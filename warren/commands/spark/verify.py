"""``warren spark verify``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text

from warren.commands.options import EXIT_DAMAGE, JsonOption, SetOption, TableFormat, parse_settings
from warren.commands.output import opened, print_json, print_text, report_error
from warren.commands.spark.arguments import Master, MayBeOut, OutputFormat, Paths, job
from warren.salvage.names import printable, to_json
from warren.salvage.verify import Account, to_report


def verify(
    paths: Paths,
    *,
    out: MayBeOut = None,
    output_format: OutputFormat = TableFormat.JSONL,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report damage in the directories of many brokers, and harmless leftovers.

    Exit code 0: no damage, 1: damage, 2: nothing that can be read.
    """
    changes = parse_settings(setting)
    with job("verify").verified(paths, master, changes, out=out, output_format=output_format.value) as verified:
        for note in verified.notes:
            report_error(note)
        counts = {"damage": verified.damage, "leftover": verified.leftover}
        if out is not None and as_json:
            print_json({"out": out, "format": output_format.value, **counts})
        elif out is not None:
            print(f"{verified.damage:,} damaged, {verified.leftover:,} left over, in {printable(out)}")
        elif as_json:
            _print_json(verified)
        else:
            print_text(_accounts(verified))
        is_damaged = verified.damage > 0
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _print_json(verified: Any) -> None:
    with opened(None, "") as write:
        write(b'{"findings": [')
        for number, (node, finding) in enumerate(verified.findings):
            write((b", " if number else b"") + to_json({"node": node, **to_report(finding)}))
        write(b'], "damage": %d, "leftover": %d}\n' % (verified.damage, verified.leftover))


def _accounts(verified: Any) -> Iterator[RenderableType]:
    """Each node that has any as on one machine, and what all of it comes to."""
    nodes = 0
    for node, node_findings in groupby(verified.findings, key=itemgetter(0)):
        account = Account()
        for _, finding in node_findings:
            account.add(finding)
        yield Text(printable(node), "bold reverse")
        yield from account.printable()
        yield ""
        nodes += 1
    style = "bold red" if verified.damage else "bold green"
    summary = (
        f"{verified.damage:,} damaged, {verified.leftover:,} left over, in {nodes:,} nodes." if nodes else "No damage."
    )
    yield Text(summary, style)
