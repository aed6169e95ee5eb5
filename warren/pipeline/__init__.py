"""The data pipeline: dead brokers' directories as Spark tables, topics as streams, and jobs over whole fleets.

The same code that reads one directory on one machine reads it here; Spark distributes the work. ::

    from warren import pipeline

    spark = pipeline.session()
    messages = spark.read.format("warren").option("table", "messages").load("/disks/broker-*/")

Spark comes with ``pip install "warren[spark]"``; without it everything else of warren works.

=========================================  ==============================================================
:mod:`~warren.pipeline.session`            a session that has what it needs, Java included
:mod:`~warren.pipeline.source`             ``format("warren")``: what Spark asks, handed on to tables
:mod:`~warren.pipeline.schemas`            every table's columns
:mod:`~warren.pipeline.places`             what paths name: the directories, each one's kind
:mod:`~warren.pipeline.table`              what a table is: how it is planned, how a task reads its part
``warren.pipeline.tables``                 the tables, a module each
``warren.pipeline.jobs``                   the jobs, a module each
=========================================  ==============================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warren.pipeline.errors import MissingSparkError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MissingSparkError", "PipelineError", "register", "session"]


def session(
    master: str | None = None, *, app_name: str = "warren", config: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session that reads ``format("warren")``: see :func:`warren.pipeline.session.session`."""
    return part("session").session(master, app_name=app_name, config=config)  # type: ignore[no-any-return]


def register(spark: SparkSession) -> None:
    """Let a session that is there read ``format("warren")``: see :func:`warren.pipeline.session.register`."""
    part("session").register(spark)


def part(name: str) -> Any:
    """A module that needs Spark; raises :class:`MissingSparkError` where it is not installed."""
    import importlib  # noqa: PLC0415

    try:
        return importlib.import_module(f"warren.pipeline.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "pyarrow", "py4j"):
            raise MissingSparkError(error.name or "pyspark") from error
        raise
