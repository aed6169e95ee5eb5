"""Work that is cut into pieces: each piece is a parallel task, on whatever machine Spark chooses.

What a task returns is small; what is large it writes to a *task output*, a file or directory. Spark may run a task
twice (it repeats what failed, and may start a second one beside a slow one). So every run has an output of its own, and
the driver takes those whose names are in the answers that Spark took.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from warren.pipeline.errors import PipelineError

_Piece = TypeVar("_Piece")
_Answer = TypeVar("_Answer")

ParallelMap = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
""":func:`map_parallel` on some session, or what stands in for it without Spark."""

_OUTPUTS: Final = "_task_outputs"
_TRIES: Final = 10


def map_parallel(spark: SparkSession, pieces: Sequence[_Piece], work: Callable[[_Piece], _Answer]) -> list[_Answer]:
    """``work`` of each piece, in their order; each is a task of its own, which is sent that piece alone.

    ``work`` is a function of a module, or a partial one; pieces and answers can be pickled.
    """
    if not pieces:
        return []
    return spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()


@contextmanager
def task_outputs(staging: str) -> Iterator[str]:
    """A directory below ``staging`` for task outputs. Those that were not moved out of it are deleted in the end."""
    outputs = os.path.join(staging, _OUTPUTS)
    os.mkdir(outputs)
    yield outputs
    for _ in range(_TRIES):  # a task whose answer was not taken may still write
        shutil.rmtree(outputs, ignore_errors=True)
        if not os.path.lexists(outputs):
            return
    raise PipelineError(f"{outputs}: cannot be deleted")


def task_output(outputs: str, name: str) -> str:
    """A path in the directory of task outputs that no other run of a task has.

    Raises :class:`PipelineError` where this machine does not see that directory.
    """
    if not os.path.isdir(outputs):
        directory = Path(outputs).parent
        raise PipelineError(
            f"{directory}: is not there on the machine of a task; --out wants a place that all of them share"
        )
    return os.path.join(outputs, f"{name}.{uuid.uuid4().hex}")
