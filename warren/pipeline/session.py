"""A Spark session that has what it needs: a Java, the executors' Python, a network that stays at home, and warren.

A session that is there already is taken as it is; it only learns to read ``format("warren")``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from warren.pipeline.errors import PipelineError
from warren.pipeline.java import java_home
from warren.pipeline.source import WarrenSource

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": "warren.pipeline.daemon",
}
"""Where the executors are on this machine too."""

_HOME_MASTERS = ("local", "spark://127.0.0.1:", "spark://localhost:")


def session(
    master: str | None = None, *, app_name: str = "warren", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that is active, or a new one on ``master`` (default: ``local[*]``, or what spark-submit says).

    ``config``: Spark's own settings, stronger than ours. Raises :class:`PipelineError` where there is no Java that
    Spark can use, or no such master.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_ENV_LOADED" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or not submitted:
        builder = builder.master(master or "local[*]")
    settings = dict(_SETTINGS)
    if not submitted and (master or "local").startswith(_HOME_MASTERS):
        settings |= _LOCAL
    for name, value in {**settings, **(config or {})}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise PipelineError(f"Spark does not start: {_first_line(error)}") from error
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Let the session read and write ``format("warren")``, its filters handed down to the files."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(WarrenSource)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
