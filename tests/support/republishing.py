"""Rows of an export, and what a Spark task does to publish them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from warren.pipeline.jobs import rows_in
from warren.pipeline.jobs.republish import Order, Republished, publish


def rows(queue: str, count: int, node: str = "/disks/a") -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "vhost": "/",
            "queue": queue,
            "priority": None,
            "position": position,
            "expiry_us": None,
            "exchange": "",
            "routing_keys": [queue],
            "properties": json.dumps({"message_id": f"{node} {position}", "delivery_mode": 2}),
            "headers": None if position % 3 else json.dumps({"n": position}),
            "body": b"%d" % position,
        }
        for position in range(count)
    ]


def batches(of: list[dict[str, Any]], each: int = 500) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(of), each):
        yield pa.RecordBatch.from_pylist(of[at : at + each], schema=rows_in._ARROW)


def published(of: list[dict[str, Any]], url: str, ledger: Path, window: int = 100) -> list[Republished]:
    """What a task does."""
    order = Order(to=url, ledger=str(ledger), window=window)
    return list(publish(rows_in.rows_of(batches(of)), order, "the broker"))
