"""Spark's errors in one line: the error of our own code in a task if there is one, else the innermost one.

Spark wraps what went wrong: a Python traceback within a Java exception within another, and a stack of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from warren.tables.pipeline_errors import PipelineError

_OURS = re.compile(r"^(?:storage|warren|actors|queue_index|msg_store)\.[\w.]*Error: (.*)", re.MULTILINE)
_PYTHONS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([A-Za-z_][\w.]*(?:: .*)?)")
_JAVAS = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.*)", re.MULTILINE)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn what Spark raises in the block into a :class:`PipelineError` of one line."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise PipelineError(said_by(error)) from error


def said_by(error: BaseException) -> str:
    """Return the line that matters of an error of Spark's."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return "Spark's Java process has ended"
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    if pythons := _PYTHONS.findall(text):
        return f"a task failed: {pythons[-1].strip()}"
    if isinstance(error, PySparkException):
        return text.strip().partition("\n")[0]
    javas = [message.strip() for message in _JAVAS.findall(text) if message.strip()]
    return javas[-1] if javas else text.strip().partition("\n")[0]
