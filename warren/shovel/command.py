"""The command ``warren shovel``: its arguments, its progress bar, its summary, its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import attrs
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from warren.commands.options import JsonSummaryOption, WhereOption, distinct, pairs
from warren.commands.output import FindingReporter, parts_of_definitions, print_json, print_text, report_error
from warren.salvage.formats import Format
from warren.salvage.names import Json, printable
from warren.shovel.errors import ShovelError
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.shovel.pump import Moved
    from warren.shovel.run import Account, Orders, Watcher

_EXIT_DAMAGE: Final = 1

_PLACE_HELP = "A data directory (warren's, or a stopped RabbitMQ's), {} or amqp://user:password@host:port/vhost."
_SOURCE_HELP = _PLACE_HELP.format("an archive of one, what warren export wrote")
_FORMAT_HELP = "SRC is a file of exported messages of this format; default: as its name ends (.jsonl, .csv, .parquet)."


@attrs.frozen(kw_only=True)
class ShovelOptions:
    """Which messages to bring, and how."""

    queue: Annotated[
        list[str] | None, typer.Option(help="Only this queue. Can be repeated. Required if SRC is a broker.")
    ] = None
    vhost: Annotated[str | None, typer.Option(help="Only this vhost of a directory.")] = None
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a queue at DST.")] = None
    move: Annotated[
        bool, typer.Option("--move", help="Remove the messages from a directory SRC, instead of copying them.")
    ] = False
    limit: Annotated[int | None, typer.Option(min=1, help="At most N messages in this run.")] = None
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published", help="Publish to the messages' original exchanges; the broker's bindings route them."
        ),
    ] = False
    stand_ins: Annotated[
        bool,
        typer.Option(
            "--stand-ins/--no-stand-ins", help="Create exchanges that a broker lacks, and delete them at the end."
        ),
    ] = True
    definitions: Annotated[
        bool,
        typer.Option(
            "--definitions", help="Restore the definitions of a directory first: exchanges, queues, bindings and more."
        ),
    ] = False
    management: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --definitions: the HTTP API of the broker DST, http://user:password@host:15672, for users, "
            "vhosts and policies, too.",
        ),
    ] = None
    prefetch: Annotated[int, typer.Option(min=1, max=65535, help="At most N messages in flight.")] = 1000
    input_format: Annotated[Format | None, typer.Option("--format", help=_FORMAT_HELP)] = None
    where: WhereOption = None
    into: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Publish all of a file's messages to this queue."),
    ] = None
    state: Annotated[str | None, typer.Option(metavar="FILE", help="The file where a copy records its progress.")] = (
        None
    )

    def orders(self, source: str, destination: str) -> Orders:
        """Return the orders for a run. Raises :class:`ShovelError`."""
        from warren.shovel.run import Orders

        return Orders(
            source=source,
            destination=destination,
            queues=distinct(self.queue),
            vhost=self.vhost,
            rename=renames_of(self.rename or []),
            move=self.move,
            limit=self.limit,
            as_published=self.as_published,
            stand_ins=self.stand_ins,
            definitions=self.definitions,
            management=self.management,
            window=self.prefetch,
            state=self.state,
            format=self.input_format,
            where=self.where,
            into=self.into,
        )


def shovel(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help=_SOURCE_HELP),
    ],
    destination: Annotated[str, typer.Argument(metavar="DST", help=_PLACE_HELP.format("one that is not there yet"))],
    *,
    options: ShovelOptions,
    as_json: JsonSummaryOption = False,
) -> None:
    """Copy or move messages without loss, for example from a dead broker's disk to a live broker.

    Directories and archives are copied from, unless --move says otherwise; brokers are always emptied. Killed or
    stopped by an error, it continues when it is run again; the last messages may then be there twice.
    Exit code 1: some could not be read; all the others are there.
    """
    run_orders(options.orders(source, destination), as_json=as_json)


def run_orders(orders: Orders, *, as_json: bool) -> None:
    """Carry them out, with a bar and a summary.

    Raises :class:`typer.Exit` where something was damaged, and what keeps it from being done.
    """
    from warren.shovel import run

    account = run.start(orders)
    try:
        with _watching(as_json=as_json) as watcher:
            run.shovel(orders, account, watcher)
    except (WarrenError, KeyboardInterrupt):
        _print(account, as_json=as_json, finished=False)
        raise
    _print(account, as_json=as_json, finished=True)
    if account.problems:
        raise typer.Exit(_EXIT_DAMAGE)


def renames_of(options: list[str]) -> dict[str, str]:
    """What ``--rename`` says."""
    renames = pairs("--rename", options, "OLD=NEW", error=ShovelError)
    if len(renames) < len(options):
        repeated = next(old for old in renames if sum(option.startswith(f"{old}=") for option in options) > 1)
        raise ShovelError(f"--rename: {repeated!r} is renamed twice")
    return renames


@contextmanager
def _watching(*, as_json: bool) -> Iterator[Watcher]:
    """A progress bar on stderr, if that is a terminal."""
    from warren.shovel.run import Watcher

    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("messages")
    bars = Progress(*columns, TimeRemainingColumn(), console=console, disable=as_json or not console.is_terminal)
    task = None

    def begin(moved: Moved, count: int) -> None:
        nonlocal task
        name = moved.queue if moved.queue == moved.to else f"{moved.queue} → {moved.to}"
        task = bars.add_task(escape(printable(name)), total=count)

    def progress(moved: Moved) -> None:
        if task is not None:
            bars.update(task, completed=moved.messages)

    findings = FindingReporter()
    with bars:
        try:
            yield Watcher(begin, progress, findings, report_error)
        finally:
            findings.rest()


def _print(account: Account, *, as_json: bool, finished: bool) -> None:
    """The summary on stdout."""
    if as_json:
        print_json(to_json(account, finished=finished))
    elif account.queues or account.definitions:
        print_text(_printable(account, finished=finished))


def to_json(account: Account, *, finished: bool) -> Json:
    """The summary for programs."""
    return {
        "source": account.source,
        "destination": account.destination,
        "kind": account.kind,
        "finished": finished,
        "messages": account.messages,
        "bytes": sum(moved.payload_bytes for moved in account.queues),
        "problems": account.problems,
        "state": account.state,
        "definitions": dict(account.definitions),
        "queues": [_queue_to_json(moved) for moved in account.queues],
    }


def _queue_to_json(moved: Moved) -> dict[str, Json]:
    fields = attrs.asdict(moved)
    fields["bytes"] = fields.pop("payload_bytes")
    return fields


def _printable(account: Account, *, finished: bool) -> Iterator[RenderableType]:
    if account.definitions:
        yield Text(f"Definitions: {parts_of_definitions(account.definitions)}.")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    with_vhost = len({moved.vhost for moved in account.queues}) > 1
    for name in (*(["vhost"] if with_vhost else []), "queue", "to"):
        table.add_column(name)
    for name in ("messages", "payload", "there before", "expired", "other exchange"):
        table.add_column(name, justify="right")
    for moved in account.queues:
        counts = moved.messages, moved.payload_bytes, moved.already, moved.expired, moved.renamed_exchanges
        names = *([moved.vhost] if with_vhost else []), moved.queue, moved.to
        table.add_row(
            *(Text(printable(name)) for name in names),
            *(f"{count:,}" if count else "–" for count in counts),
        )
    yield table
    verb = "copied" if account.kind == "copy" else "moved"
    yield Text(f"{account.messages:,} messages {verb}{'' if finished else ' before it ended'}.")
    if account.state is not None:
        yield Text(f"The progress of the copy is in {printable(account.state)}; without it, all is copied again.")
