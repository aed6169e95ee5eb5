"""The command ``warren topic delayed``: the messages in a stopped store that wait for their time."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from warren.commands.options import JsonOption, LimitOption, StartOption, StorePath
from warren.commands.output import opened
from warren.commands.topics.topic_reading import Findings
from warren.commands.topics.topic_sources import StoreOptions, opened_store
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.salvage.names import to_json
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.delayed_messages import delayed_messages
from warren.salvage.rocketmq.record_lines import number_in, record_fields
from warren.salvage.rocketmq.store_reading import as_sent


def delayed(
    path: StorePath,
    *,
    limit: LimitOption = None,
    options: StoreOptions,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write out the messages that wait for their time, of delay levels and of RocketMQ 5's timers, the earliest first.

    One JSON object per line, with its time and its destination. Exit code 1: some could not be read.
    """
    findings, written = Findings(), 0
    with opened_store(path, options.setting, start=start) as store, opened(None, path) as write:
        for item in delayed_messages(store):
            if written == limit:
                break
            due_ms, stored = (0, item) if isinstance(item, Finding) else item
            for message in (stored,) if options.raw_bodies else as_sent((stored,), path):
                if isinstance(message, Finding):
                    findings.add(message)
                elif limit is None or written < limit:
                    write(to_json(_fields(due_ms, message)) + b"\n")
                    written += 1
    findings.exit()


def _fields(due_ms: int, record: Record) -> dict[str, Any]:
    properties = decode_properties(record.properties)
    real = {"real_topic": properties.get("REAL_TOPIC"), "real_queue_id": number_in(properties.get("REAL_QID"))}
    return {"due_timestamp": due_ms, **real, **record_fields(record), "body": b64encode(record.body).decode("ascii")}
