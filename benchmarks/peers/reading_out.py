"""warren's ways to read a directory out, as its commands use them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from benchmarks.killed import read_bare
from warren.arrow.parquet_export import parquet_rows
from warren.salvage.export import Selection, export_source, export_to
from warren.salvage.rocketmq.rebuilding import rebuild as rebuild_topics
from warren.salvage.rocketmq.rocketmq_store import open_rocketmq
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source


def _to_json_lines(directory: str) -> int:
    with open(os.devnull, "wb") as nowhere, open_source(directory) as source:
        return export_source(source, Selection(), nowhere.write, lambda _: None).messages


def _to_parquet(directory: str) -> int:
    with (
        open(os.devnull, "wb") as nowhere,
        open_source(directory) as source,
        parquet_rows(nowhere.write, directory) as rows,
    ):
        return export_to(source, Selection(), rows, lambda _: None).messages


def _verify(directory: str) -> None:
    with open_source(directory) as source:
        for _ in verify_source(source):
            pass


__all__ = ["WAYS", "commit_log_megabytes", "read_bare", "rebuild"]

WAYS: Final[dict[str, Callable[[str], int | None]]] = {
    "JSON lines": _to_json_lines,
    "Parquet": _to_parquet,
    "verify": _verify,
}
"""By the name of the value: reads all of it, and says how many messages there were where it counts them."""


def commit_log_megabytes(directory: str) -> float:
    """The size of a topic's CommitLog, without the room after its end."""
    with open_rocketmq(os.path.join(directory, "topics"), {}) as store:
        return store.store.commit_log.end / 1e6


def rebuild(directory: str, out: str) -> None:
    with open_rocketmq(os.path.join(directory, "topics"), {}) as store:
        rebuild_topics(store, out, lambda _: None).close()
