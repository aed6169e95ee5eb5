"""The data pipeline: dead brokers' directories as Spark tables, topics as streams, and jobs over whole fleets.

The same code that reads one directory on one machine reads it here; Spark distributes the work. ::

    from warren import pipeline

    spark = pipeline.session()
    messages = spark.read.format("warren").option("table", "messages").load("/disks/broker-*/")

Spark comes with ``pip install "warrenmq[spark]"``; without it everything else of warren works.

=========================================  ==============================================================
:mod:`~warren.pipeline.sessions`           a session that has what it needs, Java included
:mod:`~warren.pipeline.spark_source`             ``format("warren")``: what Spark asks, handed on to tables
``warren.pipeline.jobs``                   the jobs, a module each
:mod:`warren.tables`                       the tables, which do without Spark, too
=========================================  ==============================================================
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from warren.tables.pipeline_errors import MissingSparkError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MissingSparkError", "PipelineError", "register", "session"]

_LEAST_SPARK: Final = (4, 2)


def session(
    master: str | None = None, *, app_name: str = "warren", config: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session that reads ``format("warren")``: see :func:`warren.pipeline.sessions.session`."""
    spark: SparkSession = part("sessions").session(master, app_name=app_name, config=config)
    return spark


def register(spark: SparkSession) -> None:
    """Let an existing session read ``format("warren")``: see :func:`warren.pipeline.sessions.register`."""
    part("sessions").register(spark)


def part(name: str) -> Any:
    """Import a module that needs Spark. Raises :class:`PipelineError` if Spark is missing: see :func:`check_spark`."""
    import importlib

    check_spark()
    return importlib.import_module(f"warren.pipeline.{name}")


def check_spark() -> None:
    """Raise :class:`MissingSparkError` if Spark is not installed, and :class:`PipelineError` if it is too old."""
    import importlib.util

    for package in ("pyspark", "py4j", "pyarrow", "pandas"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise MissingSparkError(package)
    import pyspark.version

    version = pyspark.version.__version__
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _LEAST_SPARK:
        least = ".".join(map(str, _LEAST_SPARK))
        raise PipelineError(
            f'PySpark {version} is installed; warren needs {least} or newer: pip install "warrenmq[spark]"'
        )
