"""warren: an embedded message store. RabbitMQ's classic queues in your own process, on the same bytes on disk."""

from __future__ import annotations

import logging

from actors.engines.definitions_json import DefinitionsError
from actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    ResourceLockedError,
    UnknownTagError,
)
from actors.future import Confirm
from actors.handing_over import PublishRefusedError, QueueDownError
from actors.node_actor import ForeignDirectoryError
from actors.pool import ActorStoppedError
from actors.surroundings import BlockedError
from storage.errors import (
    DataError,
    DirectoryLockedError,
    DiskFullError,
    MessageError,
    SettingsError,
    StorageError,
    WarrenError,
)
from warren.config import Config
from warren.consumer import Consumer, Delivery
from warren.embedded import open_vhost
from warren.exchange import Exchange, UnroutableError
from warren.node import ClosedError, Node, Vhost
from warren.node import open_node as open
from warren.process_bound import WrongProcessError
from warren.queue import Queue

__all__ = [
    "AccessRefusedError",
    "ActorStoppedError",
    "ArgumentsError",
    "BlockedError",
    "ClosedError",
    "Config",
    "Confirm",
    "Consumer",
    "DataError",
    "DefinitionsError",
    "Delivery",
    "DirectoryLockedError",
    "DiskFullError",
    "Exchange",
    "ForeignDirectoryError",
    "MessageError",
    "Node",
    "NotFoundError",
    "PreconditionFailedError",
    "PublishRefusedError",
    "Queue",
    "QueueDownError",
    "RefusedError",
    "ResourceLockedError",
    "SettingsError",
    "StorageError",
    "UnknownTagError",
    "UnroutableError",
    "Vhost",
    "WarrenError",
    "WrongProcessError",
    "open",
    "open_vhost",
]

logging.getLogger("warren").addHandler(logging.NullHandler())  # quiet, unless the program wants to hear it
