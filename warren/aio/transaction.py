"""Transaction: the handle of :mod:`warren.transaction`, for coroutines.

A decision that was asked for is carried out, whether or not the coroutine is cancelled that waits for it.
"""

from __future__ import annotations

from actors import topic_messages as tm
from actors.engines.topics.transactions import Half
from warren import transaction
from warren.aio.bridge import answer, ask, caught_up, change, in_thread
from warren.node import Node
from warren.topic_record import StoredMessage


class Transaction:
    """One prepared message."""

    __slots__ = ("_node", "plain")

    def __init__(self, node: Node, plain: transaction.Transaction) -> None:
        self._node = node
        self.plain = plain
        """The same transaction, for threads."""

    @property
    def topic(self) -> str:
        """Where it goes when it is committed."""
        return self.plain.topic

    @property
    def half_offset(self) -> int:
        """Its number among all that were ever prepared."""
        return self.plain.half_offset

    async def message(self) -> StoredMessage:
        """The message as it was prepared."""
        return await in_thread(lambda: self.plain.message)

    async def commit(self) -> None:
        """Append the message to its topic; comes back when that is safe.

        Raises :class:`TransactionError` where it was decided before.
        """
        await self._decide(commit=True)

    async def rollback(self) -> None:
        """Never append it; comes back when that is safe. Raises :class:`TransactionError`."""
        await self._decide(commit=False)

    async def _decide(self, *, commit: bool) -> None:
        running = await caught_up(self._node)
        await answer(ask(running.transactions, tm.Decide(self.half_offset, commit)))

    def __repr__(self) -> str:
        return f"<warren.aio.Transaction {self.half_offset} for {self.topic}>"


async def pending_transactions(node: Node) -> list[Transaction]:
    """Those of a node that are not decided."""
    if await change(node, lambda actor: actor.topics) is None:
        return []
    running = await caught_up(node)
    halves: tuple[Half, ...] = await answer(ask(running.transactions, tm.GetPending()))
    return [
        Transaction(node, transaction.Transaction(node, one.topic, one.queue_offset, one.physical_offset, one.size))
        for one in halves
    ]
