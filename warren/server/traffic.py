"""Message counts of channels and exchanges, under the names of RabbitMQ's message stats.

Messages are counted only for a management API: otherwise channels have no :class:`ChannelTraffic`. All of it is in the
server's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

import attrs

PUBLISHED: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERED: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "ack", "redeliver")

ExchangeKey = tuple[str, str]
"""Vhost and name."""


@attrs.define(eq=False)
class ExchangeTraffic:
    """Messages published to an exchange, and those that it routed to queues."""

    publish_in: int = 0
    publish_out: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the counts; empty if nothing was published."""
        return {"publish_in": self.publish_in, "publish_out": self.publish_out} if self.publish_in else {}


@attrs.define(eq=False)
class Traffic:
    """The traffic of a node."""

    is_counted: bool = False
    """Whether messages are counted."""
    churn: Counter[str] = attrs.Factory(Counter)
    """Connections and channels that were opened and closed."""
    exchanges: dict[ExchangeKey, ExchangeTraffic] = attrs.Factory(dict)
    closed_channels: dict[str, Counter[str]] = attrs.Factory(dict)
    """By vhost, the sums of closed channels."""

    def publish(self, vhost: str, exchange: str, count: int, queues: int) -> None:
        """Count ``count`` messages, each for ``queues`` queues."""
        traffic = self.exchanges.get((vhost, exchange))
        if traffic is None:
            traffic = self.exchanges[vhost, exchange] = ExchangeTraffic()
        traffic.publish_in += count
        traffic.publish_out += count * queues

    def of_channel(self, vhost: str) -> ChannelTraffic | None:
        """Return the traffic of a new channel."""
        self.churn["channel_created"] += 1
        return ChannelTraffic(self, vhost) if self.is_counted else None

    def channel_closed(self, vhost: str, counted: dict[str, int]) -> None:
        """Add a closed channel's counts to the sums."""
        self.churn["channel_closed"] += 1
        if counted:
            self.closed_channels.setdefault(vhost, Counter()).update(counted)

    def forget_exchanges(self, keys: Collection[ExchangeKey]) -> None:
        """Forget deleted exchanges."""
        for key in keys:
            del self.exchanges[key]


class ChannelTraffic:
    """The traffic of one channel."""

    __slots__ = (
        "_traffic",
        "_vhost",
        "acked",
        "delivered",
        "empty_gets",
        "gets",
        "published",
        "redelivered",
        "unrouted",
    )

    def __init__(self, traffic: Traffic, vhost: str) -> None:
        self._traffic = traffic
        self._vhost = vhost
        self.published = self.acked = self.redelivered = self.empty_gets = 0
        self.unrouted = [0, 0]
        """Unroutable messages: dropped, returned."""
        self.delivered = [0, 0]
        """Messages delivered to consumers with acks, and without."""
        self.gets = [0, 0]
        """Messages fetched by ``basic.get``, with acks, and without."""

    def publish(self, exchange: str, count: int, queues: int) -> None:
        """Count ``count`` messages, each for ``queues`` queues."""
        self.published += count
        self._traffic.publish(self._vhost, exchange, count, queues)

    def deliver(self, count: int, *, no_ack: bool, redelivered: bool) -> None:
        """Count messages delivered to a consumer."""
        self.delivered[no_ack] += count
        if redelivered:
            self.redelivered += count

    def get(self, *, no_ack: bool, redelivered: bool) -> None:
        """Count a message fetched by ``basic.get``."""
        self.gets[no_ack] += 1
        self.redelivered += redelivered

    def to_json(self, confirmed: int = 0) -> dict[str, int]:
        """Return the publishing counts if it has published, and the consuming counts if it has consumed."""
        stats: dict[str, int] = {}
        if self.published:
            dropped, returned = self.unrouted
            stats |= dict(zip(PUBLISHED, (self.published, confirmed, returned, dropped), strict=True))
        counts = *self.delivered, *self.gets, self.empty_gets, self.acked, self.redelivered
        if any(counts):
            stats |= {"deliver_get": sum(self.delivered) + sum(self.gets), **dict(zip(DELIVERED, counts, strict=True))}
        return stats
