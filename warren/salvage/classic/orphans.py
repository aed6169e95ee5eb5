"""Orphans: messages in a store that no unacked message of any queue refers to, or that its index lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from warren.queue_index.message.message_format import message_facts
from warren.salvage.classic.needed import NeededBodies
from warren.salvage.envelopes import Envelope, Envelopes
from warren.salvage.names import to_text
from warren.salvage.queue_directory import Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import below
from warren.salvage.vhost import PERSISTENT_STORE, STORES, Vhost
from warren.storage.errors import DataError, MessageError


@attrs.frozen
class Orphan:
    """A stored message that no entry of a queue refers to."""

    vhost: bytes
    queue: bytes | None
    """Whose store it is in; ``None``: the vhost's."""
    msg_id: bytes
    """Empty if it has no id."""
    persistent: bool
    envelope: Envelope
    body: bytes | memoryview

    @property
    def names(self) -> tuple[str, str | None]:
        """Vhost and queue as text."""
        return to_text(self.vhost), None if self.queue is None else to_text(self.queue)


def orphans_of(vhost: Vhost, queues: Iterable[tuple[bytes, Iterable[QueueDirectory]]]) -> Iterator[Orphan | Finding]:
    """The orphans in these queues' stores, then those in the vhost's stores if all references to them are known."""
    yield from _unindexed(vhost.name, queues)
    for store in STORES if vhost.knows_needs else ():
        yield from _unneeded(vhost, store)


def _unindexed(vhost: bytes, queues: Iterable[tuple[bytes, Iterable[QueueDirectory]]]) -> Iterator[Orphan | Finding]:
    """The messages in stores of queues that no index entry refers to."""
    envelopes = Envelopes()
    for name, directories in queues:
        for directory in directories:
            for encoded, path, offset in directory.unindexed_messages():
                try:
                    msg_id, persistent = message_facts(encoded)
                    envelope, body = envelopes.split(encoded)
                except MessageError as error:
                    yield Finding("unreadable message", "damage", path, offset, str(error))
                    continue
                yield Orphan(vhost, name, msg_id, persistent, envelope, body)


def _unneeded(vhost: Vhost, store_name: str) -> Iterator[Orphan | Finding]:
    """The unreferenced bodies."""
    store, envelopes = vhost.store(store_name), Envelopes()
    for file, record in NeededBodies.of(vhost, store_name).orphans(store):
        try:
            envelope, body = envelopes.split(store.read(record.msg_id))
        except (DataError, MessageError) as error:
            path = below(below(vhost.path, store_name), file)
            yield Finding("unreadable message", "damage", path, record.offset, str(error))
            continue
        yield Orphan(vhost.name, None, record.msg_id, store_name == PERSISTENT_STORE, envelope, body)
