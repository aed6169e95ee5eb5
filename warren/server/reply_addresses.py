"""The addresses of direct reply-to: which channel waits for the answers that are published to an address."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

import attrs

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue."""
_ADDRESS: Final = f"{REPLY_TO}."

Deliver = Callable[[str, bytes, Sequence[bytes]], None]
"""Sends replies to a channel, given their routing key, properties and bodies."""


@attrs.define(eq=False)
class ReplyAddresses:
    """The channels of a server that wait for replies, by their addresses."""

    _waiting: dict[str, Deliver] = attrs.Factory(dict)

    def find(self, routing_key: str) -> Deliver | None:
        return self._waiting.get(routing_key)

    def add(self, deliver: Deliver) -> str:
        """Return a new address."""
        address = f"{_ADDRESS}{secrets.token_urlsafe(24)}"
        self._waiting[address] = deliver
        return address

    def remove(self, address: str) -> None:
        self._waiting.pop(address, None)


def is_reply_queue(name: str) -> bool:
    """Whether it is the pseudo-queue, or an address."""
    return name == REPLY_TO or is_address(name)


def is_address(routing_key: str) -> bool:
    return routing_key.startswith(_ADDRESS)
