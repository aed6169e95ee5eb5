"""Errors of a table itself; those of the files are in :mod:`warren.storage.errors`."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class PipelineError(WarrenError):
    """A job, a table or an option that cannot be; the text says why."""
