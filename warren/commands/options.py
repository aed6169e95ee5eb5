"""Arguments and options that several commands have, and the checks of their values.

A command takes a parameter from here if another command has the same one. The module imports little but Typer: the
commands look up what the options mean.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from warren.salvage.formats import Format
from warren.storage.errors import SettingsError, WarrenError

EXIT_DAMAGE: Final = 1
"""The command has done its work, and something was damaged or differs."""
STDOUT: Final = "-"
"""In place of a file's name."""


class UsageError(WarrenError):
    """Arguments that contradict each other."""


class TableFormat(enum.StrEnum):
    """How exports and tables are written."""

    JSONL = "jsonl"
    PARQUET = "parquet"


# ── where from ───────────────────────────────────────────────────────────────────────────────────────────────────────

_PLACES: Final = "A node's data directory, its vhosts, quorum or stream folder, one vhost's or one queue's folder"

_ARCHIVES: Final = ", or an archive of one (-: through stdin), or ssh://host/path. Opened read-only."

NodePath = Annotated[str, typer.Argument(metavar="PATH", help="A node's data directory.")]
SourcePath = Annotated[str, typer.Argument(metavar="PATH", help=f"{_PLACES}{_ARCHIVES}")]
AnyPath = Annotated[
    str,
    typer.Argument(metavar="PATH", help=f"{_PLACES}, a RocketMQ's store folder{_ARCHIVES}"),
]
StorePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help=f"A RocketMQ's store folder, a warren node's data directory{_ARCHIVES}",
    ),
]

# ── which of it ──────────────────────────────────────────────────────────────────────────────────────────────────────

VhostOption = Annotated[str, typer.Option("--vhost", help="Which vhost.")]
OnlyVhostOption = Annotated[str | None, typer.Option("--vhost", help="Only this vhost.")]
QueueOption = Annotated[list[str] | None, typer.Option(help="Only queues of this name. Can be repeated.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE")]
TopicOption = Annotated[str, typer.Option("--topic", metavar="T", help="Which topic.")]
QueueIdOption = Annotated[int, typer.Option("--queue-id", metavar="I", help="The queue's number.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Which topic.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Which group.")]
GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="G", help="Which group.")]
OffsetOption = Annotated[
    int | None, typer.Option("--offset", metavar="N", min=0, help="From this queue offset; default: the first.")
]

# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

AdoptOption = Annotated[
    bool, typer.Option("--adopt", help="Take over the directory of a stopped RabbitMQ, which can have it back.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the broker that wrote the store, as maxIndexNum=20000000; only needed "
        "if the files do not tell. Can be repeated.",
    ),
]
StartOption = Annotated[
    bool, typer.Option("--start", help="Also do what the broker does when it starts, after its recovery.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, for ever; Ctrl-C stops.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Compare with the existing files.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
JsonSummaryOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


# ── messages that are written ────────────────────────────────────────────────────────────────────────────────────────

WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only messages that meet this condition, as in SQL: \"routing_key LIKE 'order.%' AND headers['n'] > 3\".",
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", "--max", metavar="N", min=0, help="At most N messages.")]
OutFileOption = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write to FILE, and their number to stdout; -: the messages to stdout."),
]
MessageFormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="One JSON object per line, CSV, Parquet, or only the bodies, one per line (a file "
        "each, if FILE ends in a slash); default: csv or parquet if FILE ends so, else jsonl.",
    ),
]
TextOption = Annotated[
    bool,
    typer.Option("--text", help='In jsonl and csv: bodies that are UTF-8 as text, marked "body_encoding": "string".'),
]
RawBodiesOption = Annotated[
    bool,
    typer.Option("--raw-bodies", help="Of topics: bodies as they are stored, which a producer may have compressed."),
]


# ── values given ─────────────────────────────────────────────────────────────────────────────────────────────────────


def distinct(values: Iterable[str] | None) -> tuple[str, ...]:
    """The values of an option that can be repeated, each once."""
    return tuple(dict.fromkeys(values or ()))


def pairs(
    option: str,
    assignments: Iterable[str] | None,
    form: str = "NAME=VALUE",
    *,
    may_be_empty: bool = False,
    error: Callable[[str], WarrenError] = UsageError,
) -> dict[str, str]:
    """Return the values of an option that takes pairs; if a name is given twice, the last value counts.

    ``may_be_empty``: whether the value may be. Raises what ``error`` makes of a sentence.
    """
    parsed = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not (name and equals and (value or may_be_empty)):
            raise error(f"{option} {assignment}: expected {form}")
        parsed[name] = value
    return parsed


def parse_settings(assignments: list[str] | None) -> dict[str, str]:
    """What ``--set`` says; raises :class:`SettingsError`."""
    return pairs("--set", assignments, error=SettingsError)
