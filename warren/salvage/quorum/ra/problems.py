"""What a log's files have that sound ones do not have."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Problem:
    """Something that is damaged, or (a leftover) that a sound log may have after a crash."""

    kind: str
    severity: Literal["damage", "leftover"]
    path: str
    offset: int | None
    """In bytes; ``None`` if it is not a single place."""
    detail: str
