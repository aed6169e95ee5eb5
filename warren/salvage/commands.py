"""``warren inspect``, ``warren export`` and ``warren verify``: their arguments, what they print, their exit codes."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source, tables
from warren.salvage.names import printable, to_json
from warren.salvage.output import complain, opened, print_json, print_text
from warren.salvage.source import open_source
from warren.salvage.verify import Account, to_report, verify_source

EXIT_DAMAGE: Final = 1

SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A node's data directory, its vhosts folder, one vhost's or one queue's folder, or a .tar.gz of one. "
        "Opened read-only.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def inspect(path: SourcePath, *, as_json: AsJson = False) -> None:
    """Say what is in a broker's directory: vhosts, queues, segments and stores, in numbers."""
    with open_source(path) as source:
        report = inspect_source(source)
        problems = [problem for vhost in source.vhosts for problem in vhost.problems if problem.severity == "damage"]
    if as_json:
        print_json(report)
    else:
        print_text(tables(report))
    for problem in problems:
        complain(problem)


class Format(enum.StrEnum):
    """What export writes."""

    JSONL = "jsonl"


def export(
    path: SourcePath,
    *,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only queues of this name.")] = None,
    include_acked: Annotated[
        bool, typer.Option("--include-acked", help='Also acked messages that are still there, marked "acked": true.')
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help='Also stored messages that no queue needs, marked "orphan": true.')
    ] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write to FILE, and to stdout how many.")] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="A JSON object on a line for each message.")
    ] = Format.JSONL,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out: say in JSON how many. The messages are JSON anyway.")
    ] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exit code 1: some could not be read; stderr says which and why, and all the others are there.
    """
    selection = Selection(vhost=vhost, queue=queue, include_acked=include_acked, orphans=orphans)
    with open_source(path) as source, opened(out, path) as write:
        exported = export_source(source, selection, write, complain)
    if out is not None and as_json:
        counts = {"messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        print_json({"out": out, "format": str(output_format), **counts})
    elif out is not None:
        print(f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def verify(path: SourcePath, *, as_json: AsJson = False) -> None:
    """Say what in a broker's directory is damaged, and what is only left over.

    Exit code 0: no damage, 1: damage, 2: nothing that can be read.
    """
    account = Account()
    with open_source(path) as source:
        if as_json:
            with opened(None, path) as write:
                write(b'{"kind": %b, "findings": [' % to_json(source.kind))
                for finding in verify_source(source):
                    write((b", " if account.total else b"") + to_json(to_report(finding)))
                    account.count(finding)
                write(b'], "damage": %d, "leftover": %d}\n' % (account.damage, account.leftovers))
        else:
            for finding in verify_source(source):
                account.add(finding)
            print_text(account.printable())
    if account.damage:
        raise typer.Exit(EXIT_DAMAGE)
