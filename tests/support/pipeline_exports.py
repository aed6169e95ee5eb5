"""What a Spark export writes, and what it has to write: the lines of the single machine's commands."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.cli_tools import warren
from warren.pipeline.jobs.export import Exported, Order, export_nodes
from warren.tables.places import find_nodes


def one_by_one(pieces: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What Spark's tasks do, in this process: what they are sent and send back is pickled, and none knows another."""
    return [
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(piece)))))
        for piece in pieces
    ]


def exported(out: Path, *paths: str, parallel: Any = one_by_one, **order: Any) -> Exported:
    return export_nodes(find_nodes(paths), Order(out=str(out), **order), parallel, cores=2)


def lines(out: Path) -> list[bytes]:
    return [line for file in sorted(out.iterdir()) for line in file.read_bytes().splitlines(keepends=True)]


@cache
def on_one_machine(node: str) -> tuple[tuple[bytes, ...], int, str]:
    """The lines of the single-machine command, sorted as the job sorts them; its exit code, and its complaints."""
    if "rocketmq" in node:
        scanned = warren("topic", "scan", node)
        found = scanned.stdout_bytes.splitlines(keepends=True)
        return tuple(line for line in found if not line.startswith(b'{"blank"')), scanned.exit_code, scanned.stderr
    result = warren("export", node)
    found = result.stdout_bytes.splitlines(keepends=True)
    found.sort(key=_names)  # stable: messages of a queue stay in order
    return tuple(found), result.exit_code, result.stderr


def _names(line: bytes) -> tuple[bytes, bytes]:
    said = json.loads(line)
    vhost, queue = (said[name].encode("utf-8", "surrogateescape") for name in ("vhost", "queue"))
    return vhost, queue


def expected_lines(*nodes: str) -> list[bytes]:
    """Those of the single machine with node and position in front."""
    found = []
    for node in sorted(nodes):
        position, group = 0, None
        for line in on_one_machine(node)[0]:
            names = None if "rocketmq" in node else _names(line)
            position = position + 1 if group is not None and names == group[0] else 0
            group = (names,)
            found.append(b'{"node": %b, "position": %d, %b' % (json.dumps(node).encode(), position, line[1:]))
    return found
