"""A classic queue v2 as a killed broker leaves it, with the messages of :func:`benchmarks.killed.killed_backlog`.

Nothing writes that format but a broker; here its files are put together from their encoders.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.backlog import SIZE
from benchmarks.bodies import bodies_of_sizes
from benchmarks.scenarios import BATCH, PERSISTENT
from warren.queue_index.index import directory as names
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.message.message_format import MSG_ID_BYTES, encode_many

QUEUE: Final = b"bench"
VHOST: Final = b"/"


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
