"""What no scan reaches in a store's file, for the tasks that read such a file alone.

Where the chain of records is broken (:mod:`warren.msg_store.store_reader`), which messages stand behind or within
garbage, and whether that is no damage, depends on all files of the store and on all queues of the vhost. A task looks
at them only where its own file is broken; what it learns of the store is kept for the next
(:mod:`warren.pipeline.tables.bodies`).
"""

from __future__ import annotations

import posixpath

import attrs

from warren.msg_store.rdq_format import Record
from warren.pipeline.places import Node
from warren.pipeline.tables.bodies import store_at
from warren.salvage.read_only import ReadOnlyFileSystem


@attrs.frozen
class Hidden:
    """Of one file, whose scan stopped before its end or met a bad record."""

    records: tuple[Record, ...] = ()
    """Of messages that somebody needs and that no scan reached, in the order of the file."""
    explains_breaks: bool = False
    """Whether what breaks the chain is left over: it hides messages, and nothing that is needed is missing."""


def hidden_in(node: Node, files: ReadOnlyFileSystem, path: str, *, knows_needs: bool) -> Hidden:
    """What is hidden in that file, which is broken; ``knows_needs``: as the vhost of its store says it."""
    directory, name = posixpath.split(path)
    store = store_at(node, files, directory)
    has_all = store.has_all_needed()
    records = tuple(store.hidden(name))
    return Hidden(records, knows_needs and has_all and bool(records))
