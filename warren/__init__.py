"""warren: an embedded message store. RabbitMQ's classic queues and RocketMQ's topics, in your own process, on the same
bytes on disk."""

from __future__ import annotations

import logging

from actors.commit_log_actor import AppendConfirm, Position
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
from actors.engines.topics.errors import (
    DelayError,
    MemberError,
    QueueLostError,
    QueueRangeError,
    TopicError,
    TopicNameError,
    TransactionError,
)
from actors.future import Confirm
from actors.handing_over import PublishRefusedError, QueueDownError
from actors.node_actor import ForeignDirectoryError, TopicsDownError, UnsavedError
from actors.pool import ActorStoppedError, WrongProcessError
from actors.surroundings import BlockedError
from storage.errors import (
    DataError,
    DirectoryLockedError,
    DirectoryLostError,
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
from warren.queue import Queue
from warren.running_broker import BrokerRunningError
from warren.topic import Topic
from warren.topic_reader import Reader
from warren.topic_record import TopicRecord
from warren.transaction import Transaction

__all__ = [
    "AccessRefusedError",
    "ActorStoppedError",
    "AppendConfirm",
    "ArgumentsError",
    "BlockedError",
    "BrokerRunningError",
    "ClosedError",
    "Config",
    "Confirm",
    "Consumer",
    "DataError",
    "DefinitionsError",
    "DelayError",
    "Delivery",
    "DirectoryLockedError",
    "DirectoryLostError",
    "DiskFullError",
    "Exchange",
    "ForeignDirectoryError",
    "MemberError",
    "MessageError",
    "Node",
    "NotFoundError",
    "Position",
    "PreconditionFailedError",
    "PublishRefusedError",
    "Queue",
    "QueueDownError",
    "QueueLostError",
    "QueueRangeError",
    "Reader",
    "RefusedError",
    "ResourceLockedError",
    "SettingsError",
    "StorageError",
    "Topic",
    "TopicError",
    "TopicNameError",
    "TopicRecord",
    "TopicsDownError",
    "Transaction",
    "TransactionError",
    "UnknownTagError",
    "UnroutableError",
    "UnsavedError",
    "Vhost",
    "WarrenError",
    "WrongProcessError",
    "open",
    "open_vhost",
]

open.__module__, open.__name__, open.__qualname__ = "warren", "open", "open"  # inside, builtins' open has its name
logging.getLogger("warren").addHandler(logging.NullHandler())  # quiet, unless the program wants to hear it
