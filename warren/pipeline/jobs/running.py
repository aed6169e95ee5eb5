"""What every job that is run as a command shares: a session, a progress bar, an ``--out`` that is whole or not there.

Errors come out as ours: what a task said of a file, or the first line of what Spark says, and no stack of Java's.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from warren.pipeline.errors import PipelineError
from warren.pipeline.places import Node, find_nodes
from warren.pipeline.session import session

_OURS = re.compile(r"^(?:storage|warren|actors|queue_index|msg_store)\.[\w.]*Error: (.*)", re.MULTILINE)
_PYTHONS = re.compile(r"^(?:[\w.]*Error|[\w.]*Exception): (.*)", re.MULTILINE)
_AFTER_S: Final = 1.0


@contextmanager
def running(what: str, master: str | None, paths: Iterable[str] = ()) -> Iterator[tuple[SparkSession, list[Node]]]:
    """A session with a progress bar that says ``what``, and the nodes of the paths; errors become ours.

    A session that was started here is stopped in the end.
    """
    nodes = find_nodes(list(paths))
    is_ours = SparkSession.getActiveSession() is None
    spark = session(master)
    try:
        with spark_errors(), _bar(spark, what):
            yield spark, nodes
    finally:
        if is_ours:
            spark.stop()


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark raises within becomes a :class:`PipelineError` of one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(said_by(error)) from error


def said_by(error: BaseException) -> str:
    """The one line of an error of Spark's that matters: what our own code said in a task, if it did."""
    text = str(error)
    for pattern in (_OURS, _PYTHONS):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    return text.strip().partition("\n")[0]


def load(
    spark: SparkSession, table: str, nodes: Iterable[Node], settings: Mapping[str, str] | None = None, **options: Any
) -> DataFrame:
    """A table of these nodes."""
    reader = spark.read.format("warren").option("table", table)
    if settings:
        reader = reader.option("set", ",".join(f"{name}={value}" for name, value in settings.items()))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load([node.name for node in nodes])


@contextmanager
def staged(out: str, sources: Iterable[Node] = ()) -> Iterator[str]:
    """A new directory beside ``out``, which becomes ``out`` when all went well, and vanishes when it did not.

    Raises :class:`PipelineError` where ``out`` is there and not an empty directory, lies in one of the sources, or
    cannot be written.
    """
    check_out(out, sources)
    target = os.path.abspath(out)
    staging = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    try:
        os.makedirs(staging)
    except OSError as error:
        raise PipelineError(f"{out}: {error.strerror or error}") from error
    try:
        yield staging
        if os.path.isdir(target):
            os.rmdir(target)
        os.rename(staging, target)
    except OSError as error:
        raise PipelineError(f"{out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_out(out: str, sources: Iterable[Node] = ()) -> None:
    """Raises :class:`PipelineError` where ``out`` cannot be a new directory: see :func:`staged`."""
    target = os.path.realpath(out)
    for node in sources:
        inside = os.path.realpath(node.directory)
        if os.path.commonpath([inside, target]) == inside:
            raise PipelineError(f"{out}: lies in {node.name}, which is not to be changed")
    if os.path.lexists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise PipelineError(f"{out}: is there and not an empty directory")


class _SparkProgress(Progress):
    """A bar of Spark's tasks; asked anew whenever it is drawn, from a second on."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._begun = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[stages]}"),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        self._what = what
        self._task = self.add_task(what, total=None, stages="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if time.monotonic() - self._begun < _AFTER_S:
            return [Group()]
        done = total = 0
        stages = self._tracker.getActiveStageIds()
        for stage in stages:
            if (info := self._tracker.getStageInfo(stage)) is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        said = f"{done:,} of {total:,} tasks, stage {', '.join(map(str, stages))}" if total else "planning"
        self.update(self._task, completed=done, total=total or None, stages=said)
        return super().get_renderables()


@contextmanager
def _bar(spark: SparkSession, what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    with _SparkProgress(spark, what):
        yield
