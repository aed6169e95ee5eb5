"""DeliveryBatch: messages that were got together, as a sequence of deliveries that are made when one is asked for.

Who wants nothing but bodies or properties asks for all of them at once, and settles all at once: then there is no
object a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from warren.channel import DeliveredMessage, settle
from warren.consumer_verbs import NewDelivery, spread
from warren.process_bound import ProcessBound
from warren.queue_index.properties import NAMES, Properties
from warren.queue_index.properties_of_many import decode_columns, decode_many
from warren.queue_verbs import Got

D = TypeVar("D", bound=DeliveredMessage)
T = TypeVar("T")


class DeliveryBatch(ProcessBound, Sequence[D], Generic[D]):
    """What ``get_many`` brings: deliveries, in order. Each can be settled by itself, or all by ``Queue.ack``.

    Equal to a list of the same deliveries.
    """

    __slots__ = ("_channel", "_count", "_deliveries", "_new", "_parts", "_settled")

    def __init__(self, new: NewDelivery[D], got: Got) -> None:
        self._channel, self._parts = got
        self._new = new
        self._count = sum([part.fetched.count for part in self._parts])
        self._deliveries: list[D] | None = None
        self._settled = False
        """Whether all were settled before one was made."""

    def _made(self) -> list[D]:
        if self._deliveries is None:
            self._deliveries = [one for part in self._parts for one in spread(self._new, self._channel, part)]
            if self._settled:
                for delivery in self._deliveries:
                    delivery.mark_settled()
        return self._deliveries

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> D: ...

    @overload
    def __getitem__(self, index: slice) -> list[D]: ...

    def __getitem__(self, index: int | slice) -> D | list[D]:
        return self._made()[index]

    def __iter__(self) -> Iterator[D]:
        return iter(self._made())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or self._made() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}>"

    @property
    def bodies(self) -> list[bytes]:
        """The payloads of all. Raises :class:`MessageError` where the bytes of one on disk are no message."""
        return _chained([part.fetched.bodies() for part in self._parts])

    @property
    def properties(self) -> list[Properties]:
        """AMQP's basic properties of all; raises as ``bodies`` does."""
        return decode_many(self._encoded_properties())

    @property
    def headers(self) -> list[Mapping[str, Any]]:
        """The headers of all, empty where there are none; raises as ``bodies`` does."""
        return [headers or {} for headers in self.columns("headers")[0]]

    def columns(self, *names: str) -> list[list[Any]]:
        """Of each of these properties (``"message_id"``) the values of all; ``None``: not set. Raises as ``bodies``
        does, and ``ValueError`` where there is no such property."""
        if unknown := [name for name in names if name not in NAMES]:
            raise ValueError(f"a message has no property {unknown[0]}")
        return decode_columns(self._encoded_properties(), names)

    def _encoded_properties(self) -> list[bytes]:
        return _chained([part.fetched.encoded_properties() for part in self._parts])

    def _settle(self, outcome: str) -> None:
        if self._deliveries is not None:
            settle(self._deliveries, outcome)
        elif not self._settled:
            self._settled = True
            if tags := [part.tags for part in self._parts if part.first_tag]:
                self._channel.settle_ranges(outcome, tags)


def _chained(parts: list[list[T]]) -> list[T]:
    return parts[0] if len(parts) == 1 else [one for part in parts for one in part]


def settle_many(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
    """Settle many deliveries, a message a channel."""
    if isinstance(deliveries, DeliveryBatch):
        deliveries._settle(outcome)
    else:
        settle(deliveries, outcome)
