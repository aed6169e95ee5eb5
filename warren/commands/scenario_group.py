"""``warren simulate``: a group of commands, and a command: whose first word is none of the group's, that is a scenario.

The command for scenarios is in the group under the name :data:`SCENARIO`, which is how the group's help shows it and
nobody means. The group's help has its options too.
"""

from __future__ import annotations

import difflib
import os
from typing import Any, Final, cast

from warren.commands.loading import Group, ListedCommand, prepared

SCENARIO: Final = "SCENARIO.toml"


class ScenarioGroup(Group):
    """The group."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Typer's: the context of this group, or in its place that of the command for scenarios."""
        first = args[0] if args else "--help"
        if first == SCENARIO or not (first == "--help" or first in self.commands):
            if parent is not None and (near := self._meant(first)):
                parent.fail(f"{first!r} is no scenario's file and no command. Did you mean {near!r}?")
            return self._of_scenarios.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: Any) -> list[Any]:
        """Typer's: what the help shows. The group itself is given none of them."""
        ours = self._of_scenarios.command.params
        options = prepared([one for one in ours if one.param_type_name == "option"])
        return [*options, *super().get_params(ctx)]

    @property
    def _of_scenarios(self) -> ListedCommand:
        return cast(ListedCommand, self.commands[SCENARIO])

    def _meant(self, word: str) -> str | None:
        """The command that was mistyped, where it looks like one."""
        if word.startswith("-") or os.path.splitext(word)[1] or os.path.exists(word):
            return None
        return next(iter(difflib.get_close_matches(word, [name for name in self.commands if name != SCENARIO])), None)
