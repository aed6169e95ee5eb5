"""DeliveryBatch: messages that were got together, with their bodies and properties as columns, and settled together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from warren.handles.channel import DeliveredMessage, settle
from warren.handles.lazy_sequence import LazySequence
from warren.queue_index.properties import NAMES, Properties
from warren.storage.errors import InvalidValueError, shown
from warren.verbs.consumer_verbs import NewDelivery, spread
from warren.verbs.instrumentation import HOOK
from warren.verbs.queue_host import Got

D = TypeVar("D", bound=DeliveredMessage)


class DeliveryBatch(LazySequence[D], Generic[D]):
    """The result of ``get_many``: deliveries, in order. Each can be settled alone, or all by ``Queue.ack``.

    Equal to a list of the same deliveries.
    """

    __slots__ = ("_channel", "_new", "_parts", "_settled")

    def __init__(self, new: NewDelivery[D], result: Got) -> None:
        self._channel, self._parts = result
        super().__init__(sum([part.fetched.count for part in self._parts]))
        self._new = new
        self._settled = False
        """Whether all were settled before any object was made."""

    def _make(self) -> list[D]:
        made = [delivery for part in self._parts for delivery in spread(self._new, self._channel, part)]
        if self._settled:
            for delivery in made:
                delivery.mark_settled()
        return made

    @property
    def bodies(self) -> list[bytes]:
        """The payloads of all. Raises :class:`MessageError` if the bytes of one on disk are not a message."""
        return [*chain.from_iterable(part.fetched.bodies() for part in self._parts)]

    @property
    def properties(self) -> list[Properties]:
        """AMQP's basic properties of all; raises as ``bodies`` does."""
        from warren.queue_index.message.properties_of_many import decode_many

        return decode_many(self._encoded_properties())

    @property
    def headers(self) -> list[Mapping[str, Any]]:
        """The headers of all messages, empty for a message without headers; raises as ``bodies`` does."""
        return [headers or {} for headers in self.columns("headers")[0]]

    def columns(self, *names: str) -> list[list[Any]]:
        """Return a list of values for each property name (such as ``"message_id"``); ``None``: not set. Raises as
        ``bodies`` does, and ``ValueError`` for an unknown property."""
        if unknown := [name for name in names if name not in NAMES]:
            raise InvalidValueError(f"a message has no property {unknown[0]}")
        from warren.queue_index.message.properties_of_many import decode_columns

        return decode_columns(self._encoded_properties(), names)

    def _encoded_properties(self) -> list[bytes]:
        return [*chain.from_iterable(part.fetched.encoded_properties() for part in self._parts)]

    def _settle(self, outcome: str) -> None:
        if self._messages is not None or HOOK.instrumentation is not None:
            settle(self, outcome)
        elif not self._settled:
            self._channel.check_process()
            self._settled = True
            if tags := [part.tags for part in self._parts if part.first_tag]:
                self._channel.settle_ranges(outcome, tags)


def settle_many(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
    """Settle many deliveries, with one message per channel."""
    if isinstance(deliveries, DeliveryBatch):
        deliveries._settle(outcome)
    else:
        settle(_deliveries(deliveries), outcome)


def _deliveries(values: object) -> Sequence[DeliveredMessage]:
    """Return the deliveries, checked before the first is settled."""
    deliveries = values if isinstance(values, (list, tuple)) else list(values) if isinstance(values, Iterable) else None
    if deliveries is None or not all(issubclass(kind, DeliveredMessage) for kind in set(map(type, deliveries))):
        raise InvalidValueError(f"deliveries must be a list or another iterable of deliveries, not {shown(values)}")
    return deliveries
