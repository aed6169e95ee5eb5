"""``warren spark …``: the pipeline's jobs, a command each. Spark is only looked for when one of them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.commands.spark.inspect import inspect

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "inspect": inspect,
}
"""By their names."""
