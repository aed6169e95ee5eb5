"""What goes wrong with a table itself; what is wrong with the files is said by :mod:`warren.storage.errors`."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class PipelineError(WarrenError):
    """A job, a table or an option that cannot be; the text says why."""
