"""What a Spark task reports of a node, and what the single machine's command reports of it."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from warren.cli import app
from warren.pipeline.jobs.inspect import NODE, QUEUE, STORE_FILE, TOPIC, inspect_node
from warren.pipeline.jobs.spreading import Numbered
from warren.tables.places import find_nodes

Report = dict[str, Any]


def on_one_machine(path: str, *options: str) -> Report:
    report: Report = json.loads(CliRunner().invoke(app, ["inspect", path, "--json", *options]).stdout)
    return report


def by_a_task(path: str, **settings: str) -> dict[str, list[Report]]:
    """What the task of a node says, by what it is about."""
    (node,) = find_nodes([path])
    (batch,) = inspect_node(Numbered(0, node), settings)
    found: dict[str, list[Report]] = {what: [] for what in (QUEUE, TOPIC, STORE_FILE, NODE)}
    for row in batch.to_pylist():
        assert row["node"] == path
        found[row["what"]].append(json.loads(row["report"]))
    return found


def expected_rows(report: Report) -> tuple[list[Report], list[Report]]:
    queues = [{"vhost": vhost["name"], **queue} for vhost in report["vhosts"] for queue in vhost["queues"]]
    stores = [
        {"vhost": vhost["name"], "store": store, **file}
        for vhost in report["vhosts"]
        for store, said in vhost["stores"].items()
        for file in said["files"]
    ]
    return queues, stores
