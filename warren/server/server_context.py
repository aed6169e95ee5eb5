"""ServerContext: what the connections of a server share, and the addresses of direct reply-to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from warren.hosting.running_node import RunningNode
from warren.server.rounds import Rounds
from warren.server.settings import ServerSettings
from warren.server.traffic import Traffic

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue."""
_ADDRESS: Final = f"{REPLY_TO}."

Deliver = Callable[[str, bytes, Sequence[bytes]], None]
"""Sends replies to a channel, given their routing key, properties and bodies."""


@attrs.define(eq=False)
class ReplyAddresses:
    """Which channel waits for the answers that are published to an address."""

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


@attrs.frozen(eq=False)
class ServerContext:
    """The node that is served, and the parts of its server."""

    node: RunningNode
    settings: ServerSettings
    rounds: Rounds = attrs.Factory(Rounds)
    traffic: Traffic = attrs.Factory(Traffic)
    replies: ReplyAddresses = attrs.Factory(ReplyAddresses)
    """The channels that wait for direct replies."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs everything here."""
        return self.rounds.loop
