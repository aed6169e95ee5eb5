"""warren for coroutines: the verbs of :mod:`warren`, awaited. Import it by name: ``import warren.aio``.

As in :mod:`warren`, a name is imported from its home when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.aio.confirm import AppendConfirm, Confirm
    from warren.aio.consumer import Consumer, Delivery
    from warren.aio.node import Exchange, Node, Opening, Vhost, open
    from warren.aio.queue import Queue
    from warren.aio.topic import Reader, Records, Topic, TopicRecord, Transaction

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

_HOMES: Final = {
    "AppendConfirm": "warren.aio.confirm",
    "Confirm": "warren.aio.confirm",
    "Consumer": "warren.aio.consumer",
    "Delivery": "warren.aio.consumer",
    "Exchange": "warren.aio.node",
    "Node": "warren.aio.node",
    "Opening": "warren.aio.node",
    "Queue": "warren.aio.queue",
    "Reader": "warren.aio.topic",
    "Records": "warren.aio.topic",
    "Topic": "warren.aio.topic",
    "TopicRecord": "warren.aio.topic",
    "Transaction": "warren.aio.topic",
    "Vhost": "warren.aio.node",
    "open": "warren.aio.node",
}
"""Where each name is defined."""

if not TYPE_CHECKING:  # else a type checker would take every name to be there

    def __getattr__(name: str) -> object:
        """A name that was not used before (PEP 562)."""
        if name not in _HOMES:
            hint = importlib.import_module("warren.storage.errors").did_you_mean(name, __dir__())
            raise AttributeError(f"module 'warren.aio' has no attribute '{name}'{hint}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
