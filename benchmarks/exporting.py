"""Export: a directory of a classic queue v2 read out as JSON lines, beside that of the same messages in v1.

Nothing writes v2 but a broker: here the files, as a killed one leaves them, are put together from their encoders.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.backlog import SIZE
from benchmarks.bodies import bodies_of_sizes
from benchmarks.figures import Figure
from benchmarks.measure import Tick, seconds_of
from benchmarks.scenarios import BATCH, PERSISTENT
from warren.queue_index.index import directory as names
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.message.message_format import MSG_ID_BYTES, encode_many
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source

QUEUE: Final = b"bench"
VHOST: Final = b"/"


def export(directory: str) -> int:
    """Export everything to nowhere; returns the messages."""
    with open(os.devnull, "wb") as nowhere, open_source(directory) as source:
        exported = export_source(source, Selection(), nowhere.write, lambda problem: None)
    return exported.messages


def exporting(directory: str, v2_directory: str, *, messages: int, repeats: int, tick: Tick) -> list[Figure]:
    """Speed of an export of ``v2_directory``, beside that of ``directory``, where a classic queue v1 holds the same
    messages."""
    of_v1: list[float] = []
    of_v2: list[float] = []
    if {export(directory), export(v2_directory)} != {messages}:
        raise RuntimeError("export gave another number of messages than were published")
    for _ in range(repeats):
        of_v1.append(messages / seconds_of(lambda: export(directory)))
        of_v2.append(messages / seconds_of(lambda: export(v2_directory)))
        tick()
    return [
        Figure.of_pairs(
            of_v2,
            of_v1,
            "the same in v1",
            group="export",
            title=f"export to nowhere, classic queue v2: {messages:,} × 128 B",
            unit="messages/s",
        ),
    ]


def v2_backlog(directory: str, messages: int) -> str:
    """A data directory with a queue of ``messages`` messages; returns its path."""
    home = Path(directory) / "v2"
    vhost = home / "msg_stores" / "vhosts" / names.vhost_directory_name(VHOST)
    queue = vhost / "queues" / names.queue_directory_name(VHOST, QUEUE)
    queue.mkdir(parents=True)
    (vhost / names.VHOST_NAME_FILE).write_bytes(VHOST)
    (vhost / names.VHOST_CONFIG_FILE).write_bytes(names.vhost_config(names.DEFAULT_SEGMENT_ENTRY_COUNT))
    (queue / names.QUEUE_NAME_FILE).write_bytes(names.queue_name_file(VHOST, QUEUE, 2))
    encoded = _messages(messages)
    for number in range(-(-messages // v2.DEFAULT_ENTRIES)):
        count = min(v2.DEFAULT_ENTRIES, messages - number * v2.DEFAULT_ENTRIES)
        _write_segment(os.path.join(queue, str(number)), number, [next(encoded) for _ in range(count)])
    return str(home)


def _messages(count: int) -> Iterator[bytes]:
    draw, bodies = random.Random(4), bodies_of_sizes([SIZE] * BATCH)
    for _ in range(0, count, BATCH):
        yield from encode_many(PERSISTENT, draw.randbytes(BATCH * MSG_ID_BYTES), bodies)


def _write_segment(path: str, number: int, messages: list[bytes]) -> None:
    records, entries = [v2.encode_header(v2.STORE_MAGIC, number)], [v2.encode_header(v2.INDEX_MAGIC, number)]
    offset = v2.HEADER_SIZE
    for message in messages:
        record = v2.encode_record_v2(message)
        entries.append(v2.encode_entry(record=(offset, len(message)), size=SIZE))
        records.append(record)
        offset += len(record)
    for suffix, parts in ((v2.STORE_SUFFIX, records), (v2.INDEX_SUFFIX, entries)):
        with open(path + suffix, "wb") as file:
            file.write(b"".join(parts))
