"""A message of a topic as a line of JSON.

::

    {"topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp", "born_timestamp", "born_host",
     "store_host", "sys_flag", "flag", "reconsume_times", "tags", "keys", "properties", "body", "body_sha256", "crc_ok",
     "message_id"}
    {"blank": true, "physical_offset", "size"}

Times in milliseconds since 1970; ``body`` is base64, ``body_sha256`` hexadecimal. The body is the one that was sent;
``size``, ``body_sha256`` and ``crc_ok`` are those of the stored one, which may be compressed. ``keys`` is the stored
string, keys with blanks between them; it and ``tags`` are null without. ``physical_offset`` is what the record says of
itself. The filler at the end of a CommitLog file is a blank.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Any, Final

from warren.actors.engines.topics.names import KEYS, TAGS, UNIQ_KEY
from warren.msg_store.commit_log.commit_log_format import Blank, Record, decode_properties
from warren.msg_store.commit_log.record_bodies import stored_body
from warren.salvage.names import to_json

_MOST_DIGITS: Final = 19


def record_fields(record: Record) -> dict[str, Any]:
    """The members of a record's line, in order; the body as bytes."""
    properties = decode_properties(record.properties)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "store_timestamp": record.store_timestamp,
        "born_timestamp": record.born_timestamp,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "properties": properties,
        "body": record.body,
        "body_sha256": sha256(stored_body(record)).hexdigest(),
        "crc_ok": record.crc_ok,
        "message_id": record.message_id(),
    }


def record_line(record: Record, *, with_text: bool = False) -> bytes:
    """A record's line; ``with_text``: a body that is UTF-8 as text, and the body's encoding after it."""
    fields = record_fields(record)
    if with_text:
        text, encoding = body_text(record.body)
        fields = {**fields, "body": text, "body_encoding": encoding}
    else:
        fields["body"] = b64encode(record.body).decode("ascii")
    return to_json(fields) + b"\n"


def body_text(body: bytes | memoryview) -> tuple[str, str]:
    """A body as text, and its encoding: ``string`` if it is UTF-8, else ``base64``."""
    try:
        return str(body, "utf-8"), "string"
    except UnicodeDecodeError:
        return b64encode(body).decode("ascii"), "base64"


def blank_line(blank: Blank) -> bytes:
    """A filler's line."""
    return to_json({"blank": True, "physical_offset": blank.physical_offset, "size": blank.size}) + b"\n"


def carries(record: Record, topic: str, key: str) -> bool:
    """Whether the record is of this topic and has this key, under which the index would find it: no empty one."""
    return record.topic == topic and has_key(record.properties, key)


def has_key(stored: bytes, key: str) -> bool:
    """Whether a record with these properties has this key; none has an empty one."""
    if stored == b"KEYS\x01" + key.encode("utf-8", "replace") and " " not in key:  # as most have it
        return bool(key)
    properties = decode_properties(stored)
    keys = [properties.get(UNIQ_KEY), *properties.get(KEYS, "").split(" ")]
    return bool(key) and key in keys


def number_in(text: str | None) -> int | None:
    """The number that a property has; ``None`` if it is missing, no number, or too long for one."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else None
