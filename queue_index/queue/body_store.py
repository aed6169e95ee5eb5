"""What a queue asks of a message store, and the credit that keeps the queue from outrunning it.

The queue never imports the store; it is handed something of this shape. Bodies are encoded messages, opaque to the
store, under ids of 16 bytes. Every write of an id adds a reference, every remove takes one away.

A sender starts with some credit and spends one for every message that it hands over. The receiver gives back
``more_after`` for every ``more_after`` messages that it has taken; those *grants* reach the sender later. A sender
whose credit comes to exactly 0 is blocked until a grant makes it positive again. Blocking is a request to stop paging;
what has to be written (a persistent publish) is written all the same and takes the credit below 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

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


class Credit(Protocol):
    """A sender's view of its credit towards one receiver."""

    @property
    def blocked(self) -> bool:
        """Whether the sender has been asked to stop."""

    @property
    def credit(self) -> int:
        """The remaining credit; below 0 if more was written than it allowed."""

    def spend(self, count: int) -> None:
        """Spend credit for ``count`` messages."""


@attrs.define
class CreditFlow:
    """One sender's credit towards one receiver, and what the receiver has not granted yet."""

    initial: int
    more_after: int
    credit: int = attrs.field(default=attrs.Factory(lambda self: self.initial, takes_self=True))
    blocked: bool = False
    _until_grant: int = attrs.field(default=attrs.Factory(lambda self: self.more_after, takes_self=True))
    _grants: int = 0

    def spend(self, count: int) -> None:
        """Hand ``count`` messages over; the receiver takes them at once and grants when it is time."""
        if self.credit > 0 >= self.credit - count:
            self.blocked = True
        self.credit -= count
        self._until_grant -= count
        while self._until_grant <= 0:
            self._until_grant += self.more_after
            self._grants += 1

    def receive_grant(self) -> bool:
        """Deliver one grant, if there is one; return whether there was."""
        if not self._grants:
            return False
        self._grants -= 1
        self.credit += self.more_after
        if self.credit > 0:
            self.blocked = False
        return True

    def settle(self) -> None:
        """Deliver all grants."""
        while self.receive_grant():
            pass

    def restart(self) -> None:
        """Start a new sender at the same receiver: fresh credit; the receiver's count goes on."""
        self.credit = self.initial
        self.blocked = False
        self._grants = 0


class UnlimitedCredit:
    """The credit of a sender that writes into the store itself and so cannot outrun it."""

    __slots__ = ()

    blocked = False
    credit = 1 << 62

    def spend(self, count: int) -> None:
        pass


_UNLIMITED: Final = UnlimitedCredit()  # it has no state


@attrs.define(eq=False, repr=False)
class StoreClient:
    """One queue's way into one store."""

    store: BodyStore
    credit: Credit = _UNLIMITED

    def write(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        self.store.write_many(msg_ids, messages)
        self.credit.spend(len(msg_ids))
