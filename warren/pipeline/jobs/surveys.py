"""The surveys of many topic stores, made by Spark: a recovery for each node, and a task for each.

Without it every reading of such tables would recover them one after the other, while Spark plans.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from warren.pipeline.jobs.parallel import map_parallel
from warren.tables.places import Kind, Node
from warren.tables.survey import Survey, survey, to_option

SURVEYED: Final = frozenset({"records", "entries", "index_items"})
"""Tables that are planned by surveys."""
_MOST_TEXT_BYTES: Final = 1 << 20
"""The longest text of an option; a longer one is written to a file, which lasts until this process ends."""


def make_surveys(spark: SparkSession, nodes: Sequence[Node], settings: Mapping[str, str]) -> list[Survey]:
    """A survey of each node that is a topic store, in their order."""
    surveys = map_parallel(spark, nodes, partial(survey_node, settings=dict(settings)))
    return [node_survey for node_survey in surveys if node_survey is not None]


def survey_node(node: Node, settings: Mapping[str, str]) -> Survey | None:
    """Survey a node in a task; ``None``: it has no topic store."""
    return survey(node, settings) if Kind.TOPICS in node.contents().kinds else None


def survey_option(spark: SparkSession, nodes: Sequence[Node], settings: Mapping[str, str]) -> str:
    """Return the value of the option ``survey`` of ``format("warren")``, for ``nodes``."""
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
