"""The command ``warren import``: exported messages, published into a node's directory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import attrs
import typer

from warren.commands.options import (
    STDOUT,
    AdoptOption,
    JsonSummaryOption,
    LimitOption,
    NodePath,
    UsageError,
    WhereOption,
)
from warren.salvage.formats import Format
from warren.shovel.command import renames_of, run_orders
from warren.shovel.run import Orders


@attrs.frozen(kw_only=True)
class ImportOptions:
    """Which messages to publish, and where to."""

    queue: Annotated[
        str | None, typer.Option(metavar="Q", help="Publish all to this queue; default: each to its original queue.")
    ] = None
    vhost: Annotated[
        str | None,
        typer.Option(metavar="V", help="Publish all to this vhost; default: the original one, / with --queue."),
    ] = None
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published", help="Publish to the messages' original exchanges; the node's bindings route them."
        ),
    ] = False
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a queue.")] = None
    where: WhereOption = None
    limit: LimitOption = None
    input_format: Annotated[
        Format | None, typer.Option("--format", help="FILE's format; default: by its ending; stdin: jsonl.")
    ] = None
    state: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file where the import records its progress; default: in PATH."),
    ] = None

    def check(self) -> None:
        """Raise :class:`UsageError` for options that contradict each other."""
        if self.queue is not None and (self.as_published or self.rename):
            raise UsageError("--queue says where all of them go; --as-published and --rename do not go with it")
        if self.limit == 0:
            raise UsageError("--limit: at least 1")

    def orders(self, file: str, place: str, path: str, *, adopt: bool) -> Orders:
        """Return the orders for a run; ``place``: where the content of ``file`` is on disk."""
        return Orders(
            source=place,
            source_name=None if place == file else file,
            destination=path,
            rename=renames_of(self.rename or []),
            limit=self.limit,
            as_published=self.as_published,
            state=self.state,
            format=self.input_format or (Format.JSONL if file == STDOUT else None),
            where=self.where,
            into=self.queue,
            into_vhost=self.vhost or ("/" if self.queue is not None else None),
            publish=True,
            adopt=adopt,
        )


def import_messages(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="What warren export wrote; -: stdin. With --format bodies also a folder."),
    ],
    path: NodePath,
    *,
    options: ImportOptions,
    adopt: AdoptOption = False,
    as_json: JsonSummaryOption = False,
) -> None:
    """Publish exported messages into a node's directory, created if missing; other processes may share it.

    Bodies and properties are those that were exported, byte for byte. Killed or stopped by an error, it goes on where
    it was when it is run again; what is there already is not brought again. Exit code 1: some rows could not be read;
    all the others are there.
    """
    if os.path.isdir(file) and os.path.isfile(path):
        raise UsageError(f"first the FILE, then the directory: warren import {path} {file}")
    options.check()
    with _on_disk(file) as place:
        run_orders(options.orders(file, place, path, adopt=adopt), as_json=as_json)


@contextmanager
def _on_disk(file: str) -> Iterator[str]:
    """The file's path; stdin, or another pipe, is written to a file, because it is read twice."""
    is_there = file != STDOUT and os.path.exists(file)
    if file != STDOUT and (not is_there or os.path.isfile(file) or os.path.isdir(file)):
        yield file
        return
    with ExitStack() as opened, tempfile.NamedTemporaryFile(prefix="warren-") as copy:
        source = opened.enter_context(open(file, "rb")) if is_there else sys.stdin.buffer
        shutil.copyfileobj(source, copy)
        copy.flush()
        yield copy.name
