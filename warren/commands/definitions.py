"""The command ``warren definitions``: what is declared, as RabbitMQ's definitions JSON, out and in."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, Final

import typer

from warren.actors.engines.declared.queue_arguments import QUORUM
from warren.actors.engines.declared.stream_arguments import STREAM
from warren.commands.opening import definitions_at, opened_node
from warren.commands.options import EXIT_DAMAGE, STDOUT, AdoptOption, UsageError
from warren.commands.output import (
    FindingReporter,
    naming_errors,
    opened,
    parts_of_definitions,
    print_json,
    report_error,
)
from warren.hosting.data_directory import is_a_brokers
from warren.salvage.names import printable
from warren.salvage.queue_directory import OnFinding

_ALWAYS: Final = ("vhosts", "policies", "exchanges", "queues", "bindings")
_SOMETIMES: Final = ("users", "permissions", "topic_permissions", "parameters", "global_parameters")
"""What an import reports as new; the latter only if there was some."""
_HEAD_BYTES: Final = 512
"""A tar or zip file has zero bytes in its first block, a JSON text does not."""
_COMPRESSED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How files of gzip, bzip2, xz and zstd begin."""


def definitions(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A node's data directory; for an export also a stopped RabbitMQ's.")
    ],
    *,
    export: Annotated[
        str | None, typer.Option("--export", metavar="FILE", help="Write to FILE instead of stdout.")
    ] = None,
    import_from: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Import FILE, completely or not at all; -: stdin. Also a stopped RabbitMQ's directory or an archive.",
        ),
    ] = None,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost, without its name, as brokers export it.")] = None,
    for_import: Annotated[
        bool,
        typer.Option(
            "--for-import",
            help="Export with what a stopped RabbitMQ's own export lacks: internal exchanges, objects in parameters.",
        ),
    ] = False,
    adopt: AdoptOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was imported as JSON. An export is always JSON.")
    ] = False,
) -> None:
    """Export queues, exchanges, bindings, users and more as RabbitMQ's definitions JSON, or import a file.

    An export works on a running node, too, and on the directory or archive of a RabbitMQ that is stopped or was killed:
    then it has what that would have after a start. An import creates the directory if it is missing.
    Exit code 1: some of a RabbitMQ's definitions could not be read; all the others are there.
    """
    if export is not None and import_from is not None:
        raise UsageError("either --export or --import")
    findings = FindingReporter()
    if import_from is None:
        exported = definitions_at(path, findings, vhost=vhost, adopt=adopt, for_import=for_import)
        with opened(None if export == STDOUT else export, None) as write:
            write(json.dumps(exported, indent=2).encode() + b"\n")
    else:
        is_own = adopt and is_a_brokers(path) and os.path.realpath(import_from) == os.path.realpath(path)
        document = document_at(import_from, findings, vhost=vhost, of_broker=is_own)
        _import(path, document, vhost, adopt=adopt, as_json=as_json)
    findings.rest()
    if findings.has_damage:
        raise typer.Exit(EXIT_DAMAGE)


def document_at(source: str, report: OnFinding, *, vhost: str | None = None, of_broker: bool = False) -> dict[str, Any]:
    """Definitions to import: of a JSON file, or of a stopped RabbitMQ (``vhost``: only of this one).

    ``report`` gets what could not be read of a RabbitMQ's. ``of_broker``: a RabbitMQ's, even in a node's directory.
    """
    if source == STDOUT or _is_text(source):
        return _read(source)
    return definitions_at(source, report, vhost=vhost, for_import=True, of_broker=of_broker)


def _is_text(path: str) -> bool:
    """Whether it is a file of text, and so no archive."""
    if not os.path.isfile(path):
        return False
    with naming_errors(path), open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return b"\0" not in head and not any(head.startswith(magic) for magic in _COMPRESSED)


def _read(source: str) -> dict[str, Any]:
    with naming_errors(source):
        if source == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(source, "rb") as file:
                data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{source}: no definitions: they are a JSON object")
    return document


def _import(path: str, document: dict[str, Any], vhost: str | None, *, adopt: bool, as_json: bool) -> None:
    out_of_reach: list[str] = []
    if adopt and is_a_brokers(path):
        document, out_of_reach = _within_reach(document)
    with opened_node(path, adopt=adopt, make=True) as node:
        imported = node.import_definitions(document, vhost)
    skipped = [*out_of_reach, *imported.skipped]
    counts = {name: len(getattr(imported, name)) for name in (*_ALWAYS, *_SOMETIMES)}
    if as_json:
        retained, ignored = dict(imported.kept), dict(imported.ignored)
        print_json({**counts, "skipped": skipped, "kept": retained, "ignored": ignored})
        return
    print("new: " + parts_of_definitions({name: count for name, count in counts.items() if count or name in _ALWAYS}))
    for sentence in skipped:
        report_error(f"skipped: {printable(sentence)}")
    if imported.kept:
        print(f"means nothing here, and is kept for an export: {parts_of_definitions(imported.kept)}")
    if imported.ignored:
        print(f"means nothing here: {parts_of_definitions(imported.ignored)}")


def _within_reach(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Definitions without the queues whose messages a node cannot use in a RabbitMQ's directory, and why they go.

    There such a queue would be empty, and the broker would not have what is published to it.
    """
    queues = document.get("queues")
    if not isinstance(queues, list):
        return document, []
    return document | {"queues": [queue for queue in queues if not _is_replicated(queue)]}, [
        f"queue '{queue.get('name')}' in vhost '{queue.get('vhost', '')}': a quorum queue or a stream, "
        "whose messages are only read in a RabbitMQ's directory; shovel them into another one"
        for queue in queues
        if _is_replicated(queue)
    ]


def _is_replicated(queue: object) -> bool:
    if not isinstance(queue, dict):
        return False  # the import refuses it
    arguments = queue.get("arguments")
    kinds = queue.get("type"), arguments.get("x-queue-type") if isinstance(arguments, dict) else None
    return any(kind in (QUORUM, STREAM) for kind in kinds)
