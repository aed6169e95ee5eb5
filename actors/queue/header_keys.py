"""The keys of messages in a queue declared with ``x-message-deduplication``, the argument of RabbitMQ's plugin
*rabbitmq-message-deduplication*: a header of each message holds its key, no matter who publishes it.

``x-deduplication-header``: the key, text or a number. ``x-cache-ttl``: for how many milliseconds the key is taken, as
in the plugin's exchange; if neither the message nor the queue's argument of that name sets it, while the message waits,
as in the plugin's queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.key_table import digest_of, key_of
from warren.actors.queue.unique_publisher import Key
from warren.queue_index.message.message_format import Envelope, properties_in
from warren.queue_index.properties import decode_properties

DEDUPLICATION_HEADER: Final = "x-deduplication-header"
CACHE_TTL: Final = "x-cache-ttl"


def header_keys(declaration: QueueDeclaration, envelope: Envelope, bodies: Sequence[bytes]) -> Sequence[Key | None]:
    """Return the keys of messages, ``None`` for those without a key."""
    if envelope.of_contents:
        return [_key_in(properties_in(content), declaration) for content in bodies]
    return [_key_in(envelope.properties, declaration)] * len(bodies)


def _key_in(properties: bytes, declaration: QueueDeclaration) -> Key | None:
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
        ttl_ms = declaration.cache_ttl_ms or 0
    return Key(digest_of(key), ttl_ms * 1000)
