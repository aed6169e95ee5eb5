"""DeduplicatingQueueActor: a queue declared with ``x-message-deduplication``, the argument of RabbitMQ's plugin
*rabbitmq-message-deduplication*: a header of each message holds its key, no matter who publishes it.

``x-deduplication-header``: the key, text or a number. ``x-cache-ttl``: for how many milliseconds the key is taken, as
in the plugin's exchange; if neither the message nor the queue's argument of that name sets it, while the message waits,
as in the plugin's queue. Each message is checked when its queue takes it in, so no fast path around that is available.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from warren.actors.engines.key_table import digest_of, key_of
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.unique_publisher import Key
from warren.actors.runtime.future import Future
from warren.queue_index.message.message_format import Envelope, properties_in
from warren.queue_index.properties import decode_properties

DEDUPLICATION_HEADER: Final = "x-deduplication-header"
CACHE_TTL: Final = "x-cache-ttl"


class DeduplicatingQueueActor(QueueActor):
    """Owns a deduplicating queue."""

    __slots__ = ()

    def _hand_off(self, key: PublishKey, body: bytes) -> bool:
        """Return ``False``: no message bypasses the queue."""
        return False

    def _publish(  # noqa: PLR0917
        self, envelope: Envelope, ids: bytes, bodies: Any, expiration_ms: int | None, priority: int, confirm: Future
    ) -> None:
        keys = self._keys_of(envelope, bodies)
        if any(keys):
            self._publish_unique(envelope, ids, bodies, keys, expiration_ms, priority, confirm)
        else:
            super()._publish(envelope, ids, bodies, expiration_ms, priority, confirm)

    def _keys_of(self, envelope: Envelope, bodies: Sequence[bytes]) -> Sequence[Key | None]:
        if envelope.of_contents:
            return [self._key_in(properties_in(content)) for content in bodies]
        return [self._key_in(envelope.properties)] * len(bodies)

    def _key_in(self, properties: bytes) -> Key | None:
        if DEDUPLICATION_HEADER.encode() not in properties:
            return None
        headers = decode_properties(properties).headers or {}
        key = key_of(headers.get(DEDUPLICATION_HEADER))
        if key is None:
            return None
        ttl_ms = headers.get(CACHE_TTL)
        if isinstance(ttl_ms, str) and ttl_ms.isdecimal():
            ttl_ms = int(ttl_ms)
        if not isinstance(ttl_ms, int) or isinstance(ttl_ms, bool) or ttl_ms <= 0:
            ttl_ms = self.declaration.cache_ttl_ms or 0
        return Key(digest_of(key), ttl_ms * 1000)
