"""What a topic refuses. All are :class:`WarrenError`, and none of them changes anything.

Records on disk that are not what they must be (a half message without a topic to go to) are no refusals:
:class:`~warren.msg_store.commit_log.commit_log_format.RecordError` says those.
"""

from __future__ import annotations

from warren.storage.errors import InvalidValueError, WarrenError


class TopicError(WarrenError):
    """Base class: a request to a topic or a group was refused."""


class TopicNameError(TopicError, InvalidValueError):
    """No name for a topic or a group, or one that belongs to the store itself."""


class QueueRangeError(TopicError, InvalidValueError):
    """A queue that the topic does not have, or a queue offset outside what the queue holds or has handed out."""


class MemberError(TopicError):
    """The group has no member of that name, or already has one."""


class QueueLostError(TopicError):
    """The queue is not (or no longer) the member's: it went to another one, or was sought to another place. What was
    taken from it will be, or was, handed out again."""


class DelayError(TopicError, InvalidValueError):
    """A delay level that there is not."""


class TransactionError(TopicError):
    """A message that is no half message of this producer group, or one that is decided already."""
