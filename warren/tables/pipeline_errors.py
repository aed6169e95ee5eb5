"""Errors of tables and jobs themselves; those of the files are in :mod:`warren.storage.errors`."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class PipelineError(WarrenError):
    """A job, a table or an option that is not possible; the text says why."""


class MissingSparkError(PipelineError):
    """Spark, or what it needs, is not installed."""

    def __init__(self, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "warrenmq[spark]"')
