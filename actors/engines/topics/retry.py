"""A message that a consumer could not do: it comes again later, and after the last attempt it is a dead letter.

*Sent back* it goes, by way of the delayed messages, to the topic ``%RETRY%group``, which the group reads beside its
own. Each time it waits longer: the delay level is 3 and one more for each attempt that it has had, unless the consumer
names one. After ``max_reconsume_times`` attempts, or where the consumer names a negative level, it goes to
``%DLQ%group`` and stays there. Either topic has one queue.

The properties are those that RocketMQ's broker adds: where the message came from at first, the id that it had there,
its level, and that no producer waits for it to be stored.

A message is sent back before its place is committed; a crash between the two makes it come twice.
"""

from __future__ import annotations

from typing import Final

import attrs

from warren.actors.engines.topics.names import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    check_group_name,
    dead_letter_topic,
    retry_topic,
)
from warren.actors.engines.topics.record_copies import copy_of, with_properties
from warren.actors.engines.topics.schedule import to_scheduled
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.storage.topic_settings import TopicSettings

FIRST_DELAY_LEVEL: Final = 3
"""Of the first retry: 10 s with RocketMQ's levels."""
RETRY_QUEUE_ID: Final = 0


def sent_back(
    record: Record,
    group: str,
    settings: TopicSettings,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
) -> Batch:
    """What is appended for a message that the group is to have again, or never.

    ``delay_level`` 0: the usual one; negative: to the dead letters. ``max_reconsume_times``: the settings', if not
    given. Its properties may become too large for a record: ``CommitLog.append`` says so. Raises
    :class:`~warren.actors.engines.topics.errors.TopicNameError`, and
    :class:`~warren.msg_store.commit_log.commit_log_format.RecordError` for a record without a topic.
    """
    check_group_name(group)
    most = settings.max_reconsume_times if max_reconsume_times is None else max_reconsume_times
    is_dead = record.reconsume_times >= most or delay_level < 0
    level = 0 if is_dead else delay_level or FIRST_DELAY_LEVEL + record.reconsume_times
    said = decode_properties(record.properties)
    added = {
        RETRY_TOPIC: said.get(RETRY_TOPIC, record.topic),
        WAIT: "false",
        DELAY: str(level),
        ORIGIN_MESSAGE_ID: said.get(ORIGIN_MESSAGE_ID, "").strip() or record.message_id(),
    }
    batch = copy_of(
        record,
        topic=dead_letter_topic(group) if is_dead else retry_topic(group),
        queue_id=RETRY_QUEUE_ID,
        properties=with_properties(record.properties, added),
    )
    batch = attrs.evolve(batch, reconsume_times=record.reconsume_times + 1)
    return to_scheduled(batch, level, settings) if level and settings.delay_levels_ms() else batch
