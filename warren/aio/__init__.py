"""warren for coroutines: the verbs of :mod:`warren`, awaited. Import it by name: ``import warren.aio``."""

from __future__ import annotations

from warren.aio.consumer import Consumer, Delivery
from warren.aio.exchange import Exchange
from warren.aio.node import Node, Opening, Vhost
from warren.aio.node import open_node as open
from warren.aio.publishing import Confirm
from warren.aio.queue import Queue
from warren.aio.topic import AppendConfirm, Topic
from warren.aio.topic_reader import Reader
from warren.aio.topic_record import TopicRecord
from warren.aio.topic_records import Records
from warren.aio.transaction import Transaction

open.__module__, open.__name__, open.__qualname__ = "warren.aio", "open", "open"

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
