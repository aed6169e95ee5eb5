"""Verb: a command of rabbitmqctl: its arguments, what it does, and how its answer is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.hosting.running_node import RunningNode
from warren.verbs.steps import Steps, run
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

Arguments = Mapping[str, Any]
Work = Callable[[RunningNode, Arguments], Any]
"""What a verb does, in the node's process. The answer is JSON."""

Shown = Literal["rows", "text", "json", "nothing"]

DEFAULT_VHOST: Final = "/"


class WrongUsageError(ArgumentsError):
    """Arguments that do not go together."""


@attrs.frozen(kw_only=True)
class Verb:
    """A verb."""

    syntax: str = ""
    """Its arguments, in order: ``name``; ``name?`` may be left out; ``name*`` takes all that are left; ``name:json`` is
    JSON; ``name:object`` is a JSON object. And the options of the command that apply to it: ``--name``."""
    says: str | Callable[[Arguments], str]
    """What is printed before the answer, unless it is empty; names in braces stand for arguments."""
    work: Work
    defaults: Mapping[str, Any] = attrs.Factory(dict)
    """Defaults of options; that of ``vhost`` is ``/`` if it is not given here."""
    shown: Shown = "nothing"
    columns: tuple[str, ...] = ()
    """The columns of a table if the command line names none."""
    all_columns: tuple[str, ...] = ()
    """The columns that the command line can name after the verb."""
    text: Callable[[Any], str] | None = None
    """What is printed for an answer that is not a table."""
    awaits_node: bool = False
    """Whether it waits until a node of another process answers, for the seconds of its option ``timeout``."""
    without_vhost: Any = None
    """The answer if the vhost does not exist, which then is a warning; ``None``: that is an error."""

    @property
    def takes(self) -> tuple[str, ...]:
        """Its arguments, with their marks."""
        return tuple(word for word in self.syntax.split() if not word.startswith("--"))

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(word.removeprefix("--") for word in self.syntax.split() if word.startswith("--"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments, without marks."""
        return tuple(argument.rstrip("?*").partition(":")[0] for argument in self.takes)

    @property
    def json_names(self) -> tuple[str, ...]:
        """The names of the arguments that are JSON."""
        return tuple(name for name, argument in zip(self.names, self.takes, strict=True) if ":" in argument)

    @property
    def object_names(self) -> tuple[str, ...]:
        """The names of the arguments that are JSON objects."""
        return tuple(argument.removesuffix(":object") for argument in self.takes if argument.endswith(":object"))

    @property
    def usage(self) -> str:
        """As ``<user> [<password>]``."""
        words = []
        for argument, name in zip(self.takes, self.names, strict=True):
            word = f"<{name}>"
            words.append(f"[{word}]" if argument.endswith("?") else f"[{word} …]" if argument.endswith("*") else word)
        return " ".join(words)


def performing(
    verb: Callable[..., Steps[Any]],
    syntax: str,
    says: str,
    columns: str = "",
    *,
    of: type[VhostVerbs | UserVerbs] = NodeVerbs,
    shape: Callable[[Any], Any] = lambda answer: answer,
    text: Callable[[Any], str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Verb:
    """Return a verb that is one of the node's, or of a vhost's: it gets the arguments in their order, and the options
    by name.

    ``columns``: if the answer is rows, which ``shape`` makes of it.
    """

    def work(node: RunningNode, arguments: Arguments) -> Any:
        options = {name: arguments[name] for name in made.options}
        performer = of(LocalVhost(node, node.vhost(options.pop("vhost")).name if of is VhostVerbs else "/"))
        return shape(run(verb(performer, *[arguments[name] for name in made.names], **options)))

    shown: Shown = "rows" if columns else "text" if text is not None else "nothing"
    made = Verb(
        syntax=syntax,
        says=says,
        work=work,
        defaults=defaults or {},
        shown=shown,
        columns=tuple(columns.split()),
        text=text,
    )
    return made


def text_verb(work: Work, says: str, syntax: str = "") -> Verb:
    """Return a verb whose answer is printed as text."""
    return Verb(syntax=syntax, says=says, work=work, shown="text", text=str)


def list_verb(
    work: Work, says: str, columns: tuple[str, ...], all_columns: tuple[str, ...], *, in_vhost: bool = False
) -> Verb:
    """Return a verb that answers with rows, of the columns that the command line names.

    ``in_vhost``: whether the rows are those of one vhost.
    """
    return Verb(
        syntax="columns* --vhost" if in_vhost else "columns*",
        says=says,
        work=work,
        without_vhost=[] if in_vhost else None,
        shown="rows",
        columns=columns,
        all_columns=all_columns,
    )
