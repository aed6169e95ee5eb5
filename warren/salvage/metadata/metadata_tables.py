"""A node's metadata as tables of records, whichever of its two stores has them.

A RabbitMQ 4 with Mnesia has Khepri's log too, with an empty tree; one that has moved to Khepri has Mnesia's files, with
empty tables. So that store counts that has a vhost. If a node stopped while it moved, both may have one; then Mnesia
counts, which has all until the move is complete. If neither has one, a store is damaged: that counts which has more
records, and the findings of both are reported.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import attrs

from warren.salvage.metadata.khepri_store import khepri_members, read_khepri
from warren.salvage.metadata.mnesia_tables import has_tables, read_tables
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.read_only import ReadOnlyFileSystem

_VHOSTS: Final = "rabbit_vhost"
_BOTH: Final = "Mnesia has a vhost, too: the node stopped while it moved its metadata; what Mnesia has counts"


@attrs.frozen
class Metadata:
    """The records of a node, by the tables of Mnesia that hold them up to 3.13."""

    tables: dict[str, list[tuple[Any, ...]]]
    path: str
    """The directory with the files that they are from."""


def has_metadata(files: ReadOnlyFileSystem, directory: str) -> bool:
    """Whether it is a node's data directory, with Mnesia's or with Khepri's files."""
    return has_tables(files, directory) or bool(khepri_members(files, directory))


def read_metadata(files: ReadOnlyFileSystem, directory: str, names: Collection[str], report: OnFinding) -> Metadata:
    """The records of the named tables in a node's data directory; ``report`` gets what could not be read."""
    members = khepri_members(files, directory)
    of_mnesia, of_khepri = list[Finding](), list[Finding]()
    mnesia = read_tables(files, directory, {*names, _VHOSTS}, of_mnesia.append) if has_tables(files, directory) else {}
    khepri = read_khepri(files, members[0], of_khepri.append).tables() if members else {}
    in_mnesia, in_khepri = bool(mnesia.get(_VHOSTS)), bool(khepri.get(_VHOSTS))
    if in_mnesia and in_khepri:
        report(Finding("unfinished migration", "damage", members[0], None, _BOTH))
    for member in members[1:]:
        report(Finding("log not read", "unread", member, None, "another node's metadata; one is read"))
    for finding in (*(() if in_khepri and not in_mnesia else of_mnesia), *(() if in_mnesia else of_khepri)):
        report(finding)

    def count(tables: dict[str, list[tuple[Any, ...]]]) -> int:
        return sum(len(tables.get(name, ())) for name in names)

    is_in_khepri = bool(members) and not in_mnesia and (in_khepri or count(khepri) >= count(mnesia))
    tables = khepri if is_in_khepri else mnesia
    return Metadata({name: tables.get(name, []) for name in names}, members[0] if is_in_khepri else directory)
