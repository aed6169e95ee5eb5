"""The work of joining the references and the records of a vhost: queues and store files, packed.

A *place* is a number that stands for a vhost of a node wherever rows are joined. Plans are made by looking at a node's
names and sizes, and at what is small; they hold no file, and go to whatever task does them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import attrs

from warren.pipeline.jobs.parallel import Numbered, Work
from warren.salvage.names import as_text, to_text
from warren.salvage.queue_descriptor import QueueDescriptor
from warren.salvage.read_only import below
from warren.salvage.vhost import PERSISTENT_STORE, STORES, Vhost, VhostPlace
from warren.tables.packing import grouped
from warren.tables.places import Node
from warren.tables.queue_parts import extent_of

_VHOST_BITS: Final = 20
"""Bits of a place that number the vhost; a node has fewer vhosts than they can count."""


@attrs.frozen
class Queues:
    """Some queues of a vhost."""

    vhost_path: str
    queues: tuple[QueueDescriptor, ...]


@attrs.frozen(kw_only=True)
class StoreFiles:
    """Some files of a vhost's store."""

    vhost: str
    """As text."""
    store: str
    directory: str
    names: tuple[tuple[int, str], ...]
    """How old among the store's files, 0 the oldest; and the file's name."""
    knows_needs: bool
    """Whether all that refers to the store can be read."""

    @property
    def is_persistent(self) -> bool:
        return self.store == PERSISTENT_STORE


def place_number(numbered: Numbered, vhost: int) -> int:
    """The place of a node's vhost by its number."""
    return numbered.number << _VHOST_BITS | vhost


def node_number(place: Any) -> Any:
    """Return the number of the node of a place; both are columns of Spark's."""
    from pyspark.sql import functions

    return functions.shiftright(place, _VHOST_BITS)


def plan_vhost(node: Node, place: int, where: VhostPlace, partition_bytes: int) -> Iterator[Work]:
    """The work in a vhost with all of its queues: :class:`Queues`, :class:`StoreFiles`, and a tuple of findings from
    the planning.

    A vhost with quorum queues alone has no stores.
    """
    files = node.place().files
    with closing(Vhost.open(files, where)) as vhost:
        weighed = ((extent_of(queue).size_bytes, vhost.descriptors[queue.path]) for queue in vhost.queues)
        for weight, queues in grouped(weighed, partition_bytes):
            yield Work(node, place, Queues(vhost.path, tuple(queues)), weight)
        for store in STORES if vhost.is_whole else ():
            directory = below(vhost.path, store)
            names = vhost.store_files(store, look=not node.is_remote)
            sized = ((files.size(below(directory, name)), (age, name)) for age, name in enumerate(names))
            for weight, chosen in grouped(sized, partition_bytes):
                part = StoreFiles(
                    vhost=as_text(to_text(vhost.name)),
                    store=store,
                    directory=directory,
                    names=tuple(chosen),
                    knows_needs=vhost.knows_needs,
                )
                yield Work(node, place, part, weight)
        yield Work(node, place, tuple(vhost.problems))
