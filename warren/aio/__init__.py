"""warren for coroutines: the verbs of :mod:`warren`, awaited. Import it by name: ``import warren.aio``."""

from __future__ import annotations

from warren.aio.confirm import AppendConfirm, Confirm
from warren.aio.consumer import Consumer, Delivery
from warren.aio.exchange import Exchange
from warren.aio.node import Node, Opening, Vhost, open
from warren.aio.queue import Queue
from warren.aio.topic import Topic
from warren.aio.topic_reader import Reader, Records, TopicRecord
from warren.aio.transaction import Transaction

__all__ = [
    "AppendConfirm",
    "Confirm",
    "Consumer",
    "Delivery",
    "Exchange",
    "Node",
    "Opening",
    "Queue",
    "Reader",
    "Records",
    "Topic",
    "TopicRecord",
    "Transaction",
    "Vhost",
    "open",
]
