"""Directories to read tables from, and the progress of the scans that read them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, Self

import attrs

from warren.salvage.live_node import refuse_live_node
from warren.tables.places import Node, find_nodes
from warren.tables.read_options import ReadOptions


class Watcher(Protocol):
    """Receives the progress of a connection's scans."""

    def begun(self, table: str, tasks: int) -> Any:
        """A scan of a table has begun, with ``tasks`` tasks; return its identifier."""

    def advanced(self, scan: Any, task: int) -> object:
        """A scan has a batch of ``task``; when the scan has ended, ``task`` is the number of tasks."""


@attrs.define(eq=False)
class Scanning:
    """What the scans of a connection tell."""

    failed: BaseException | None = None
    """The error of the last scan that failed; DuckDB passes on only its text."""
    watcher: Watcher | None = None

    def begun(self, table: str, tasks: int) -> Any:
        return None if self.watcher is None else self.watcher.begun(table, tasks)

    def advanced(self, scan: Any, task: int) -> None:
        if self.watcher is not None:
            self.watcher.advanced(scan, task)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Note the error with which reading fails."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failed = error
            raise


@attrs.frozen(eq=False)
class Directories:
    """What the tables are read from, and how."""

    nodes: tuple[Node, ...]
    options: ReadOptions
    archives: ExitStack
    """Open while anything reads: an archive lies unpacked in it. Closed when the last reader lets go of it."""
    scanning: Scanning = attrs.Factory(Scanning)

    @classmethod
    def at(
        cls,
        *paths: str | os.PathLike[str],
        failfast: bool = False,
        raw_bodies: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """See :func:`warren.sql.connect`."""
        archives = ExitStack()
        path_texts = tuple(os.fspath(path) for path in paths)
        with archives:
            nodes = find_nodes(path_texts, archives=archives)
            archives = archives.pop_all()
        options = ReadOptions(
            paths=path_texts,
            table="",
            mode="failfast" if failfast else "permissive",
            raw_bodies=raw_bodies,
            settings=settings or {},
        )
        return cls(tuple(nodes), options, archives)

    def refuse_live_nodes(self) -> None:
        """Raise :class:`DirectoryLockedError` where a node runs by now."""
        for node in self.nodes:
            if not node.is_remote:
                refuse_live_node(node.directory)
