"""What Spark raises, said in one line: what our own code said in a task if it did, else what lies at the bottom.

Spark wraps what went wrong: a Python traceback within a Java exception within another, and a stack of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from warren.pipeline.errors import PipelineError

_OURS = re.compile(r"^(?:storage|warren|actors|queue_index|msg_store)\.[\w.]*Error: (.*)", re.MULTILINE)
_PYTHONS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([A-Za-z_][\w.]*(?:: .*)?)")
_JAVAS = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.*)", re.MULTILINE)


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark raises within becomes a :class:`PipelineError` of one line."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise PipelineError(said_by(error)) from error


def said_by(error: BaseException) -> str:
    """The one line of an error of Spark's that matters."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return "Spark's Java process has ended"
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    if pythons := _PYTHONS.findall(text):
        return f"a task failed: {pythons[-1].strip()}"
    if isinstance(error, PySparkException):
        return text.strip().partition("\n")[0]
    javas = [said.strip() for said in _JAVAS.findall(text) if said.strip()]
    return javas[-1] if javas else text.strip().partition("\n")[0]
