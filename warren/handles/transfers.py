"""Messages from directories to files, and from files to directories: ``warren export`` and ``warren import``
for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from warren.salvage.names import from_text
from warren.storage.call_arguments import checked

if TYPE_CHECKING:
    from warren.handles.node import Node
    from warren.salvage.formats import Format
    from warren.salvage.queue_directory import Finding
    from warren.shovel.run import Orders


@attrs.frozen(kw_only=True)
class Transferred:
    """The result of an export or an import."""

    messages: int
    payload_bytes: int
    problems: tuple[str, ...]
    """What could not be read, and why; everything else was transferred."""
    already: int = 0
    """For an import: messages that an earlier run brought."""


@checked
def export_messages(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    queues: Sequence[str] = (),
    vhost: str | None = None,
    where: str | None = None,
    limit: int | None = None,
    format: str | None = None,
    text: bool = False,
) -> Transferred:
    """Write the messages that a restarted broker would deliver from ``path`` to the file ``out``, as ``warren export``
    does.

    ``path``: a directory that no node or broker has open, or an archive of one. ``queues``: only those. ``where``: a
    condition as in SQL. ``format``: "jsonl", "csv", "parquet" or "bodies"; else by ``out``'s ending. ``text``:
    bodies that are UTF-8 as text. ``out`` gets its name when all is written. Raises :class:`DataError`,
    :class:`StorageError`, and :class:`~warren.where.WhereError` for an invalid condition.
    """
    from warren.commands.exporting import opened_writer
    from warren.salvage.export import Selection, export_to
    from warren.salvage.formats import format_called
    from warren.salvage.source import open_source

    selection = Selection(vhost=vhost, queues=tuple(queues), where=where, limit=limit)
    selection.condition()
    chosen: Format | None = None if format is None else format_called(format)
    problems: list[str] = []

    def report(finding: Finding) -> None:
        if finding.severity == "damage":
            problems.append(str(finding))

    with (
        open_source(os.fspath(path), tuple(map(from_text, queues))) as source,
        opened_writer(os.fspath(out), os.fspath(path), chosen, with_text=text) as output,
    ):
        exported = export_to(source, selection, output.writer, report)
    return Transferred(messages=exported.messages, payload_bytes=exported.payload_bytes, problems=tuple(problems))


@checked
def import_messages(
    file: str | os.PathLike[str],
    into: Node | str | os.PathLike[str],
    *,
    queue: str | None = None,
    vhost: str | None = None,
    as_published: bool = False,
    rename: Mapping[str, str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    format: str | None = None,
    state: str | os.PathLike[str] | None = None,
    adopt: bool = False,
) -> Transferred:
    """Publish exported messages into a node, as ``warren import`` does.

    ``into``: an open node, or a directory, which is created if missing and may be shared by others. ``queue``:
    all into this one; otherwise each into the queue that it was in (``rename``: old name → new name), or with
    ``as_published`` to the exchange that it was published to. ``format``: "jsonl", "csv", "parquet" or "bodies"; by
    default from ``file``'s ending. Bodies and properties stay as they are, byte for byte. The progress is recorded in
    ``state`` (by default in the node's directory): what was imported already is skipped.
    """
    from warren.salvage.formats import format_called
    from warren.shovel import run

    node = None if isinstance(into, (str, os.PathLike)) else into
    orders = run.Orders(
        source=os.fspath(file),
        destination=os.fspath(into) if isinstance(into, (str, os.PathLike)) else into.path,
        node=node,
        rename=rename or {},
        limit=limit,
        as_published=as_published,
        state=None if state is None else os.fspath(state),
        format=None if format is None else format_called(format),
        where=where,
        into=queue,
        into_vhost=vhost or ("/" if queue is not None else None),
        publish=True,
        adopt=adopt,
    )
    return _imported(orders)


def _imported(orders: Orders) -> Transferred:
    """Run an import to its end."""
    from warren.shovel import run

    account, problems = run.start(orders), list[str]()
    watcher = run.Watcher(
        begin=lambda moved, count: None,
        progress=lambda moved: None,
        report=lambda finding: problems.append(str(finding)),
        notify=lambda text: None,
    )
    run.shovel(orders, account, watcher)
    return Transferred(
        messages=account.messages,
        payload_bytes=sum(moved.payload_bytes for moved in account.queues),
        problems=tuple(problems),
        already=sum(moved.already for moved in account.queues),
    )
