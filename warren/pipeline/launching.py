"""How Spark's Java process is started: which Java, with what environment, and what it may write to the terminal.

Spark writes a lot while it starts, before it can be told not to. A configuration of its log, passed to Java itself,
leaves only errors. If the user has one, in a ``conf`` folder of Spark's, that is used. A command keeps the process's
output off the terminal; what matters of it comes as an exception.

A process that no longer answers is ended with all that it started.

The environment is changed while the process starts, and then restored.
"""

from __future__ import annotations

import os
import shlex
import subprocess  # nosec B404 # lists of arguments, no shell
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast

from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from warren.pipeline.java import java_home, process_folder
from warren.tables.pipeline_errors import PipelineError

_END_TIMEOUT_S: Final = 3

_LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""The gateway's own level is set, because it sets the whole log's level to its own, and would log that."""


def launch(settings: Mapping[str, str], *, quiet: bool) -> ClientServer | None:
    """Start a Java process with these settings of Spark's; return ``None`` if this Python has one already.

    ``quiet``: nothing that it writes comes to the terminal. Raises :class:`PipelineError` if it does not start.
    """
    if getattr(SparkContext, "_gateway", None) is not None:
        return None
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    with tempfile.TemporaryFile() as stderr:
        try:
            streams = {"stdout": subprocess.DEVNULL, "stderr": stderr} if quiet else None
            return cast(ClientServer, launch_gateway(conf, streams))
        except (PySparkException, OSError) as error:
            raise PipelineError(f"Spark does not start: {_reason(stderr.fileno()) or error}") from error


@contextmanager
def launch_environment(*, at_home: bool, python: str | None) -> Iterator[None]:
    """The environment in which Spark is started; ``at_home``: all of it runs on this machine.

    ``python``: that of the executors, unless PYSPARK_PYTHON is set.
    """
    variables = {"JAVA_HOME": java_home(), "SPARK_SUBMIT_OPTS": _java_options()}
    if python is not None:
        variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or python
    if at_home:  # a machine may be unable to resolve its own name
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_process(context: SparkContext) -> None:
    """End Spark and its tasks' processes on this machine at once, without calling Spark.

    For sessions that cannot continue: an interrupt has broken off the conversation in the middle of an answer, and
    after a failure other tasks may still be writing. Executors elsewhere end when they lose this process.
    """
    import psutil

    java = getattr(context._gateway, "proc", None)
    context._jsc = None  # so that stop() does not call Java
    context.stop()
    if java is None or java.poll() is not None:
        return
    java_process = psutil.Process(java.pid)
    family = [java_process, *java_process.children(recursive=True)]
    java.terminate()
    _, alive = psutil.wait_procs(family, timeout=_END_TIMEOUT_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    java.wait()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _java_options() -> str:
    """Return the options for Java; those that the user set in the environment come last, and win."""
    user_options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if _has_log_configuration():
        return user_options
    path = Path(process_folder(), "log4j2.properties")
    if not path.exists():
        path.write_text(_LOG, encoding="utf-8")
    return f"{shlex.quote(f'-Dlog4j2.configurationFile={path.as_uri()}')} {user_options}".strip()


def _has_log_configuration() -> bool:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    return bool(folder) and any(Path(str(folder)).glob("log4j2*.*"))


def _reason(descriptor: int) -> str:
    """Return the first error that Java wrote; else an empty text."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file]
    errors = [line for line in lines if line.startswith(("Error", "Exception", "Unrecognized", "Could not"))]
    return next(iter(errors), "")
