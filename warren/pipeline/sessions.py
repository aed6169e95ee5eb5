"""A Spark session that has what it needs: a Java, the executors' Python, a network that stays at home, and warren.

A session that is there already is taken as it is; it only learns to read ``format("warren")``. Where spark-submit
started this Python, Spark's Java process is there, and its settings of master, network and Python hold.

Three kinds of masters:

* ``local``, ``local[2]``: all of Spark is in one process here, and so the executors' Python can have warren imported
  before it forks the workers.
* a standalone master on a loopback address: its executors are on this machine too, but are processes of their own,
  whose Python may have no warren until Spark hands it over, as it does here.
* all others: Spark decides which address executors reach this process at, and what Python they have is the cluster's
  (PYSPARK_PYTHON, which names the one that plans here, too). warren is handed over all the same.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Final

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from warren.pipeline.java import process_folder
from warren.pipeline.launching import launch, launch_environment
from warren.pipeline.shipping import pack
from warren.pipeline.spark_errors import said_by
from warren.pipeline.spark_source import WarrenSource
from warren.tables.pipeline_errors import PipelineError

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_TASKS_A_CORE: Final = 2
"""Tasks per core after a shuffle, if all cores are here: Spark's 200 take longer than most work of one machine."""
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_IMPORTED_FIRST: Final = {"spark.python.daemon.module": "warren.pipeline.daemon"}

_LOOPBACK_MASTERS: Final = ("spark://127.", "spark://localhost:", "spark://[::1]:")
_STANDALONE: Final = "spark://"
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.*\]|spark://[^/,]+:\d+(,[^/,]+:\d+)*|yarn|k8s://.+"
)
_CONNECT_TIMEOUT_S: Final = 10


def session(
    master: str | None = None,
    *,
    app_name: str = "warren",
    config: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """The session that is active, or a new one on ``master`` (default: ``local[*]``, or that of spark-submit).

    ``config``: Spark's own settings, which override warren's. ``quiet``: Spark's Java process writes nothing to the
    terminal, not even errors, and what an interrupt does is left as it is. Raises :class:`PipelineError` if there
    is no Java that Spark can use, or no such master.
    """
    active = active_session()
    if active is None:
        active = _submitted(master, app_name, config or {}) if _is_submitted() else None
    if active is None:
        active = _started(master or "local[*]", app_name, config or {}, quiet=quiet)
    register(active)
    return active


def active_session() -> SparkSession | None:
    """The active session of this process, or ``None``."""
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def register(spark: SparkSession) -> None:
    """Let the session read and write ``format("warren")``, its filters handed down to the files.

    With a local master its workers run this Python, which has warren, unless the user has chosen one. A session of
    Spark Connect has no context here: its server's Python must have warren.
    """
    spark.conf.set(PUSHDOWN, "true")
    if not is_connected(spark):
        context = spark.sparkContext
        if _is_local(context.master) and not _has_python(context):
            context.pythonExec = sys.executable
    spark.dataSource.register(WarrenSource)


def is_connected(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, whose Spark runs elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _is_local(master: str | None) -> bool:
    return master is not None and (master == "local" or master.startswith("local["))


def _has_python(context: SparkContext) -> bool:
    """Whether the user has chosen the workers' Python, in the environment or in Spark's settings."""
    settings = (context.getConf().get(f"spark.pyspark.{name}python") for name in ("", "driver."))
    return "PYSPARK_PYTHON" in os.environ or any(settings)


def ship(spark: SparkSession) -> None:
    """Hand warren to the session's executors, whether they have it or not; see :mod:`warren.pipeline.shipping`."""
    path = os.path.join(process_folder(), "warren-shipped.zip")
    pack(path)
    previous = list(sys.path)
    spark.sparkContext.addPyFile(path)
    sys.path[:] = previous  # this Python has what it needs


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted(master: str | None, app_name: str, config: Mapping[str, str]) -> SparkSession:
    """Return a session on the Java process that spark-submit started."""
    return _session_of({**_SETTINGS, **_named(master, app_name), **config})


def _started(master: str, app_name: str, config: Mapping[str, str], *, quiet: bool) -> SparkSession:
    """Return a session on a Java process that is started here."""
    is_local = _is_local(master)
    at_home = is_local or master.startswith(("local-cluster[", *_LOOPBACK_MASTERS))
    check_master(master)
    settings = dict(_SETTINGS)
    if at_home:
        settings |= _LOOPBACK
    if is_local:
        settings |= {**_IMPORTED_FIRST, "spark.sql.shuffle.partitions": str(_TASKS_A_CORE * _cores(master))}
    settings |= {**_named(master, app_name), **config}
    with launch_environment(at_home=at_home, python=sys.executable if at_home else None):
        gateway = launch(settings, quiet=quiet)
        handler = signal.getsignal(signal.SIGINT)
        try:
            spark = _session_of(settings, gateway)
        except PipelineError as error:
            if master.startswith(_STANDALONE) and "stopped SparkContext" in str(error):
                raise PipelineError(f"{master}: what answers there is no master that this Spark can use") from error
            raise
        if not is_local:
            ship(spark)
    if quiet and signal.getsignal(signal.SIGINT) is not handler:  # Spark has its own, which would talk to Java
        signal.signal(signal.SIGINT, handler)
    return spark


def _cores(master: str) -> int:
    """Return the cores of a local master: ``local`` has one, ``local[*]`` those of this machine."""
    count = master.removeprefix("local").strip("[]").partition(",")[0].strip()
    return int(count) if count.isdecimal() else 1 if not count else os.cpu_count() or 1


def _named(master: str | None, app_name: str) -> dict[str, str]:
    return {"spark.app.name": app_name} | ({} if master is None else {"spark.master": master})


def _session_of(settings: Mapping[str, str], gateway: ClientServer | None = None) -> SparkSession:
    try:
        conf = SparkConf()
        for name, value in settings.items():
            conf.set(name, value)
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        raise PipelineError(f"Spark does not start: {said_by(error)}") from error


def check_master(master: str) -> None:
    """Raise :class:`PipelineError` for an invalid name, or if no address of a standalone master answers.

    Spark itself tries for a minute, and then prints a stack trace. Of several addresses (``spark://a:7077,b:7077``) one
    is enough.
    """
    if not _MASTER.fullmatch(master):
        raise PipelineError(
            f"{master}: is no master; local[2], spark://host:7077, yarn and k8s://https://host are some"
        )
    if not master.startswith(_STANDALONE):
        return
    reason = ""
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        else:
            return
    raise PipelineError(f"{master}: there is no master: {reason}")
