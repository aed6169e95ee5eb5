"""``warren inspect``, ``warren export`` and ``warren verify``: their arguments, what they print, their exit codes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from storage.errors import SettingsError, WarrenError
from warren.salvage.complaints import Complaints
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import Report, inspect_source
from warren.salvage.inspect_tables import tables
from warren.salvage.names import printable, to_json
from warren.salvage.output import complain, opened, print_json, print_text
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.inspecting import KIND, inspect_store, store_tables
from warren.salvage.rocketmq.progress import reading_bar, writing_bar
from warren.salvage.rocketmq.store import opened_store
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.source import Place, Source, open_place, open_source
from warren.salvage.verify import Account, to_report, verify_source

EXIT_DAMAGE: Final = 1
STDOUT: Final = "-"
"""In place of a file's name."""

SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A node's data directory, its vhosts or quorum folder, one vhost's or one queue's folder, or a .tar.gz of "
        "one. Opened read-only.",
    ),
]
AnyPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A node's data directory, its vhosts or quorum folder, one vhost's or one queue's folder, a RocketMQ's "
        "store folder, or a .tar.gz of one. Opened read-only.",
    ),
]
QueueOption = Annotated[list[str] | None, typer.Option(help="Only queues of this name. Can be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the broker that wrote the store, as maxIndexNum=20000000; what the files tell is found out "
        "without it. Can be repeated.",
    ),
]
StartOption = Annotated[
    bool, typer.Option("--start", help="Also what the broker builds when it starts, after its recovery.")
]


def named_queues(said: list[str] | None) -> tuple[str, ...]:
    """Each name once."""
    return tuple(dict.fromkeys(said or []))


def parse_settings(said: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` each; raises :class:`SettingsError`."""
    changes = {}
    for each in said or []:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise SettingsError(f"--set {each}: wants NAME=VALUE")
        changes[name] = value
    return changes


def inspect(path: AnyPath, *, setting: SetOption = None, start: StartOption = False, as_json: AsJson = False) -> None:
    """Say what is in a broker's directory, in numbers: vhosts, queues, segments and stores; or topics, and their files.

    Exit code 1: a node's topics cannot be read; its queues are said.
    """
    changes = parse_settings(setting)
    report: Report = {}
    problems: list[object] = []
    with open_place(path) as place:
        source, store = place.both()
        if source is not None:
            with closing(source):
                report = inspect_source(source)
                problems += [one for vhost in source.vhosts for one in vhost.problems if one.severity == "damage"]
        if store is not None:
            try:
                topics = _inspect_topics(place, store, changes, start=start, complain=problems.append)
            except WarrenError as error:
                if source is None:
                    raise
                topics = None
                problems.append(error)
            report = topics or {} if source is None else report | {"topics": topics}
    if as_json:
        print_json(report)
    else:
        print_text(_inspect_tables(report))
    for problem in problems:
        complain(problem)
    if report.get("topics", report) is None:
        raise typer.Exit(EXIT_DAMAGE)


def _inspect_topics(
    place: Place, directory: str, changes: dict[str, str], *, start: bool, complain: Callable[[object], object]
) -> Report:
    with opened_store(place.path, place.files, directory, changes, start=start) as store:
        for note in store.notes:
            complain(note)
        with reading_bar(store.store.commit_log, "Counting records") as advance:
            return inspect_store(store, complain, advance)


def _inspect_tables(report: Report) -> Iterator[RenderableType]:
    if "vhosts" in report:
        yield from tables(report)
        report = report.get("topics") or {}
    if report:
        yield from store_tables(report)


class Format(enum.StrEnum):
    """What export writes."""

    JSONL = "jsonl"


def export(
    path: SourcePath,
    *,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost.")] = None,
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
        Format, typer.Option("--format", help="A JSON object on a line for each message.")
    ] = Format.JSONL,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out: say in JSON how many. The messages are JSON anyway.")
    ] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exit code 1: some could not be read, or something is damaged so that messages may be missing; stderr says what and
    why, and all the others are there.
    """
    selection = Selection(vhost=vhost, queues=named_queues(queue), include_acked=include_acked, orphans=orphans)
    out = None if out == STDOUT else out
    with open_source(path) as source, opened(out, path) as write:
        complaints = Complaints()
        with writing_bar(write, "Exporting", to_stdout=out is None) as writing:
            exported = export_source(source, selection, writing, complaints)
    complaints.rest()
    if out is not None and as_json:
        counts = {"messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        print_json({"out": out, "format": str(output_format), **counts})
    elif out is not None:
        print(f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def verify(path: AnyPath, *, setting: SetOption = None, as_json: AsJson = False) -> None:
    """Say what in a broker's directory is damaged, and what is only left over.

    Exit code 0: no damage, 1: damage, 2: nothing that can be read.
    """
    account = Account()
    changes = parse_settings(setting)
    with open_place(path) as place:
        source, store = place.both()
        findings = _findings(place, source, store, changes)
        if as_json:
            with opened(None, path) as write:
                kind = KIND if source is None else source.kind
                write(b'{"kind": %b, "findings": [' % to_json(kind))
                for finding in findings:
                    write((b", " if account.total else b"") + to_json(to_report(finding)))
                    account.count(finding)
                write(b'], "damage": %d, "leftover": %d}\n' % (account.damage, account.leftovers))
        else:
            for finding in findings:
                account.add(finding)
            print_text(account.printable())
    if account.damage:
        raise typer.Exit(EXIT_DAMAGE)


def _findings(place: Place, source: Source | None, store: str | None, changes: dict[str, str]) -> Iterator[Finding]:
    """Of a broker's queues, of its topics, or of both."""
    topics: Iterator[Finding] = iter(())
    if store is not None:
        settings, _, guesses = infer(place.files, store, changes)
        for guess in guesses:
            complain(guess)
        topics = verify_store(place.files, store, settings)
    if source is None:
        return topics
    return chain(_queue_findings(source), topics)


def _queue_findings(source: Source) -> Iterator[Finding]:
    with closing(source):
        yield from verify_source(source)
