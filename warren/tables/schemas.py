"""Every table's columns, in order, each with what it says.

Spark has no unsigned integers, and so no table has. Of what a file keeps as one, 32 bits become ``bigint`` and 64 bits
``bigint`` with the same bits: numbers from 2^63 on come out negative. No broker writes such numbers; only damage does.
Times stay what the files say, milliseconds or microseconds since 1970, so that they compare with the commands that
read one directory; SQL makes timestamps of them.

``node`` (the directory, as it was loaded), ``file`` (its path) and ``file_offset`` (bytes from the file's begin) say
where a row came from.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from warren.arrow.arrays import KINDS

COMMENT: Final = b"comment"
"""In the metadata of a column: what it says; of a schema: what there is a row for."""

_STRING, _LONG, _INT, _BOOLEAN, _BINARY = (KINDS[name] for name in ("string", "long", "int", "boolean", "binary"))


def _schema(row: str, *columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    fields = [pa.field(name, of, metadata={COMMENT: comment}) for name, of, comment in columns]
    return pa.schema(fields, metadata={COMMENT: row})


_NODE: Final = ("node", _STRING, "the directory that was loaded, as its path was given or matched")
_FILE: Final = ("file", _STRING, "the file that contains it")
_FILE_OFFSET: Final = ("file_offset", _LONG, "its offset in that file, in bytes")
_QUEUE: Final = (
    ("vhost", _STRING, "the virtual host's name"),
    ("queue", _STRING, "the queue's name; the same for all levels of a priority queue"),
    ("priority", _INT, "the level of a priority queue; null for other queues"),
)
_MSG_ID: Final = ("msg_id", _STRING, "the message's id, 16 bytes in hexadecimal")
_TOPIC_QUEUE: Final = (("topic", _STRING, "the topic"), ("queue_id", _INT, "the number of the topic's queue"))
_MADE_FILE: Final = (
    ("file", _STRING, "the file that contains it; null if only a recovery would create that file"),
    _FILE_OFFSET,
)
_PHYSICAL_OFFSET: Final = ("physical_offset", _LONG, "the message's offset in the CommitLog")

QUEUES: Final = _schema(
    "each queue's directory",
    _NODE,
    *_QUEUE,
    ("dir", _STRING, "the name of the queue's directory"),
    ("kind", _STRING, "the format of its files"),
    ("type", _STRING, "classic, quorum or stream"),
    ("version", _INT, "of a classic queue: 1 or 2; null for others"),
    ("durable", _BOOLEAN, "whether its definition says so; null without a definition"),
    ("arguments", _STRING, "JSON: the arguments that it was declared with; null without a definition"),
    ("ready", _LONG, "messages that a restarted broker would deliver"),
    ("bytes", _LONG, "bytes of their payloads"),
    ("head_message_timestamp", _LONG, "the first message's property timestamp, seconds since 1970; null without"),
    ("details", _STRING, "JSON: everything else that warren inspect reports of the queue"),
)

INDEX: Final = _schema(
    "each message in a queue's own files, acked and transient ones too",
    _NODE,
    *_QUEUE,
    ("seq_id", _LONG, "the position; for a quorum queue, the index in its log; for a stream, the offset"),
    ("msg_id", _STRING, "the message's id, 16 bytes in hexadecimal; null if only the message contains it"),
    ("persistent", _BOOLEAN, "whether a restart keeps it"),
    ("delivered", _BOOLEAN, "whether a delivery of it is recorded; null for quorum queues and streams"),
    ("acked", _BOOLEAN, "whether an ack of it is recorded: it is gone, but still in the files"),
    ("expiry_us", _LONG, "when it expires, microseconds since 1970; null: never"),
    ("size", _LONG, "bytes of the payload, as the index says"),
    (
        "embedded",
        _BOOLEAN,
        "whether the message is in the queue's own files; else it is in the vhost's store, under its msg_id",
    ),
    ("in_journal", _BOOLEAN, "whether its publish is in the journal, not in its segment; for version 1"),
    ("file", _STRING, "the file in which its publish stands"),
    _FILE_OFFSET,
)

STORE: Final = _schema(
    "each record of the stores' files, bad ones and repeated ones too",
    _NODE,
    _QUEUE[0],
    ("store", _STRING, "msg_store_persistent, or msg_store_transient"),
    _MSG_ID,
    ("size", _LONG, "bytes of the whole record, 25 more than the message"),
    ("good", _BOOLEAN, "whether it was written completely"),
    ("message", _BINARY, "the message as it is stored; null with bodies=false, or if it is unreadable"),
    _FILE,
    _FILE_OFFSET,
)

MESSAGES: Final = _schema(
    "each message that a restarted broker would deliver: what warren export writes, in its order",
    _NODE,
    *_QUEUE,
    ("position", _LONG, "0, 1, 2 … in the order of delivery, highest level first"),
    ("seq_id", _LONG, "its place in the index of its queue, or of its level; in a quorum queue's log; in a stream"),
    ("msg_id", _STRING, "the message's id, 16 bytes in hexadecimal; null for quorum queues and streams"),
    ("persistent", _BOOLEAN, "true: a restarted broker has no others"),
    ("redelivered", _BOOLEAN, "whether it may have been delivered before"),
    ("expiry_us", _LONG, "when it expires, microseconds since 1970; null: never"),
    (
        "delivery_count",
        _LONG,
        "how often it was returned, for a quorum queue; null for other queues, which do not count",
    ),
    ("stream_offset", _LONG, "its offset, for a stream; else null"),
    ("size", _LONG, "bytes of the payload"),
    ("exchange", _STRING, "the exchange that it was published to"),
    ("routing_keys", KINDS["array<string>"], "its routing key, then those of the headers CC and BCC"),
    ("properties", _STRING, "JSON: the properties that are set, under AMQP's names, as warren export has them"),
    ("headers", _STRING, "JSON: the headers; null without headers"),
    (
        "encoded_properties",
        _BINARY,
        "properties and headers as AMQP encodes them, if JSON cannot express them; else null",
    ),
    ("body", _BINARY, "the payload; null with bodies=false"),
    ("body_sha256", _STRING, "its SHA-256 in hexadecimal; null with bodies=false"),
    ("file", _STRING, "the file in which its publish stands"),
    _FILE_OFFSET,
)

FINDINGS: Final = _schema(
    "each damage or leftover in a directory: what warren verify reports",
    _NODE,
    ("kind", _STRING, "what it is, as warren verify names it"),
    (
        "severity",
        _STRING,
        "damage; leftover: what an undamaged directory may have after a crash; or unread: what warren does not read",
    ),
    ("path", _STRING, "the file or directory concerned"),
    ("offset", _LONG, "its offset in that file, in bytes; null if it has no single place"),
    ("detail", _STRING, "the rest, for people"),
)

RECORDS: Final = _schema(
    "each message in the CommitLog, in its order: what warren topic scan writes",
    _NODE,
    *_TOPIC_QUEUE,
    ("queue_offset", _LONG, "the message's number in its queue; 0 if it is prepared or rolled back"),
    ("physical_offset", _LONG, "the offset in the CommitLog that the record states"),
    ("size", _INT, "bytes of the record; of the message, if the record is a batch"),
    ("store_timestamp", _LONG, "when it was stored, milliseconds since 1970"),
    ("born_timestamp", _LONG, "when the producer created it, milliseconds since 1970"),
    ("born_host", _STRING, "the producer's address:port"),
    ("store_host", _STRING, "the broker's address:port"),
    (
        "sys_flag",
        _INT,
        "RocketMQ's flags: 1 compressed, 4 prepared, 8 commit, 12 rollback, and others",
    ),
    ("flag", _INT, "the producer's flag"),
    ("reconsume_times", _INT, "how often consuming it failed"),
    ("prepared_transaction_offset", _LONG, "for a commit or rollback: physical offset of the prepared message"),
    ("tags", _STRING, "the property TAGS; null if not set"),
    ("keys", _STRING, "the property KEYS, keys separated by blanks; null if not set"),
    ("properties", KINDS["map<string,string>"], "all properties"),
    ("body", _BINARY, "the body, decompressed; null if it cannot be, or if bodies are left out"),
    ("body_crc", _LONG, "31 bits of the body's CRC-32, as the record states"),
    ("crc_ok", _BOOLEAN, "whether that is the CRC of the body; true for an empty body"),
    ("message_id", _STRING, "store host and physical offset in hexadecimal digits"),
    _FILE,
    _FILE_OFFSET,
)

ENTRIES: Final = _schema(
    "each entry of the ConsumeQueues: what warren topic entries writes",
    _NODE,
    *_TOPIC_QUEUE,
    ("queue_offset", _LONG, "the message's number in its queue"),
    _PHYSICAL_OFFSET,
    ("size", _INT, "bytes of its record"),
    ("tags_code", _LONG, "Java's hash of the tags, 0 without; for a scheduled message, when it is due"),
    *_MADE_FILE,
)

INDEX_ITEMS: Final = _schema(
    "each item of the index files, which find messages by their keys",
    _NODE,
    ("slot", _INT, "the slot whose chain it is in; null if the hash is invalid"),
    ("position", _INT, "the item's number in its file, from 1 on"),
    ("key_hash", _INT, "the hash of topic#key"),
    _PHYSICAL_OFFSET,
    ("time_diff", _INT, "whole seconds after the file's first message"),
    ("timestamp", _LONG, "time_diff as a time, milliseconds since 1970"),
    ("previous", _INT, "the item before it in the chain; 0: none"),
    *_MADE_FILE,
)

OFFSETS: Final = _schema(
    "each queue that a consumer group has read",
    _NODE,
    ("group", _STRING, "the consumer group"),
    *_TOPIC_QUEUE,
    ("offset", _LONG, "the next queue offset that the group reads"),
    ("max_offset", _LONG, "the queue offset of the queue's next message; 0 if there is no such queue"),
    ("lag", _LONG, "messages between them; below 0 if the group is ahead of the queue"),
)
