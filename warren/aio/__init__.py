"""warren for coroutines: the verbs of :mod:`warren`, awaited. Import it by name: ``import warren.aio``."""

from __future__ import annotations

from warren.aio.consumer import Consumer, Delivery
from warren.aio.exchange import Exchange
from warren.aio.node import Node, Opening, Vhost
from warren.aio.node import open_node as open
from warren.aio.publishing import Confirm
from warren.aio.queue import Queue

__all__ = ["Confirm", "Consumer", "Delivery", "Exchange", "Node", "Opening", "Queue", "Vhost", "open"]
