"""Which of the nodes in a directory or an archive a command reads: the option ``--node``.

A node is called by its directory's name, or by its path below the place if two have the same name.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import attrs
import typer

from warren.commands.options import UsageError, distinct
from warren.salvage.source import Place, open_place

if TYPE_CHECKING:
    from warren.salvage.node_list import NodeSummary

ALL: Final = "all"
"""In place of a node's name."""

NodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help=f"Only the node of this name, if PATH holds several. Can be repeated; {ALL}: every node.",
    ),
]


@attrs.frozen
class Nodes:
    """The nodes that a path holds, by their names."""

    path: str
    places: dict[str, Place]
    chosen: dict[str, Place]
    """The named ones, or the only one; empty if there are several and none is named."""

    def summaries(self) -> list[NodeSummary]:
        """All of them, each in a line."""
        from warren.salvage.node_list import summaries

        return summaries(self.places)

    def require_chosen(self) -> dict[str, Place]:
        """Return the chosen nodes; raise :class:`UsageError`, which lists all, if none was chosen."""
        if not self.chosen:
            nodes = "; ".join(map(str, self.summaries()))
            raise UsageError(
                f"{self.path}: holds the directories of {len(self.places)} nodes: {nodes}; choose with --node NAME, "
                f"or take every node with --node {ALL}"
            )
        return self.chosen


@contextmanager
def opened_nodes(path: str, names: list[str] | None) -> Iterator[Nodes]:
    """The nodes at ``path``; raises :class:`UsageError` for the name of one that is not there."""
    with open_place(path) as place:
        nodes = place.nodes()
        paths = [place.below(node.directory) for node in nodes]
        counts = Counter(map(posixpath.basename, paths))
        node_names = [base if counts[base := posixpath.basename(inner)] == 1 else inner for inner in paths]
        by_name, requested = dict(zip(node_names, nodes, strict=True)), distinct(names)
        for name in requested:
            if name != ALL and name not in by_name:
                raise UsageError(f"{path}: no node {name!r}; there are {', '.join(by_name)}")
        takes_all = ALL in requested or (not requested and len(by_name) == 1)
        yield Nodes(path, by_name, by_name if takes_all else {name: by_name[name] for name in requested})
