"""AccessPlan: what an import of definitions would do to users, permissions and parameters.

Existing users get the password, the tags and the limits of the definitions, as with RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from warren.actors.engines.declared.parameters import checked_parameter, means_something
from warren.actors.engines.declared.permissions import (
    Permissions,
    TopicPermissions,
    permissions_of,
    topic_permissions_of,
)
from warren.actors.engines.declared.texts import check_short_string, check_texts
from warren.actors.engines.declared.users import User, Users
from warren.actors.engines.errors import ArgumentsError


@attrs.define
class AccessPlan:
    """Each ``plan_…`` takes one item of a part, and raises :class:`ArgumentsError` if it is invalid."""

    _present: Users
    _has_vhost: Callable[[str], bool]
    users: dict[str, User] = attrs.field(init=False, factory=dict)
    permissions: dict[tuple[str, str], Permissions] = attrs.field(init=False, factory=dict)
    """By user and vhost."""
    topic_permissions: dict[tuple[str, str, str], TopicPermissions] = attrs.field(init=False, factory=dict)
    """By user, vhost and exchange."""
    parameters: dict[tuple[str, str, str], Any] = attrs.field(init=False, factory=dict)
    """By vhost, component and name."""
    global_parameters: dict[str, Any] = attrs.field(init=False, factory=dict)

    def plan_user(self, item: Mapping[str, Any]) -> None:
        user = self._present.from_json(item)
        self.users[user.name] = user

    def plan_permission(self, item: Mapping[str, Any]) -> None:
        self.permissions[self._user(item), self._vhost(item)] = permissions_of(item)

    def plan_topic_permission(self, item: Mapping[str, Any]) -> None:
        exchange = item.get("exchange")
        check_short_string("an exchange's name", exchange)
        self.topic_permissions[self._user(item), self._vhost(item), str(exchange)] = topic_permissions_of(item)

    def plan_parameter(self, item: Mapping[str, Any]) -> None:
        component, name = item.get("component"), item.get("name")
        value = checked_parameter(component, name, item.get("value"))
        self.parameters[self._vhost(item), str(component), str(name)] = value

    def plan_global_parameter(self, item: Mapping[str, Any]) -> None:
        name, value = item.get("name"), item.get("value")
        check_short_string("a parameter's name", name)
        check_texts("a parameter", value)
        self.global_parameters[str(name)] = value

    @property
    def without_effect(self) -> dict[str, int]:
        """The numbers of items that have no effect here and are exported again."""
        meaningless = [key for key in self.parameters if not means_something(key[1])]
        counts = {"parameters": len(meaningless), "global_parameters": len(self.global_parameters)}
        return {part: count for part, count in counts.items() if count}

    def _user(self, item: Mapping[str, Any]) -> str:
        name = item.get("user")
        if not isinstance(name, str) or (name not in self.users and name not in self._present):
            raise ArgumentsError(f"permissions of '{name!s:.100}', who is no user")
        return name

    def _vhost(self, item: Mapping[str, Any]) -> str:
        name = item.get("vhost")
        if not isinstance(name, str) or not self._has_vhost(name):
            raise ArgumentsError(f"{_called(item)} in vhost '{name!s:.100}': there is no such vhost")
        return name


def _called(item: Mapping[str, Any]) -> str:
    if "component" in item:
        return f"parameter '{item['component']!s:.100}' '{item.get('name')!s:.100}'"
    return f"permissions of '{item.get('user')!s:.100}'"
