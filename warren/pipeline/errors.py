"""Errors of the pipeline itself; those of the files are in :mod:`warren.storage.errors`."""

from __future__ import annotations

from warren.tables.errors import PipelineError

__all__ = ["MissingSparkError", "PipelineError"]


class MissingSparkError(PipelineError):
    """Spark, or what it needs, is not installed."""

    def __init__(self, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "warrenmq[spark]"')
