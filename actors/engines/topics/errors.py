"""Errors of refused requests to topics. All are :class:`WarrenError`; a refused request changes nothing.

Invalid records on disk (such as a half message without a topic) raise
:class:`~warren.msg_store.commit_log.commit_log_format.RecordError` instead.
"""

from __future__ import annotations

from warren.storage.errors import InvalidValueError, WarrenError


class TopicError(WarrenError):
    """Base class: a request to a topic or a group was refused."""


class TopicNameError(TopicError, InvalidValueError):
    """An invalid name of a topic or a group, or one that is reserved for the store."""


class QueueRangeError(TopicError, InvalidValueError):
    """A queue that the topic does not have, or a queue offset outside what the queue holds or has handed out."""


class MemberError(TopicError):
    """The group has no member of that name, or already has one."""


class QueueLostError(TopicError):
    """The member does not, or no longer, own the queue: another member got it, or a seek moved it. The messages taken
    from it are handed out again."""


class DelayError(TopicError, InvalidValueError):
    """A delay level that does not exist."""


class TransactionError(TopicError):
    """A message that is not a half message of this producer group, or is decided already."""


def check_queues(_: object, __: object, queues: int) -> None:
    """Validate the number of a topic's queues, for attrs."""
    if queues < 1:
        raise QueueRangeError(f"a topic with {queues} queues")
