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
    from warren.actors.engines.errors import RefusedError
    from warren.actors.engines.topics.errors import TopicError
    from warren.actors.runtime.future import Confirm
    from warren.actors.topics.log_intake import AppendConfirm, AppendResult
    from warren.config import Config
    from warren.handles.consumer import Consumer, Delivery
    from warren.handles.delivery_batch import DeliveryBatch
    from warren.handles.node import Exchange, Node, Vhost, open
    from warren.handles.queue import Queue
    from warren.handles.topic import Reader, Topic, TopicRecord, Transaction
    from warren.handles.transfers import export_messages, import_messages
    from warren.storage.errors import DataError, StorageError, WarrenError
    from warren.values.messages import DelayedMessage
    from warren.values.read_message import RecordBatch
    from warren.values.retry import Retry
    from warren.values.scheduling import Scheduled

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
    "AppendConfirm": "warren.actors.topics.log_intake",
    "AppendResult": "warren.actors.topics.log_intake",
    "Config": "warren.config",
    "Confirm": "warren.actors.runtime.future",
    "Consumer": "warren.handles.consumer",
    "DataError": "warren.storage.errors",
    "DelayedMessage": "warren.values.messages",
    "Delivery": "warren.handles.consumer",
    "DeliveryBatch": "warren.handles.delivery_batch",
    "Exchange": "warren.handles.node",
    "Node": "warren.handles.node",
    "Queue": "warren.handles.queue",
    "Reader": "warren.handles.topic",
    "RecordBatch": "warren.values.read_message",
    "RefusedError": "warren.actors.engines.errors",
    "Retry": "warren.values.retry",
    "Scheduled": "warren.values.scheduling",
    "StorageError": "warren.storage.errors",
    "Topic": "warren.handles.topic",
    "TopicError": "warren.actors.engines.topics.errors",
    "TopicRecord": "warren.handles.topic",
    "Transaction": "warren.handles.topic",
    "Vhost": "warren.handles.node",
    "WarrenError": "warren.storage.errors",
    "export_messages": "warren.handles.transfers",
    "import_messages": "warren.handles.transfers",
    "open": "warren.handles.node",
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
            hint = importlib.import_module("warren.storage.errors").did_you_mean(name, __dir__())
            raise AttributeError(f"module 'warren' has no attribute '{name}'{hint}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES, "__version__"})
