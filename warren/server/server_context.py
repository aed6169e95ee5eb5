"""ServerContext: what the connections of a server share."""

from __future__ import annotations

import asyncio

import attrs

from warren.hosting.running_node import RunningNode
from warren.server.reply_addresses import ReplyAddresses
from warren.server.rounds import Rounds
from warren.server.settings import ServerSettings
from warren.server.traffic import Traffic


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
