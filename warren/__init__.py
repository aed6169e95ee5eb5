"""warren: an embedded message store. RabbitMQ's classic queues in your own process, on the same bytes on disk."""

from __future__ import annotations

from warren.embedded import open_vhost

__all__ = ["open_vhost"]
