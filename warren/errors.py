"""What warren raises. :class:`WarrenError` catches all of it; those of its subclasses that have subclasses of their own
are at the top too: ``warren.RefusedError``, ``warren.TopicError``, ``warren.StorageError``, ``warren.DataError``.

Each error is defined beside the code that raises it; here they have one address.
"""

from __future__ import annotations

from warren.actors.engines.declared.definitions_json import DefinitionsError
from warren.actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    ResourceLockedError,
    UnknownTagError,
)
from warren.actors.engines.topics.errors import (
    DelayError,
    MemberError,
    QueueLostError,
    QueueRangeError,
    TopicError,
    TopicNameError,
    TransactionError,
)
from warren.actors.node.node_context import BlockedError
from warren.actors.node.node_errors import (
    ClosedError,
    DelaysDownError,
    ForeignDirectoryError,
    TopicsDownError,
    UnsavedError,
    VhostDownError,
)
from warren.actors.queue.intake import PublishRefusedError, QueueDownError
from warren.actors.runtime.pooled_actor import ActorStoppedError, WrongProcessError
from warren.client.errors import HostUnresponsiveError, ServerError
from warren.hosting.data_directory import BrokerRunningError
from warren.storage.data_version import VersionError
from warren.storage.errors import (
    DataError,
    DirectoryLockedError,
    DirectoryLostError,
    DiskFullError,
    InvalidValueError,
    MessageError,
    NoRoomError,
    SettingsError,
    StorageError,
    WarrenError,
)
from warren.verbs.exchange_verbs import UnroutableError
from warren.verbs.operation import NotFromOutsideError
from warren.verbs.selecting import NotMovedError
from warren.where import WhereError

__all__ = [
    "AccessRefusedError",
    "ActorStoppedError",
    "ArgumentsError",
    "BlockedError",
    "BrokerRunningError",
    "ClosedError",
    "DataError",
    "DefinitionsError",
    "DelayError",
    "DelaysDownError",
    "DirectoryLockedError",
    "DirectoryLostError",
    "DiskFullError",
    "ForeignDirectoryError",
    "HostUnresponsiveError",
    "InvalidValueError",
    "MemberError",
    "MessageError",
    "NoRoomError",
    "NotFoundError",
    "NotFromOutsideError",
    "NotMovedError",
    "PreconditionFailedError",
    "PublishRefusedError",
    "QueueDownError",
    "QueueLostError",
    "QueueRangeError",
    "RefusedError",
    "ResourceLockedError",
    "ServerError",
    "SettingsError",
    "StorageError",
    "TopicError",
    "TopicNameError",
    "TopicsDownError",
    "TransactionError",
    "UnknownTagError",
    "UnroutableError",
    "UnsavedError",
    "VersionError",
    "VhostDownError",
    "WarrenError",
    "WhereError",
    "WrongProcessError",
]
