"""What all jobs that run as a command share: a session, a progress bar, an ``--out`` that is complete or missing.

A job's tables are written below ``--out``: each is a directory of Parquet files, or of files with a JSON object on each
line, which include nulls.

Errors are reported as warren's own: the error of a task, or the first line of Spark's message, without Java's stack.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from warren.pipeline.jobs.surveys import SURVEYED, survey_option
from warren.pipeline.launching import end_process
from warren.pipeline.sessions import active_session, session
from warren.pipeline.spark_errors import spark_errors
from warren.pipeline.spark_schemas import columns_of
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node, find_nodes

FORMATS: Final = ("parquet", "jsonl")
_AFTER_S: Final = 1.0

_ours: SparkSession | None = None
"""The session that was started here, while it runs."""


@contextmanager
def running(what: str, master: str | None, paths: Iterable[str] = ()) -> Iterator[tuple[SparkSession, list[Node]]]:
    """A session with a progress bar that says ``what``, and the nodes of the paths; Spark's errors become warren's.

    A session that was started here is stopped in the end; at once, with all its tasks, after an error or an
    interrupt.
    """
    node_paths = list(paths)
    nodes = find_nodes(node_paths) if node_paths else []
    if (active := active_session()) is not None:
        with spark_errors(), _bar(active, what):
            yield active, nodes
        return
    with _spark_of_ours(master) as spark, spark_errors(), _bar(spark, what):
        yield spark, nodes


@contextmanager
def _spark_of_ours(master: str | None) -> Iterator[SparkSession]:
    global _ours  # noqa: PLW0603
    try:
        with _interrupts(), _silence():
            _ours = session(master, quiet=True)
            yield _ours
            _ours.stop()
    except BaseException:
        _end_ours()
        raise
    finally:
        _ours = None


@contextmanager
def _interrupts() -> Iterator[None]:
    """An interrupt ends Spark first, so that nothing writes while we clean up."""
    was_interrupted = False

    def interrupted(*_: object) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_ours()
        raise KeyboardInterrupt

    previous_handler = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, interrupted)
    except ValueError:  # not in the main thread, where interrupts do not come
        yield
        return
    try:
        yield
    except Exception as error:
        if was_interrupted:  # while it was raised, other code still talked to Spark
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def _silence() -> Iterator[None]:
    """Disable logging: what the bridge to Java would log, with its stacks, is also raised as an exception."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous_level)


def _end_ours() -> None:
    """End the Spark that was started here, if it still runs."""
    global _ours
    spark, _ours = _ours, None
    if spark is not None:
        end_process(spark.sparkContext)


def load(
    spark: SparkSession,
    table: str,
    nodes: Iterable[Node],
    settings: Mapping[str, str] | None = None,
    *,
    columns: Iterable[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Load a table of ``nodes``, with only ``columns`` if given: the other columns are not computed then.

    Several topic stores are surveyed here first, unless the option ``survey`` is given.
    """
    nodes = list(nodes)
    reader = spark.read.format("warren").option("table", table)
    if table in SURVEYED and len(nodes) > 1 and "survey" not in options:
        reader = reader.option("survey", survey_option(spark, nodes, settings or {}))
    if columns is not None:
        reader = reader.schema(columns_of(table, columns))
    if settings:
        reader = reader.option("set", ",".join(f"{name}={value}" for name, value in settings.items()))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load([node.path for node in nodes])


@contextmanager
def staged(out: str, sources: Iterable[Node] = ()) -> Iterator[str]:
    """A new directory beside ``out``, which is renamed to ``out`` on success, and deleted after an error.

    Raises :class:`PipelineError` if ``out`` exists and is not an empty directory, lies in one of the sources, or cannot
    be written.
    """
    check_out(out, sources)
    target = os.path.abspath(out)
    staging = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    new_directories = _missing_above(target)
    try:
        os.makedirs(staging)
        yield staging
        if os.path.isdir(target):
            os.rmdir(target)
        os.rename(staging, target)
    except BaseException as error:
        _end_ours()  # first: other tasks may still be writing
        shutil.rmtree(staging, ignore_errors=True)
        for directory in new_directories:
            with suppress(OSError):
                os.rmdir(directory)
        if isinstance(error, OSError):
            raise PipelineError(f"{out}: {error.strerror or error}") from error
        raise


def _missing_above(target: str) -> list[str]:
    """The missing parent directories, the innermost first."""
    missing = []
    while not os.path.lexists(target := os.path.dirname(target)):
        missing.append(target)
    return missing


def check_out(out: str, sources: Iterable[Node] = ()) -> None:
    """Raise :class:`PipelineError` if ``out`` cannot be a new directory: see :func:`staged`."""
    if "://" in out:
        raise PipelineError(f"{out}: is no directory of a file system that this machine has")
    target = os.path.realpath(out)
    for node in sources:
        inside = os.path.realpath(node.directory)
        if os.path.commonpath([inside, target]) == inside:
            raise PipelineError(f"{out}: lies in {node.name}, which is not to be changed")
    if os.path.lexists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise PipelineError(f"{out}: is there and not an empty directory")


class _SparkProgress(Progress):
    """A bar of Spark's tasks, updated whenever it is drawn, and shown after a delay."""

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
        self._task = self.add_task(what, total=None, stages="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if time.monotonic() - self._begun < _AFTER_S:
            return [Group()]
        done, total, text = self._progress()
        self.tasks[0].total = total or None
        self.update(self._task, completed=done, stages=text)
        return super().get_renderables()

    def _progress(self) -> tuple[int, int, str]:
        """Return the number of tasks that are done, of all tasks, and a text about them."""
        done = total = active = 0
        try:
            stages = sorted(self._tracker.getActiveStageIds())
            for info in filter(None, map(self._tracker.getStageInfo, stages)):
                done, total = done + info.numCompletedTasks, total + info.numTasks
                active += info.numActiveTasks
        except (Py4JError, ConnectionError, OSError):  # Spark is gone; the caller that waits for it gets the error
            return 0, 0, ""
        if not total:
            return 0, 0, "planning"
        if not done and not active:
            return 0, total, f"{total:,} tasks wait for executors"
        return done, total, f"{done:,} of {total:,} tasks, stage {', '.join(map(str, stages))}"


@contextmanager
def _bar(spark: SparkSession, what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    with _SparkProgress(spark, what):
        yield


# ── tables below --out ───────────────────────────────────────────────────────────────────────────────────────────────


def check_format(name: str | None) -> None:
    """Raise :class:`PipelineError` for an unknown format. ``None`` means that no format is given."""
    if name not in (None, *FORMATS):
        raise PipelineError(f"--format {name}: is not parquet or jsonl")


def write_tables(tables: Mapping[str, DataFrame], out: str, output_format: str, sources: Iterable[Node]) -> None:
    """Write each table into the directory of its name; the only one with an empty name into ``out`` itself."""
    with staged(out, sources) as staging:
        for name, frame in tables.items():
            writer = frame.write.mode("overwrite")
            target = os.path.join(staging, name) if name else staging
            if output_format == "parquet":
                writer.parquet(target)
            else:
                writer.option("ignoreNullFields", "false").json(target)
