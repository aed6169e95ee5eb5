"""The command ``warren demo``: the salvage of a stopped RabbitMQ's directory that ships with warren.

The directory has classic queues of version 1 and 2 and quorum queues (two RabbitMQ 3.10.8 nodes' directories put into
one). Beside it is what that broker itself delivered when it was started on copies: for each queue the number of
messages, a digest of their bodies, which of them were marked as redelivered, and how often each one of a quorum queue
had come back. The export is compared with that.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Annotated, Any, Final

import attrs
import typer

from warren.commands.inspect import inspect
from warren.commands.options import EXIT_DAMAGE
from warren.commands.output import FindingReporter, opened, print_json, report_error
from warren.commands.verify import verify
from warren.salvage.archives.archive import unpack
from warren.salvage.export import Selection, export_source
from warren.salvage.names import from_text, shown
from warren.salvage.source import open_source
from warren.storage.errors import StorageError

ARCHIVE: Final = files("warren.data") / "rabbitmq-3.10.8-types.tar.gz"
EXPORTED: Final = "exported.jsonl"
"""The file that the messages are exported to."""

_ORACLE: Final = files("warren.data") / "rabbitmq-3.10.8-types.json"
_NODE: Final = "node"
"""Its directory in the archive."""

Lines = Mapping[str, Sequence[Mapping[str, Any]]]
"""The exported messages, by queue."""


def demo(
    directory: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A new or empty directory, which is kept; default: a temporary one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
) -> None:
    """Salvage a stopped RabbitMQ's directory that ships with warren, and compare with what that broker delivered.

    The commands inspect, verify and export are run on it.

    Exit code 0: it is the same, 1: it is not, which is named, 2: it could not be finished.
    """
    oracle = load_oracle()
    with empty_directory(directory) as place:
        node, out = os.path.join(place, _NODE), os.path.join(place, EXPORTED)
        with as_file(ARCHIVE) as packed:
            unpack(str(packed), place)
        if not as_json:
            _say_command("inspect", node)
            inspect(node)
            _say_command("verify", node)
            verify(node)
            _say_command("export", node, "--out", out)
        findings = FindingReporter()
        with open_source(node) as source, opened(out, node) as write:
            exported = export_source(source, Selection(), write, findings)
        findings.rest()
        differing, marked_otherwise = oracle.compare(read_lines(out))
        problems = differing + marked_otherwise
    if as_json:
        counts = {"queues": len(oracle.delivered), "messages": exported.messages, "bytes": exported.payload_bytes}
        print_json({"broker": oracle.broker, **counts, "held": not problems, "problems": problems})
    else:
        for problem in problems:
            report_error(problem)
        if not problems:
            print(
                f"{exported.messages:,} messages of {len(oracle.delivered)} queues, classic v1, classic v2 and quorum: "
                f"those that {oracle.broker} delivered, in order"
            )
        if directory is not None:
            print(f"The directory is kept: {place}")
    if problems or exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def _say_command(*words: str) -> None:
    print(f"$ warren {' '.join(words)}", flush=True)


@contextmanager
def empty_directory(directory: str | None) -> Iterator[str]:
    """A directory to work in: ``directory``, which must be empty or not there yet, or a temporary one."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="warren-demo-", ignore_cleanup_errors=True) as temporary:
            yield temporary
        return
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise StorageError(f"{directory}: there is something in it; the demo wants an empty directory, or a new name")
    os.makedirs(directory, exist_ok=True)
    yield os.path.abspath(directory)


@attrs.frozen
class QueueDigest:
    """A queue's messages, as the broker delivered or an export contains them."""

    messages: int
    sha256: str
    """The digest of the bodies' SHA-256 digests, concatenated in order."""
    redelivered: Sequence[int]
    """The places of the redelivered messages."""
    delivery_counts: Sequence[int] | None
    """One for each message; ``None`` if the queue counts no deliveries."""

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]]) -> QueueDigest:
        """Return the values for the exported messages of a queue."""
        digests = b"".join(bytes.fromhex(line["body_sha256"]) for line in lines)
        counts = [line["delivery_count"] for line in lines if "delivery_count" in line]
        return cls(
            len(lines),
            hashlib.sha256(digests).hexdigest(),
            [place for place, line in enumerate(lines) if line["redelivered"]],
            counts or None,
        )


@attrs.frozen
class Oracle:
    """What the broker delivered."""

    broker: str
    delivered: Mapping[str, QueueDigest]
    """By queue."""

    def compare(self, lines: Lines) -> tuple[list[str], list[str]]:
        """What differs, a sentence each.

        First the queues whose exported messages are not those that were delivered. Then those of all others whose
        messages are not marked or counted as the broker did it.
        """
        differing, marked_otherwise = [], []
        for name in sorted({*lines, *self.delivered}):
            queue, exported, expected = (
                shown(from_text(name)),
                QueueDigest.of(lines.get(name, [])),
                self.delivered.get(name),
            )
            if expected is None or (exported.messages, exported.sha256) != (expected.messages, expected.sha256):
                differing.append(f"{queue}: {exported.messages:,} messages, not those that were delivered")
                continue
            if exported.redelivered != expected.redelivered:
                marked_otherwise.append(f"{queue}: others are marked as redelivered")
            if exported.delivery_counts != expected.delivery_counts:
                marked_otherwise.append(f"{queue}: other delivery counts")
        return differing, marked_otherwise


def load_oracle() -> Oracle:
    """What the broker delivered of the directory that ships."""
    document = json.loads(_ORACLE.read_text(encoding="utf-8"))
    return Oracle(document["broker"], {name: QueueDigest(**queue) for name, queue in document["delivered"].items()})


def read_lines(path: str) -> dict[str, list[dict[str, Any]]]:
    """The messages of an export, by queue."""
    messages: dict[str, list[dict[str, Any]]] = {}
    with open(path, "rb") as lines:
        for line in map(json.loads, lines):
            messages.setdefault(line["queue"], []).append(line)
    return messages
