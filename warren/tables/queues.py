"""The table ``queues``: a row for each queue's directory, with the numbers of ``warren inspect``, what the node's
definitions say of the queue, and when its first message was published, if the publisher said so.

Definitions are RabbitMQ's metadata or warren's own file. If a node has neither, or its files cannot be read, what they
would say is null.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.arrow.arrays import Rows
from warren.queue_index.message.message_format import decode_message
from warren.salvage.metadata.broker_definitions import read_definitions
from warren.salvage.metadata.metadata_tables import has_metadata
from warren.salvage.names import split_level, to_json, to_text
from warren.salvage.queue_directory import Finding, StoredMessage
from warren.salvage.queue_reader import QueueDirectory, messages_of
from warren.storage.errors import DataError, MessageError, StorageError
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.places import Kind, Node
from warren.tables.queue_parts import QueueOpener, files_of_queues, plan_queues
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import QUEUES
from warren.tables.table import Table, Task, of_rows

_BATCH: Final = 1024
"""Rows."""


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The queues of a task."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    asks_definitions = pushdown.asks("durable") or pushdown.asks("arguments")
    definitions = _definitions(task.node, damage) if asks_definitions else {}
    rows: list[tuple[Any, ...]] = []
    for part in task.work:
        queue = opener.open_part(part)
        damage.look_at(queue, part.segments)
        summary = queue.summary()
        definition = definitions.get((to_text(part.vhost), to_text(split_level(part.queue.name)[0])), {})
        rows.append(
            (
                task.node.name,
                part.vhost_text,
                part.queue_text,
                part.priority,
                posixpath.basename(queue.path),
                queue.kind,
                summary.details["type"],
                summary.details.get("version"),
                definition.get("durable"),
                to_json(definition["arguments"]).decode() if "arguments" in definition else None,
                summary.ready,
                summary.payload_bytes,
                _head_timestamp(queue) if pushdown.asks("head_message_timestamp") else None,
                to_json(summary.details).decode(),
            )
        )
        if len(rows) == _BATCH:
            yield of_rows(rows, QUEUES)
            rows = []
    yield of_rows(rows, QUEUES)


def _definitions(node: Node, damage: Damage) -> dict[tuple[str, str], dict[str, Any]]:
    """The definitions of the node's queues, by vhost and name."""
    files, directory = node.place().files, node.directory
    queues: list[dict[str, Any]] = []
    try:
        if has_metadata(files, directory):
            queues = read_definitions(files, directory, damage.finding)["queues"]
        elif snapshot := DefinitionsFile(files, directory).load():
            queues = snapshot["queues"]
    except DataError as error:
        damage.report(error.path, error.offset, error.reason)
    except StorageError as error:
        damage.refused(directory, error)
    return {(queue["vhost"], queue["name"]): queue for queue in queues}


def _head_timestamp(queue: QueueDirectory) -> int | None:
    """The property ``timestamp`` of the first message; ``None`` if it is missing or cannot be read."""
    message = next(_first_of_segments(queue), None) or next(queue.messages(), None)
    if not isinstance(message, StoredMessage):
        return None
    try:
        return decode_message(message.encoded).properties.timestamp
    except MessageError:
        return None


def _first_of_segments(queue: QueueDirectory) -> Iterator[StoredMessage | Finding]:
    """The first message of each segment, read alone."""
    for columns in queue.segment_columns():
        if len(rows := queue.present_rows(columns)):
            for _, message in messages_of(columns.rows(rows[:1]), queue.bodies):
                yield message


TABLE: Final = Table(
    name="queues",
    kinds=Kind.QUEUES,
    schema=QUEUES,
    plan=partial(plan_queues, as_stored=True),
    read=read,
    files=partial(files_of_queues, with_store=True),
)
