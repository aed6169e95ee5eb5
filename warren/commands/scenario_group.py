"""``warren simulate``: a group of commands, and a command: a first word that the group does not have is a scenario.

The command for scenarios is in the group under the name :data:`SCENARIO`, which the group's help shows and no user
types. The group's help has its options too.
"""

from __future__ import annotations

import difflib
import os
from typing import Any, Final, cast

from warren.commands.loading import Group, ListedCommand, prepared

SCENARIO: Final = "SCENARIO.toml"
SCENARIO_NAMES: Final = (
    *("burst", "consumer-outage", "embedded", "idle-queues", "lazy", "not-embedded", "not-lazy", "slow-consumer"),
    *("two-queues", "unlimited-prefetch", "wake-idle-queues"),
)
"""The scenarios that come with warren; listed here, so that the help needs nothing of the simulation."""


class ScenarioGroup(Group):
    """The group."""

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
