"""``load``: write exported messages into new directories, as a warren node keeps them, sharded by queue over N nodes.

A hash of vhost and queue decides which node a queue goes to. Each node is built by one task: its rows come sorted by
queue, node and position, and are written by the code that fills directories for ``warren shovel``. Queues of one name
in several of the old nodes become one queue, node after node.

Messages are persistent and get new numbers and ids. An export does not contain a message's level in a priority queue,
so these become plain queues that keep the order in which the messages were to be delivered; rows of the table
``messages`` contain it, in the column ``priority``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from warren.config import Config
from warren.pipeline.jobs.parallel import task_output, task_outputs
from warren.pipeline.jobs.rows_in import QueueName, Rows, answers, exported_rows, format_of, letter_of, queue_of
from warren.pipeline.jobs.running import check_format, check_out, running, staged
from warren.salvage.names import Json
from warren.shovel.places import Intake
from warren.shovel.writing import DirectoryDestination
from warren.storage.errors import SettingsError, WarrenError
from warren.storage.settings import Settings
from warren.tables.packing import grouped
from warren.tables.pipeline_errors import PipelineError

HELD_BYTES: Final = 16 << 20
HELD_MESSAGES: Final = 4096
"""About the most bytes, and the most messages, that are written and synced together."""


@attrs.frozen(kw_only=True)
class Built:
    """One node's directory."""

    number: int
    path: str
    queues: int
    messages: int
    payload_bytes: int


@attrs.frozen
class Loaded:
    """The result of a load."""

    out: str
    nodes: tuple[Built, ...]

    def to_json(self) -> dict[str, Json]:
        """The summary."""
        nodes: list[Json] = [
            {
                "node": os.path.join(self.out, f"node-{node.number}"),
                "queues": node.queues,
                "messages": node.messages,
                "bytes": node.payload_bytes,
            }
            for node in self.nodes
        ]
        messages = sum(node.messages for node in self.nodes)
        payload_bytes = sum(node.payload_bytes for node in self.nodes)
        return {"out": self.out, "nodes": nodes, "messages": messages, "bytes": payload_bytes}


def sharded(rows: DataFrame, nodes: int) -> DataFrame:
    """The rows with the number of their node in front; a partition for each node, its queues in order."""
    shard = F.pmod(F.xxhash64("vhost", "queue"), F.lit(nodes)).cast("int")
    numbered = rows.select(shard.alias("shard"), "*").repartitionById(nodes, F.col("shard"))
    return numbered.sortWithinPartitions("shard", "vhost", "queue", "node", "position")


def run(
    paths: Sequence[str],
    out: str,
    nodes: int,
    master: str | None = None,
    *,
    input_format: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Loaded:
    """Load exports into ``nodes`` new directories below ``out``; ``settings``: of a warren node, by their names."""
    if nodes < 1:
        raise PipelineError("--nodes: at least 1")
    check_format(input_format)
    engine = engine_settings(settings or {})
    with running("Loading", master) as (spark, _):
        check_out(out)
        rows = sharded(exported_rows(spark, paths, input_format or format_of(paths) or "parquet"), nodes)
        with staged(out) as staging, task_outputs(staging) as outputs:
            built_nodes = {
                node.number: node for node in answers(rows, partial(build, outputs=outputs, settings=engine))
            }
            for number in range(nodes):
                if number in built_nodes:
                    os.rename(built_nodes[number].path, os.path.join(staging, f"node-{number}"))
                    continue
                # a node without queues can be opened, too
                os.makedirs(os.path.join(staging, f"node-{number}", "msg_stores", "vhosts"))
                built_nodes[number] = Built(number=number, path="", queues=0, messages=0, payload_bytes=0)
        return Loaded(out, tuple(built_nodes[number] for number in range(nodes)))


def engine_settings(changes: Mapping[str, str]) -> Settings:
    """warren's settings with some changed; raises :class:`SettingsError`."""
    try:
        return Config.of(**{name: json.loads(value) for name, value in changes.items()}).engine
    except (ValueError, TypeError) as error:
        text = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise SettingsError(f"--set {text}: {error}") from error


def build(rows: Rows, outputs: str, settings: Settings | None = None) -> Iterator[Built]:
    """Write rows of nodes, one node after the other, into directories, in a task; yield each of them."""
    for number, node_rows in groupby(rows, key=lambda row: int(row["shard"])):
        yield _built(number, task_output(outputs, f"node-{number}"), node_rows, settings)


def _built(number: int, path: str, rows: Iterator[Mapping[str, Any]], settings: Settings | None) -> Built:
    queues = messages = payload_bytes = 0
    with DirectoryDestination.open(path, settings) as destination:
        for queue, queue_rows in groupby(rows, key=queue_of):
            intake = destination.intake(queue.vhost, queue.queue, _stored_name(queue))
            queue_messages, queue_bytes = _fill(intake, queue_rows)
            queues, messages, payload_bytes = queues + 1, messages + queue_messages, payload_bytes + queue_bytes
    return Built(number=number, path=path, queues=queues, messages=messages, payload_bytes=payload_bytes)


def _stored_name(queue: QueueName) -> bytes:
    """Return the queue's name in the directory; that of a priority level ends in the level."""
    return queue.queue if queue.priority is None else queue.queue + bytes([0, queue.priority])


def _fill(intake: Intake, rows: Iterator[Mapping[str, Any]]) -> tuple[int, int]:
    """Write a queue's messages; return their number, and the bytes of their payloads."""
    messages = payload_bytes = 0
    sized = ((len(letter.body) + HELD_BYTES // HELD_MESSAGES, letter) for letter in map(letter_of, rows))
    for _, letters in grouped(sized, HELD_BYTES):
        for letter in letters:
            intake.put(letter)
        written = intake.work(wait=True)
        if len(written) != len(letters):
            raise WarrenError(f"{len(written)} of {len(letters)} messages were written")
        messages += len(letters)
        payload_bytes += sum(len(letter.body) for letter in letters)
    return messages, payload_bytes
