"""warren: an embedded message store. RabbitMQ's classic queues and RocketMQ's topics, in your own process, on the same
bytes on disk.

``import warren`` imports nothing else: a name is imported from its home when it is first used.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren import aio as aio
    from warren import engine as engine
    from warren import errors as errors
    from warren.actors.commit_log_actor import AppendConfirm, AppendResult
    from warren.actors.engines.errors import RefusedError
    from warren.actors.engines.topics.errors import TopicError
    from warren.actors.future import Confirm
    from warren.config import Config
    from warren.consumer import Consumer, Delivery
    from warren.delivery_batch import DeliveryBatch
    from warren.exchange import Exchange
    from warren.messages import DelayedMessage
    from warren.node import Node, Vhost, open
    from warren.queue import Queue
    from warren.read_message import RecordBatch
    from warren.retry import Retry
    from warren.scheduling import Scheduled
    from warren.storage.errors import DataError, StorageError, WarrenError
    from warren.topic import Topic
    from warren.topic_reader import Reader, TopicRecord
    from warren.transaction import Transaction
    from warren.transfers import export_messages, import_messages

    __version__: str

__all__ = [
    "AppendConfirm",
    "AppendResult",
    "Config",
    "Confirm",
    "Consumer",
    "DataError",
    "DelayedMessage",
    "Delivery",
    "DeliveryBatch",
    "Exchange",
    "Node",
    "Queue",
    "Reader",
    "RecordBatch",
    "RefusedError",
    "Retry",
    "Scheduled",
    "StorageError",
    "Topic",
    "TopicError",
    "TopicRecord",
    "Transaction",
    "Vhost",
    "WarrenError",
    "export_messages",
    "import_messages",
    "open",
]

_HOMES: Final = {
    "AppendConfirm": "warren.actors.commit_log_actor",
    "AppendResult": "warren.actors.commit_log_actor",
    "Config": "warren.config",
    "Confirm": "warren.actors.future",
    "Consumer": "warren.consumer",
    "DataError": "warren.storage.errors",
    "DelayedMessage": "warren.messages",
    "Delivery": "warren.consumer",
    "DeliveryBatch": "warren.delivery_batch",
    "Exchange": "warren.exchange",
    "Node": "warren.node",
    "Queue": "warren.queue",
    "Reader": "warren.topic_reader",
    "RecordBatch": "warren.read_message",
    "RefusedError": "warren.actors.engines.errors",
    "Retry": "warren.retry",
    "Scheduled": "warren.scheduling",
    "StorageError": "warren.storage.errors",
    "Topic": "warren.topic",
    "TopicError": "warren.actors.engines.topics.errors",
    "TopicRecord": "warren.topic_reader",
    "Transaction": "warren.transaction",
    "Vhost": "warren.node",
    "WarrenError": "warren.storage.errors",
    "export_messages": "warren.transfers",
    "import_messages": "warren.transfers",
    "open": "warren.node",
}
"""Where each name is defined."""
_MODULES: Final = ("aio", "engine", "errors")
"""What needs no import of its own."""

logging.getLogger("warren").addHandler(logging.NullHandler())  # quiet, unless the program wants to hear it


if not TYPE_CHECKING:  # else a type checker would take every name to be there

    def __getattr__(name: str) -> object:
        """A name that was not used before (PEP 562)."""
        if name in _MODULES:
            return importlib.import_module(f"warren.{name}")
        if name == "__version__":
            return importlib.import_module("warren.storage.data_version").WARREN_VERSION
        if name not in _HOMES:
            raise AttributeError(f"module 'warren' has no attribute '{name}'")
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES, "__version__"})
