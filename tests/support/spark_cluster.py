"""A Spark cluster on loopback: a standalone master and a worker with two cores, started from the PySpark package.

Their executors' Python is a *bare* one: this interpreter without its site-packages, so that it has neither warren nor
anything that warren needs; ``PYTHONPATH`` may give it what is compiled. It has the name that the driver's Python has on
the driver's PATH, as on a cluster where ``python3`` is another on every machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pyspark

from tests.support.java import SHORT_LIVED
from tests.support.waiting import wait_until
from warren.pipeline.java import java_home

PROJECT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
CORES = 2
PYTHON = "cluster-python"
"""What PYSPARK_PYTHON says."""
SETTINGS = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.executor.memory": "512m",
}
"""Spark's settings for a program that runs on the cluster."""

_START_TIMEOUT_S = 120
_RUN_TIMEOUT_S = 600
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkCluster:
    """A running cluster; ``master`` is its address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.bare_bin = self._bin("bare", f"{shlex.quote(base_python())} -S")
        self.driver_bin = self._bin("driver", shlex.quote(sys.executable))
        self.master = ""

    def __enter__(self) -> Self:
        try:
            log = self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
            self.master = self._wait(log, _MASTER)[1]
            folder = str(self._directory / "worker")
            arguments = ["--port", "0", "--webui-port", "0", "--cores", str(CORES), "--memory", f"{CORES * 600}m"]
            log = self._start("worker", "worker.Worker", *arguments, "--work-dir", folder, self.master)
            self._wait(log, re.compile("Successfully registered with master"))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, command: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A driver that says PYSPARK_PYTHON as the executors know it."""
        path = f"{self.driver_bin}:{os.environ.get('PATH', os.defpath)}"
        said = {**_clean(), "PATH": path, "PYSPARK_PYTHON": PYTHON, "JAVA_HOME": java_home(), **(environment or {})}
        return subprocess.run(
            command, env=said, capture_output=True, text=True, check=False, timeout=_RUN_TIMEOUT_S, cwd=self._directory
        )

    def bare_python(self, script: str, python_path: str) -> subprocess.CompletedProcess[str]:
        """What the executors' Python makes of a script, without Spark."""
        command = [str(self.bare_bin / PYTHON), "-c", script]
        environment = {**_clean(), "PYTHONPATH": python_path}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=self._directory
        )

    def _bin(self, name: str, python: str) -> Path:
        script = self._directory / f"{name}-bin" / PYTHON
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {python} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script.parent

    def _start(self, name: str, what: str, *arguments: str) -> Path:
        log = self._directory / f"{name}.log"
        environment = {
            **_clean(),
            "JAVA_HOME": java_home(),
            "PATH": f"{self.bare_bin}:/usr/bin:/bin",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1"]
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen([*command, *arguments], env=environment, stdout=file, stderr=file, cwd=self._directory)
            )
        return log

    def _wait(self, log: Path, said: re.Pattern[str]) -> re.Match[str]:
        def text() -> str:
            return log.read_text(errors="replace")

        def is_over() -> bool:
            return said.search(text()) is not None or any(process.poll() is not None for process in self._processes)

        wait_until(is_over, f"no {said.pattern!r} in {log}", patience_s=_START_TIMEOUT_S)
        match = said.search(text())
        assert match is not None, f"no {said.pattern!r} in {log}:\n{text()[-2000:]}"
        return match


def write_defaults(directory: Path, settings: Mapping[str, str]) -> None:
    """Let Spark take these settings, beside those of every program, where SPARK_CONF_DIR is ``directory``."""
    lines = "".join(f"{name} {value}\n" for name, value in {**SETTINGS, **settings}.items())
    (directory / "spark-defaults.conf").write_text(lines, encoding="utf-8")


def base_python() -> str:
    """The interpreter that this environment was made of."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def only(distributions: list[str], directory: Path) -> Path:
    """A folder to import from that has these installed distributions and nothing else."""
    directory.mkdir()
    for name in distributions:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = directory / top
            if not link.exists():
                link.symlink_to(str(distribution.locate_file(top)))
    return directory


def _clean() -> dict[str, str]:
    """This environment without the variables of Spark and Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON", "JAVA_HOME"))
    }
