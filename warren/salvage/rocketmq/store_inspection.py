"""What is in a topic store, in numbers; as JSON, or as tables for people.

::

    {"kind": "rocketmq-store", "commit_log": {"min_offset", "max_offset", "files": [{"name", "size", "records"}]},
     "queues": [{"topic", "queue_id", "min_offset", "max_offset"}],
     "index_files": [{"name", "begin_timestamp", "end_timestamp", "begin_physical_offset", "end_physical_offset",
                      "hash_slot_count", "index_count"}],
     "groups": [{"topic", "group", "queue_id", "offset", "lag"}],
     "checkpoint": {"physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"}, "clean",
     "config": {"topics": [as in topics.json], "subscription_groups": [as in subscriptionGroup.json],
                "delay_levels": [{"level", "offset"}]},
     "settings": {name: {"value", "from"}}}

Files are those that recovery leaves. ``min_offset`` of a CommitLog without files is -1. ``lag`` is the queue's
``max_offset`` (0 for a queue that is not there) less the group's offset, and so below 0 for a group that is ahead of
the queue. ``checkpoint`` is what the file said, null without one. ``settings`` are those that the files had to tell:
``from`` is ``set`` (by the user), ``files``, ``default``, or ``guess``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
from rich import box
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from warren.msg_store.commit_log.commit_log_format import Blank
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets
from warren.salvage.inspect_tables import shortened
from warren.salvage.names import printable
from warren.salvage.rocketmq.config_files import CONSUMER_OFFSETS
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.salvage.rocketmq.walking import walk_columns
from warren.storage.errors import WarrenError
from warren.storage.mapped_files import file_name

KIND = "rocketmq-store"

Report = dict[str, Any]


def inspect_store(
    opened: RocketmqStore, report: Callable[[object], object], advance: Callable[[int], object]
) -> Report:
    """The whole of the JSON; what cannot be read is reported. ``advance`` is called with how much was read."""
    store = opened.store
    try:
        offsets: ConsumerOffsets | None = opened.consumer_offsets()
    except WarrenError as error:
        report(error)
        offsets = None
    for damage in opened.config.damage:
        if not damage.path.endswith(CONSUMER_OFFSETS):
            report(damage)
    return {
        "kind": KIND,
        "commit_log": _commit_log(opened, report, advance),
        "queues": [
            {"topic": topic, "queue_id": queue_id, "min_offset": queue.min_offset, "max_offset": queue.max_offset}
            for (topic, queue_id), queue in sorted(opened.queues.items())
        ],
        "index_files": [{"name": file.name, **attrs.asdict(file.header)} for file in store.index.index_files],
        "groups": [] if offsets is None else group_rows(opened, offsets),
        "checkpoint": attrs.asdict(store.checkpoint) if opened.has_checkpoint else None,
        "clean": store.was_clean,
        "config": opened.config.to_json(),
        "settings": {setting.name: {"value": setting.value, "from": setting.origin} for setting in opened.inferred},
    }


def _commit_log(opened: RocketmqStore, report: Callable[[object], object], advance: Callable[[int], object]) -> Report:
    log = opened.store.commit_log
    counts: Counter[int | None] = Counter()
    for item in walk_columns(log, with_keys=False):
        if isinstance(item, RecordColumns):
            counts[log.mapped.holding(item.start)] += len(item)
            advance(item.stop)
        elif not isinstance(item, Blank):
            report(item)
    bases = log.mapped.bases
    files = [{"name": file_name(base), "size": log.mapped.file_size, "records": counts[base]} for base in bases]
    return {"min_offset": log.min_offset if bases else -1, "max_offset": log.end, "files": files}


def group_rows(opened: RocketmqStore, offsets: ConsumerOffsets) -> list[Report]:
    """Where groups are: ``topic``, ``group``, ``queue_id``, ``offset``, ``lag``."""
    queues = opened.queues
    groups = []
    for position in sorted(offsets.positions(), key=attrs.astuple):
        queue = queues.get((position.topic, position.queue_id))
        lag = (0 if queue is None else queue.max_offset) - position.offset
        groups.append({**attrs.asdict(position), "lag": lag})
    return groups


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def store_tables(report: Report) -> Iterator[RenderableType]:
    """The same for people."""
    log, files = report["commit_log"], report["commit_log"]["files"]
    records = sum(file["records"] for file in files)
    state = "" if report["clean"] else ", not stopped cleanly"
    yield Text.assemble(("topic store", "bold"), (f"   {records:,} records in {len(files)} files{state}", "dim"))
    yield Text(f"CommitLog from {log['min_offset']:,} to {log['max_offset']:,}", "dim")
    for table in (_file_table(files), _queue_table(report), _group_table(report["groups"]), _index_table(report)):
        if table.row_count:
            yield ""
            yield table
    guessed = [name for name, setting in report["settings"].items() if setting["from"] == "guess"]
    if guessed:
        yield Text(f"guessed: {', '.join(guessed)}", "yellow")
    yield ""


def _file_table(files: list[Report]) -> Table:
    table = _table("CommitLog", size=False, records=False)
    rows = [[file["name"], decimal(file["size"]), f"{file['records']:,}"] for file in files]
    for row in shortened(rows):
        table.add_row(*row)
    return table


def _queue_table(report: Report) -> Table:
    table = _table("topic", queue=False, begin=False, end=False)
    for queue in report["queues"]:
        numbers = (str(queue["queue_id"]), f"{queue['min_offset']:,}", f"{queue['max_offset']:,}")
        table.add_row(Text(printable(queue["topic"])), *numbers)
    return table


def _group_table(groups: list[Report]) -> Table:
    table = _table("group", topic=True, queue=False, offset=False, lag=False)
    for group in groups:
        names = Text(printable(group["group"])), Text(printable(group["topic"]))
        table.add_row(*names, str(group["queue_id"]), f"{group['offset']:,}", f"{group['lag']:,}")
    return table


def _index_table(report: Report) -> Table:
    table = _table("index file", items=False, chains=False, begin=True, end=True)
    rows = [
        [
            file["name"],
            f"{file['index_count'] - 1:,}",
            f"{file['hash_slot_count']:,}",
            _time(file["begin_timestamp"]),
            _time(file["end_timestamp"]),
        ]
        for file in report["index_files"]
    ]
    for row in shortened(rows):
        table.add_row(*row)
    return table


def _time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if timestamp_ms else "–"


def _table(name: str, /, **others: bool) -> Table:
    """``others``: further columns, and whether they stand to the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(name, style="bold", overflow="fold")
    for other, is_left in others.items():
        table.add_column(other, justify="left" if is_left else "right", overflow="fold")
    return table
