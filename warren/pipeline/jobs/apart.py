"""Work that is cut into pieces: each done by a task of its own, on whatever machine Spark chooses.

What a piece gives back is small: what is large it writes. A task may be done twice (Spark tries again what failed, and
may let a second one race a slow one), so what it writes has a name that no other attempt has, and the one whose answer
Spark took says that name.
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

Apart = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
"""What does :func:`each_apart`, on some session or without one."""

_ATTEMPTS: Final = "_attempts"
_TRIES: Final = 10


def each_apart(spark: SparkSession, pieces: Sequence[_Piece], work: Callable[[_Piece], _Answer]) -> list[_Answer]:
    """What ``work`` says of each piece, in their order; a task of its own for each, which is sent that piece alone.

    ``work`` is a function of a module, or a partial one; pieces and answers can be pickled.
    """
    if not pieces:
        return []
    return spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()


@contextmanager
def attempts_in(staging: str) -> Iterator[str]:
    """A directory below ``staging`` for what tasks write; what was not moved out of it vanishes in the end."""
    attempts = os.path.join(staging, _ATTEMPTS)
    os.mkdir(attempts)
    yield attempts
    for _ in range(_TRIES):  # a task that lost its race may be at it still
        shutil.rmtree(attempts, ignore_errors=True)
        if not os.path.lexists(attempts):
            return
    raise PipelineError(f"{attempts}: cannot be deleted")


def attempt(attempts: str, name: str) -> str:
    """A path in the directory of attempts that no other attempt has.

    Raises :class:`PipelineError` where this machine does not see that directory.
    """
    if not os.path.isdir(attempts):
        where = Path(attempts).parent
        raise PipelineError(
            f"{where}: is not there on the machine of a task; --out wants a place that all of them share"
        )
    return os.path.join(attempts, f"{name}.{uuid.uuid4().hex}")
