"""What there is to do where references and records of a vhost are to be joined: queues and store files, packed.

A *place* is a number that stands for a vhost of a node wherever rows are joined. Plans are made by looking at a node's
names and sizes, and at what is small; they hold no file, and go to whatever task does them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Final, TypeVar

import attrs

from warren.msg_store.rdq_format import file_number
from warren.pipeline.places import Node
from warren.pipeline.tables.queue_parts import byte_count
from warren.salvage.names import as_text, to_text
from warren.salvage.queue_descriptor import QueueDescriptor
from warren.salvage.queue_directory import Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import below
from warren.salvage.vhost import STORES, Vhost, VhostPlace
from warren.storage.errors import StorageError

_VHOST_BITS: Final = 20
"""Of a place: a node has fewer vhosts than this can count."""

_Item = TypeVar("_Item")


@attrs.frozen
class Numbered:
    """A node and its number among those that were loaded."""

    number: int
    node: Node


@attrs.frozen(kw_only=True)
class QueuesWork:
    """Some queues of a vhost."""

    node: Node
    place: int
    weight: int
    vhost_path: str
    queues: tuple[QueueDescriptor, ...]


@attrs.frozen(kw_only=True)
class StoreWork:
    """Some files of a vhost's store."""

    node: Node
    place: int
    weight: int
    vhost: str
    """As text."""
    store: str
    directory: str
    names: tuple[tuple[int, str], ...]
    """How old among the store's files, 0 the oldest; and the file's name."""
    knows_needs: bool
    """Whether all that refers to the store can be read."""


@attrs.frozen(kw_only=True)
class SaidWork:
    """What was found out while this was planned."""

    node: Node
    place: int
    findings: tuple[Finding, ...]
    weight: int = 0


def place_number(numbered: Numbered, vhost: int) -> int:
    """The place of a node's vhost by its number."""
    return numbered.number << _VHOST_BITS | vhost


def node_number(place: Any) -> Any:
    """The number of its node, of a column of Spark's too."""
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.shiftright(place, _VHOST_BITS)


def plan_vhost(
    numbered: Numbered, index: int, where: VhostPlace, partition_bytes: int, *, look: bool
) -> Iterator[QueuesWork | StoreWork | SaidWork]:
    """What there is to do in a vhost with all of its queues; ``look``: whether its stores' files can be opened.

    One that is known by quorum queues alone has no stores.
    """
    node, place = numbered.node, place_number(numbered, index)
    files = node.place().files
    with closing(Vhost.open(files, where)) as vhost:
        weighed = ((_index_bytes(queue), vhost.descriptors[queue.path]) for queue in vhost.queues)
        for weight, queues in packed(weighed, partition_bytes):
            yield QueuesWork(node=node, place=place, weight=weight, vhost_path=vhost.path, queues=tuple(queues))
        for store in STORES if vhost.is_whole else ():
            directory = below(vhost.path, store)
            names = vhost.store_files(store, look=look)
            sized = ((files.size(below(directory, name)), (age, name)) for age, name in enumerate(names))
            for weight, chosen in packed(sized, partition_bytes):
                yield StoreWork(
                    node=node,
                    place=place,
                    weight=weight,
                    vhost=as_text(to_text(vhost.name)),
                    store=store,
                    directory=directory,
                    names=tuple(chosen),
                    knows_needs=vhost.knows_needs,
                )
        yield SaidWork(node=node, place=place, findings=tuple(vhost.problems))


def packed(sized: Iterable[tuple[int, _Item]], most: int) -> Iterator[tuple[int, list[_Item]]]:
    """Neighbours together and their bytes, up to so many; one that is larger alone."""
    pack: list[_Item] = []
    weight = 0
    for size, item in sized:
        if pack and weight + size > most:
            yield weight, pack
            pack, weight = [], 0
        pack.append(item)
        weight += size
    if pack:
        yield weight, pack


def rdq_number(name: str) -> int | None:
    """The number of an ``.rdq``; ``None`` for what a compaction left."""
    number = file_number(name)
    return number if number is not None and number >= 0 else None


def _index_bytes(queue: QueueDirectory) -> int:
    try:
        return byte_count(queue.extent())
    except StorageError:  # whoever reads it says so
        return 0
