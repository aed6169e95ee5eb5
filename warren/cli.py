"""The command ``warren``: the list of its commands, and how they fail.

Every command has ``--json``. What goes wrong is one line on stderr and exit code 2; other exit codes are a command's own.
A command does its work in a module of its own; what stands here are its arguments, what it prints, and its exit code.
A new one is a function with :func:`command` above it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from rich.console import Console, RenderableType

from storage.errors import StorageError, WarrenError
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source, tables
from warren.salvage.names import printable, to_json
from warren.salvage.source import open_source
from warren.salvage.verify import Account, to_report, verify_source

Parameters = ParamSpec("Parameters")

EXIT_DAMAGE = 1
EXIT_UNREADABLE = 2

_WIDTH_WITHOUT_TERMINAL = 160
_WRITE_BYTES = 1 << 20

_USAGE_ERROR: type[Any] = typer.BadParameter.__base__ or typer.BadParameter
"""What wrong arguments raise; whose class that is depends on Typer's version."""

app = typer.Typer(
    name="warren",
    help="An embedded message store; and it gets the messages out of a RabbitMQ's directory that no broker opens any more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SourcePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A node's data directory, its vhosts folder, one vhost's or one queue's folder, or a .tar.gz of one. "
        "Opened read-only.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def main() -> NoReturn:
    """Run the command that the command line says, and exit."""
    try:
        code = app(standalone_mode=False)
    except _USAGE_ERROR as error:
        complain(error.format_message())
        code = EXIT_UNREADABLE
    except typer.Abort:
        code = 130
    sys.exit(code or 0)


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a command of a function; its errors become one line and exit code 2."""

    @app.command()
    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except WarrenError as error:
            complain(str(error))
            raise typer.Exit(EXIT_UNREADABLE) from error
        except BrokenPipeError as error:  # whoever read our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from error

    return run


def complain(text: object) -> None:
    """Say on stderr, in one line, what is wrong."""
    print(f"warren: {printable(' '.join(str(text).split()))}", file=sys.stderr)


@command
def inspect(path: SourcePath, as_json: AsJson = False) -> None:
    """Say what is in a broker's directory: vhosts, queues, segments and stores, in numbers."""
    with open_source(path) as source:
        report = inspect_source(source)
        problems = [problem for vhost in source.vhosts for problem in vhost.problems if problem.severity == "damage"]
    if as_json:
        _print_json(report)
    else:
        _print_text(tables(report))
    for problem in problems:
        complain(problem)


class Format(enum.StrEnum):
    """What export writes."""

    JSONL = "jsonl"


@command
def export(
    path: SourcePath,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only queues of this name.")] = None,
    include_acked: Annotated[
        bool, typer.Option("--include-acked", help='Also acked messages that are still there, marked "acked": true.')
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help='Also stored messages that no queue needs, marked "orphan": true.')
    ] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write them to FILE, and to stdout how many.")] = None,
    format: Annotated[Format, typer.Option(help="A JSON object on a line for each message.")] = Format.JSONL,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --out: say as JSON how many. The messages are JSON anyway.")
    ] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exit code 1: there were messages that could not be read; stderr says which, and the others are there.
    """
    selection = Selection(vhost=vhost, queue=queue, include_acked=include_acked, orphans=orphans)
    with open_source(path) as source, _output(out, path) as write:
        exported = export_source(source, selection, write, complain)
    if out is not None and as_json:
        _print_json(
            {"out": out, "messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        )
    elif out is not None:
        print(f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


@command
def verify(path: SourcePath, as_json: AsJson = False) -> None:
    """Say what in a broker's directory is damaged, and what is only left over.

    Exit code 0: no damage, 1: damage, 2: nothing that could be read.
    """
    account = Account()
    with open_source(path) as source:
        if as_json:
            with _output(None, path) as write:
                write(b'{"kind": %b, "findings": [' % to_json(source.kind))
                for finding in verify_source(source):
                    write(b", " if account.damage + account.leftovers else b"")
                    write(to_json(to_report(finding)))
                    account.add(finding)
                write(b'], "damage": %d, "leftover": %d}\n' % (account.damage, account.leftovers))
        else:
            for finding in verify_source(source):
                account.add(finding)
            _print_text(account.printable())
    if account.damage:
        raise typer.Exit(EXIT_DAMAGE)


def _print_json(report: object) -> None:
    with _output(None, "") as write:
        write(to_json(report) + b"\n")  # type: ignore[arg-type]


def _print_text(parts: Iterator[RenderableType]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    for part in parts:
        console.print(part, soft_wrap=True)


@contextlib.contextmanager
def _output(out: str | None, source: str) -> Iterator[Callable[[bytes], None]]:
    """What writes bytes to a file, or to stdout; the file may not lie in what is only read."""
    if out is None:
        with _buffered(sys.stdout.buffer.write) as write:
            yield write
        sys.stdout.buffer.flush()
        return
    if os.path.commonpath([os.path.realpath(out), os.path.realpath(source)]) == os.path.realpath(source):
        raise StorageError(f"{out}: lies in {source}, which is not to be changed")
    try:
        file = open(out, "wb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise StorageError(f"{out}: {error.strerror}") from error
    with file, _buffered(file.write) as write:
        yield write


@contextlib.contextmanager
def _buffered(write: Callable[[bytearray], object]) -> Iterator[Callable[[bytes], None]]:
    """Collects small pieces."""
    pending = bytearray()

    def add(data: bytes) -> None:
        nonlocal pending
        pending += data
        if len(pending) >= _WRITE_BYTES:
            write(pending)
            pending = bytearray()

    yield add
    write(pending)


if __name__ == "__main__":
    main()
