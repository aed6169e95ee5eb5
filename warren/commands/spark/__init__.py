"""``warren spark …``: the pipeline's jobs, a command each. Spark is only looked for when one of them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.commands.spark.backlog import backlog
from warren.commands.spark.compact import compact
from warren.commands.spark.export import export
from warren.commands.spark.inspect import inspect
from warren.commands.spark.load import load
from warren.commands.spark.pack import pack
from warren.commands.spark.rebuild import rebuild
from warren.commands.spark.republish import republish
from warren.commands.spark.verify import verify

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "inspect": inspect,
    "verify": verify,
    "compact": compact,
    "export": export,
    "load": load,
    "republish": republish,
    "rebuild": rebuild,
    "pack": pack,
    "backlog": backlog,
}
"""By their names."""
