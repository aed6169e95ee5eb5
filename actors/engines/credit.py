"""Credit: how much may be on its way before its sender has to wait.

:class:`PublisherCredit` bounds an actor's inbox; :class:`GrantedCredit` bounds what a queue has handed to a
message store. :class:`StoreTickets` is a queue's account with a store: what it handed over, what the store has taken,
what is safe.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs


class PublisherCredit(NamedTuple):
    """An inbox is full from ``limit`` messages on, and takes more once no more than ``reopens_at`` are left."""

    limit: int
    reopens_at: int

    @classmethod
    def of(cls, setting: tuple[int, int]) -> PublisherCredit:
        """``credit_flow_default_credit``: how many at first, and how many are granted at a time."""
        initial, more_after = setting
        return cls(initial, initial - more_after)


@attrs.define(eq=False, repr=False)
class GrantedCredit:
    """A queue's credit towards a store: spent with every body, given back when the store has taken them."""

    _initial: int
    _more_after: int
    _taken: int = 0
    credit: int = attrs.field(init=False, default=attrs.Factory(lambda self: self._initial, takes_self=True))
    blocked: bool = False

    def spend(self, count: int) -> None:
        """Hand ``count`` bodies over; blocked once nothing is left."""
        self.credit -= count
        if self.credit <= 0:
            self.blocked = True

    def take_back(self, count: int) -> None:
        """The store has taken ``count`` bodies; it grants them in portions of ``more_after``."""
        self._taken += count
        portions, self._taken = divmod(self._taken, self._more_after)
        if self.credit + portions * self._more_after + self._taken >= self._initial:
            portions, self._taken, self.credit = 0, 0, self._initial  # all is taken: nothing is left to wait for
        self.credit += portions * self._more_after
        if self.credit > 0:
            self.blocked = False


@attrs.define(eq=False, repr=False)
class StoreTickets:
    """A queue's account with a store. Tickets count the bodies that were handed over."""

    credit: GrantedCredit
    written_ticket: int = attrs.field(init=False, default=0)
    taken_ticket: int = attrs.field(init=False, default=0)
    safe_ticket: int = attrs.field(init=False, default=0)

    @property
    def synced_ticket(self) -> int:
        """Up to which ticket bodies are safe; as :class:`~warren.queue_index.queue.body_store.BodyStore` calls it."""
        return self.safe_ticket

    def progress(self, taken: int, safe: int) -> bool:
        """Note the store's progress, which may arrive out of order; return whether it has taken more."""
        self.safe_ticket = max(self.safe_ticket, safe)
        if taken <= self.taken_ticket:
            return False
        self.credit.take_back(taken - self.taken_ticket)
        self.taken_ticket = taken
        return True
