"""What a message says beside its body, as columns have it, cut out of the JSON that the export writes.

:class:`warren.salvage.message_json.MessageJson` remembers what messages have in common and so seldom decodes one; the
few different texts that come of it are taken apart here once.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from warren.pipeline.arrays import as_text
from warren.salvage.message_json import MessageJson

MOST_ENVELOPES: Final = 4096
"""Remembered: with an id or a time in its properties, each message has one of its own."""

_DECODE = json.JSONDecoder().raw_decode


class Envelope(NamedTuple):
    """The values of the columns."""

    exchange: str | None
    routing_keys: list[str | None]
    properties: str
    headers: str | None


class Envelopes:
    """Cuts encoded messages into envelope and body."""

    def __init__(self) -> None:
        self.json = MessageJson()
        self._known: dict[bytes, Envelope] = {}

    def split(self, encoded: bytes) -> tuple[Envelope, bytes | memoryview]:
        """Raises :class:`storage.errors.MessageError` where ``encoded`` is no message."""
        members, body = self.json.split(encoded)
        envelope = self._known.get(members)
        if envelope is None:
            if len(self._known) >= MOST_ENVELOPES:
                self._known.clear()
            envelope = self._known[members] = _envelope(members.decode())
        return envelope, body


def _envelope(members: str) -> Envelope:
    """Of ``"exchange": …, "routing_keys": …, "properties": …, "headers": …,`` the values."""
    values, texts, at = [], [], 0
    for name in ("exchange", "routing_keys", "properties", "headers"):
        start = at + len(f'"{name}": ')
        if members[at:start] != f'"{name}": ':
            raise RuntimeError(f"the JSON of a message has no {name} where it stands in every other")
        value, end = _DECODE(members, start)
        values.append(value)
        texts.append(members[start:end])
        at = end + len(", ")
    exchange, routing_keys, _, headers = values
    return Envelope(
        as_text(exchange), [as_text(key) for key in routing_keys], texts[2], None if headers is None else texts[3]
    )
