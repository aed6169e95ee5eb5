"""Verb: one of rabbitmqctl's, as it is said, done and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import attrs

from warren.hosting.running_node import RunningNode

Arguments = Mapping[str, Any]
Work = Callable[[RunningNode, Arguments], Any]
"""What a verb does, in the node's process. The answer is JSON."""

Shown = Literal["rows", "text", "json", "nothing"]

DEFAULT_VHOST: Final = "/"


@attrs.frozen(kw_only=True)
class Verb:
    """A verb."""

    takes: tuple[str, ...] = ()
    """The names of what stands behind it, in order: ``name``; ``name?`` may be left out; ``name*`` is all that is left;
    ``name:json`` is JSON."""
    says: str
    """What is printed before the answer; names in braces stand for arguments."""
    work: Work
    options: frozenset[str] = frozenset()
    """Which of the command's options mean something to it."""
    defaults: Mapping[str, Any] = attrs.Factory(dict)
    """What options are where they are not said; ``vhost`` is ``/`` where nothing is said here."""
    shown: Shown = "nothing"
    columns: tuple[str, ...] = ()
    """Of a table: those that it has where none are asked for."""
    all_columns: tuple[str, ...] = ()
    """Those that can be asked for, by names behind the verb."""
    text: Callable[[Any], str] | None = None
    """What is printed for an answer that is no table."""
    without_vhost: Any = None
    """The answer if the vhost does not exist, which then is a warning; ``None``: that is an error."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it takes, without marks."""
        return tuple(one.rstrip("?*").removesuffix(":json") for one in self.takes)

    @property
    def json_names(self) -> tuple[str, ...]:
        """Those that are JSON."""
        return tuple(name for name, one in zip(self.names, self.takes, strict=True) if one.endswith(":json"))

    @property
    def usage(self) -> str:
        """As ``<user> [<password>]``."""
        words = []
        for one, name in zip(self.takes, self.names, strict=True):
            word = f"<{name}>"
            words.append(f"[{word}]" if one.endswith("?") else f"[{word} …]" if one.endswith("*") else word)
        return " ".join(words)
