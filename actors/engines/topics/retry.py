"""Retries: a message that a consumer could not process comes again later, and after the last attempt is a dead letter.

A message that is *sent back* goes, by way of the delayed messages, to the topic ``%RETRY%group``, which the group reads
besides its own. Each time it waits longer: the delay level is 3 plus the number of earlier attempts, unless the
consumer names one. After ``max_reconsume_times`` attempts, or if the consumer names a negative level, it goes to
``%DLQ%group`` and stays there. Both topics have one queue.

The properties are those that RocketMQ's broker adds: the message's first topic, its id there, its level, and that no
producer waits for it to be stored.

A message is sent back before its offset is committed; after a crash between the two it comes twice.
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
"""The level of the first retry: 10 s with RocketMQ's levels."""
RETRY_QUEUE_ID: Final = 0


def sent_back(
    record: Record,
    group: str,
    settings: TopicSettings,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
) -> Batch:
    """Return what to append for a message that is to be retried, or becomes a dead letter.

    ``delay_level`` 0: the usual one; negative: to the dead letters. ``max_reconsume_times``: by default that of the
    settings. The properties may become too large for a record; then ``CommitLog.append`` raises. Raises
    :class:`~warren.actors.engines.topics.errors.TopicNameError`, and
    :class:`~warren.msg_store.commit_log.commit_log_format.RecordError` for a record without a topic.
    """
    check_group_name(group)
    limit = settings.max_reconsume_times if max_reconsume_times is None else max_reconsume_times
    is_dead = record.reconsume_times >= limit or delay_level < 0
    level = 0 if is_dead else delay_level or FIRST_DELAY_LEVEL + record.reconsume_times
    properties = decode_properties(record.properties)
    added = {
        RETRY_TOPIC: properties.get(RETRY_TOPIC, record.topic),
        WAIT: "false",
        DELAY: str(level),
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID, "").strip() or record.message_id(),
    }
    batch = copy_of(
        record,
        topic=dead_letter_topic(group) if is_dead else retry_topic(group),
        queue_id=RETRY_QUEUE_ID,
        properties=with_properties(record.properties, added),
    )
    batch = attrs.evolve(batch, reconsume_times=record.reconsume_times + 1)
    return to_scheduled(batch, level, settings) if level and settings.delay_levels_ms() else batch
