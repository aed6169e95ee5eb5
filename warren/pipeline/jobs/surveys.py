"""The surveys of many topic stores, made by Spark: a recovery for each node, and a task for each.

Without it every reading of such tables would recover them one after the other, where Spark plans.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession

from warren.pipeline.places import Node
from warren.pipeline.survey import Survey, surveying, to_option

SURVEYED: Final = frozenset({"records", "entries", "index_items"})
"""Tables that are planned by surveys."""
_MOST_TEXT_BYTES: Final = 1 << 20
"""Of an option; a longer text becomes a file, until this process ends."""


def make_surveys(spark: SparkSession, nodes: Sequence[Node], settings: Mapping[str, str]) -> list[Survey]:
    """A survey of each node that is a topic store, in their order."""
    numbers = spark.range(0, len(nodes), 1, len(nodes))
    made = numbers.mapInArrow(surveying(tuple(nodes), settings), "survey string").collect()
    by_node = {one.node: one for one in (Survey.from_json(row.survey) for row in made)}
    return [by_node[node.name] for node in nodes if node.name in by_node]


def survey_option(spark: SparkSession, nodes: Sequence[Node], settings: Mapping[str, str]) -> str:
    """What to give ``format("warren")`` as its option ``survey``, for any of these nodes."""
    text = to_option(make_surveys(spark, nodes, settings))
    if len(text) <= _MOST_TEXT_BYTES:
        return text
    with tempfile.NamedTemporaryFile("w", prefix="warren-survey-", suffix=".json", delete=False) as file:
        file.write(text)
    atexit.register(_forget, file.name)
    return file.name


def _forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
