"""Commands that are imported when they are run.

A group lists its commands without importing them: each is a :class:`ListedCommand`, which knows where its function
stands and how the list describes it. The function's module is imported for its own help, for the completion of its
options, and to run it.

``warren simulate`` is a group of commands, and a command: a first word that the group does not have is a scenario. The
command for scenarios is in the group under the name :data:`SCENARIO`, which the group's help shows and no user types.
The group's help has its options too.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Final, cast, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from warren.commands.running import EXIT_ERROR, USAGE_ERROR, guarded

SCENARIO: Final = "SCENARIO.toml"
SCENARIO_NAMES: Final = (
    *("burst", "consumer-outage", "embedded", "idle-queues", "lazy", "not-embedded", "not-lazy", "slow-consumer"),
    *("two-queues", "unlimited-prefetch", "wake-idle-queues"),
)
"""The scenarios that come with warren; listed here, so that the help needs nothing of the simulation."""


def prepared(params: list[Any]) -> list[Any]:
    """The same parameters, as our commands have them.

    A flag takes no value, and its help says no type. Typer shows one for flags too (from 0.29 on); what is set here is
    what it asks for first. And text is taken as it is (:class:`_Text`).
    """
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if hasattr(param, "get_runtime_param") and not isinstance(param.get_runtime_param, _Text):
            param.get_runtime_param = _Text(param.get_runtime_param)
    return params


class _Text:
    """Converts what needs no conversion, and leaves all else to Typer.

    Typer's conversion (from 0.29 on) imports Pydantic, which takes longer than all that a small command imports. Other
    versions of Typer do not ask for a conversion in this way.
    """

    def __init__(self, typers: Callable[[], Any]) -> None:
        self._typers = typers

    def __call__(self) -> _Text:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Typer's: the value of a parameter."""
        is_list, annotation = param.multiple or param.nargs == -1, param.type_descriptor.annotation
        if value is None:
            return () if is_list else None
        if is_list and annotation == list[str] and all(isinstance(text, str) for text in value):
            return list(value)
        if annotation is str and isinstance(value, str):
            return value
        return self._typers().coerce(value, param=param, ctx=ctx)


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return prepared(super().get_params(ctx))


class Group(TyperGroup):
    """Commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return prepared(super().get_params(ctx))


class ListedCommand(Command):
    """Stands for a command in its group, until that is needed."""

    def __init__(
        self, name: str, home: str, summary: str, *, hidden: bool = False, usage_exit_code: int = EXIT_ERROR
    ) -> None:
        """``home``: ``module:function``; ``summary``: the first paragraph of the function's docstring.

        ``hidden``: the group's help leaves it out. ``usage_exit_code``: for arguments that the command does not take.
        """
        super().__init__(name, help=summary, hidden=hidden)
        self.home = home
        self.usage_exit_code = usage_exit_code

    @cached_property
    def command(self) -> Any:
        """The command itself; imports its module."""
        module, _, function = self.home.partition(":")
        return as_command(str(self.name), getattr(importlib.import_module(module), function))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Typer's: the context of the command itself."""
        try:
            return self.command.make_context(info_name, args, parent, **extra)
        except USAGE_ERROR as error:
            error.exit_code = self.usage_exit_code
            raise


class ScenarioGroup(Group):
    """``warren simulate``: its commands, and in place of a command a scenario."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Typer's: the context of this group, or in its place that of the command for scenarios."""
        first = args[0] if args else "--help"
        if first == SCENARIO or not (first == "--help" or first in self.commands):
            if parent is not None and (near := self._meant(first)):
                parent.fail(f"{first!r} is neither a scenario nor a command. Did you mean {near!r}?")
            return self._of_scenarios.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: Any) -> list[Any]:
        """Typer's: what the help shows. The group itself is given none of them."""
        scenario_params = self._of_scenarios.command.params
        options = prepared([param for param in scenario_params if param.param_type_name == "option"])
        return [*options, *super().get_params(ctx)]

    @property
    def _of_scenarios(self) -> ListedCommand:
        return cast(ListedCommand, self.commands[SCENARIO])

    def _meant(self, word: str) -> str | None:
        """The command or built-in scenario that was mistyped, if the word looks like one."""
        if word.startswith("-") or os.path.splitext(word)[1] or os.path.exists(word) or word in SCENARIO_NAMES:
            return None
        names = [*SCENARIO_NAMES, *(name for name in self.commands if name != SCENARIO)]
        return next(iter(difflib.get_close_matches(word, names)), None)


def as_command(name: str, function: Callable[..., None]) -> Any:
    """Typer's command for a function."""
    app = typer.Typer(add_completion=False)
    app.command(name, cls=Command)(guarded(with_options(function)))
    return typer.main.get_command(app)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command for Typer: each parameter whose type is a class is replaced by the parameters of that class.

    Options that belong together are the fields of such a class. The command gets them as one value.
    """
    parameters: list[Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in signature(function, eval_str=True).parameters.items():
        if not isinstance(group := parameter.annotation, type):
            parameters.append(parameter)
            continue
        hints = get_type_hints(group, include_extras=True)
        fields = signature(group).parameters.values()
        parameters += [field.replace(annotation=hints[field.name]) for field in fields]
        groups[name] = group, [field.name for field in fields]

    @wraps(function)
    def run(**arguments: Any) -> None:
        values = {
            name: group(**{field: arguments.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        function(**arguments, **values)

    options = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    cast(Any, run).__signature__ = Signature(options)
    return run


def new_group(
    name: str, summary: str, commands: Iterable[TyperCommand | TyperGroup], cls: type[Group] = Group, **options: Any
) -> Group:
    """Return a group of the commands, which shows its help if no command is named."""
    return cls(
        name=name,
        help=summary,
        commands={str(command.name): command for command in commands},
        no_args_is_help=True,
        **options,
    )
