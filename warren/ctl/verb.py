"""Verb: a command of rabbitmqctl: its arguments, what it does, and how its answer is shown."""

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
VHOST: Final = frozenset({"vhost"})


@attrs.frozen(kw_only=True)
class Verb:
    """A verb."""

    takes: tuple[str, ...] = ()
    """The names of its arguments, in order: ``name``; ``name?`` may be left out; ``name*`` takes all that are left;
    ``name:json`` is JSON."""
    says: str
    """What is printed before the answer; names in braces stand for arguments."""
    work: Work
    options: frozenset[str] = frozenset()
    """The options of the command that apply to it."""
    defaults: Mapping[str, Any] = attrs.Factory(dict)
    """Defaults of options; that of ``vhost`` is ``/`` if it is not given here."""
    shown: Shown = "nothing"
    columns: tuple[str, ...] = ()
    """The columns of a table if the command line names none."""
    all_columns: tuple[str, ...] = ()
    """The columns that the command line can name after the verb."""
    text: Callable[[Any], str] | None = None
    """What is printed for an answer that is not a table."""
    without_vhost: Any = None
    """The answer if the vhost does not exist, which then is a warning; ``None``: that is an error."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments, without marks."""
        return tuple(argument.rstrip("?*").removesuffix(":json") for argument in self.takes)

    @property
    def json_names(self) -> tuple[str, ...]:
        """The names of the arguments that are JSON."""
        return tuple(name for name, argument in zip(self.names, self.takes, strict=True) if argument.endswith(":json"))

    @property
    def usage(self) -> str:
        """As ``<user> [<password>]``."""
        words = []
        for argument, name in zip(self.takes, self.names, strict=True):
            word = f"<{name}>"
            words.append(f"[{word}]" if argument.endswith("?") else f"[{word} …]" if argument.endswith("*") else word)
        return " ".join(words)


def text_verb(work: Work, says: str, takes: tuple[str, ...] = (), options: frozenset[str] = frozenset()) -> Verb:
    """Return a verb whose answer is printed as text."""
    return Verb(takes=takes, says=says, work=work, options=options, shown="text", text=str)


def list_verb(
    work: Work, says: str, columns: tuple[str, ...], all_columns: tuple[str, ...], *, in_vhost: bool = False
) -> Verb:
    """Return a verb that answers with rows, of the columns that the command line names.

    ``in_vhost``: whether the rows are those of one vhost.
    """
    return Verb(
        takes=("columns*",),
        says=says,
        work=work,
        options=VHOST if in_vhost else frozenset(),
        without_vhost=[] if in_vhost else None,
        shown="rows",
        columns=columns,
        all_columns=all_columns,
    )
