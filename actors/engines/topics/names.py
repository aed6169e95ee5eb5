"""RocketMQ's names of topics, groups and properties; and which names a topic or a group may have.

Letters, digits, ``%``, ``|``, ``_`` and ``-``. A topic's name has up to 127 characters, a group's up to 120: RocketMQ's
clients allow 255, but then no record could name its retry topic. Longer topics, which RocketMQ 5 writes, can be read.
"""

from __future__ import annotations

import re
from typing import Final

from warren.actors.engines.topics.errors import TopicNameError
from warren.msg_store.commit_log import commit_log_format

# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SCHEDULE_TOPIC: Final = commit_log_format.SCHEDULE_TOPIC
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
"""Of a queue whose entries point at messages of other topics, which name it: RocketMQ's light message queues."""
STREAM_PREFIX: Final = "%STREAM%"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
"""RocketMQ's own topics; so are all that begin with :data:`SYSTEM_PREFIX`."""
SYSTEM_PREFIX: Final = "rmq_sys_"

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets in :data:`HALF_TOPIC` and :data:`OP_TOPIC` say how far transactions are decided."""

# ── properties ──────────────────────────────────────────────────────────────────────────────────────────────────────

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"

_FOREIGN = re.compile(r"[^%|a-zA-Z0-9_-]", re.ASCII)
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def check_topic_name(topic: str, *, may_be_long: bool = False) -> None:
    """Raise :class:`TopicNameError` unless it is a valid name of a topic, or one of the store's own.

    ``may_be_long``: accept what RocketMQ 5 writes; such a topic can only be read.
    """
    _check("topic", topic, commit_log_format.MAX_TOPIC_BYTES_V2 if may_be_long else commit_log_format.MAX_TOPIC_BYTES)


def check_group_name(group: str) -> None:
    """Raise :class:`TopicNameError` unless it is a valid name of a group."""
    _check("group", group, commit_log_format.MAX_TOPIC_BYTES - len(RETRY_PREFIX))


def check_instance_name(instance: str) -> None:
    """Raise :class:`TopicNameError` unless it is a valid name of an instance of a broadcast group."""
    _check("instance", instance, commit_log_format.MAX_TOPIC_BYTES)


def check_user_topic(topic: str, *, may_be_long: bool = False) -> None:
    """Raise :class:`TopicNameError` unless it is a valid name of a topic that is not the store's own."""
    check_topic_name(topic, may_be_long=may_be_long)
    if is_system_topic(topic):
        raise TopicNameError(f"the topic {topic!r} is the store's own")


def has_topic_characters(topic: str) -> bool:
    """Return whether a topic's name has only characters that RocketMQ allows."""
    return _ALLOWED.fullmatch(topic) is not None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    """The topic in which a group's messages wait for another attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic to which a group's messages go after the last attempt."""
    return DLQ_PREFIX + group


def stream_topic(stream: str, suffix: bytes) -> str:
    """A topic for a stream: its name, as far as allowed, and ``suffix``, which is unique."""
    tail = f"%{suffix.hex()}"
    readable = _FOREIGN.sub("_", stream)
    return STREAM_PREFIX + readable[: commit_log_format.MAX_TOPIC_BYTES - len(STREAM_PREFIX) - len(tail)] + tail


def _check(kind: str, name: str, limit: int) -> None:
    if not has_topic_characters(name):
        raise TopicNameError(f"a {kind} cannot be called {name!r:.200}: letters, digits, %, |, _ and - are allowed")
    if len(name) > limit:
        raise TopicNameError(f"a {kind} cannot be called {name!r:.200}: {len(name)} characters, {limit} at most")
