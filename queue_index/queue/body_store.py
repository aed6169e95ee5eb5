"""What a queue asks of a message store: the protocol, and the client that counts credit.

The queue never imports the store; it is handed something of this shape. Bodies are encoded messages, opaque to the
store, under ids of 16 bytes. Every write of an id adds a reference, every remove takes one away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from warren.queue_index.queue.credit import Credit, UnlimitedCredit
from warren.storage.pieces import Whole


class BodyStore(Protocol):
    """Bodies by msg_id, with counted references."""

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None: ...

    def remove_many(self, msg_ids: Sequence[bytes]) -> None: ...

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]: ...

    def contains(self, msg_id: bytes) -> bool: ...

    def sync(self) -> None:
        """Make every body that was written safe."""

    @property
    def written_ticket(self) -> int:
        """Rises with every body handed over."""

    @property
    def synced_ticket(self) -> int:
        """Bodies up to this ticket are safe."""


_UNLIMITED: Final = UnlimitedCredit()  # it has no state


@attrs.define(eq=False, repr=False)
class StoreClient:
    """One queue's way into one store."""

    store: BodyStore
    credit: Credit = _UNLIMITED

    def write(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        self.store.write_many(msg_ids, messages)
        self.credit.spend(len(msg_ids))
