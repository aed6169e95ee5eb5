"""Runtime parameters: settings of a vhost, or of the whole node, besides queues, exchanges and bindings.

A parameter of a vhost has a *component*, a name and a value, which is JSON. One of RabbitMQ's components has an effect
here: ``vhost-limits``, whose only parameter, ``limits``, says how many connections and queues a vhost may have.
(Policies are not parameters here.) All others (``shovel``, ``federation-upstream``, …) and the node's *global*
parameters are stored and exported again unchanged.

One thread changes them; any thread may read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.actors.engines.declared.changes import ChangeNotes, NotedTable
from warren.actors.engines.declared.texts import check_short_string, check_texts
from warren.actors.engines.declared.users import checked_limits
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError, PreconditionFailedError

VHOST_LIMITS: Final = ("max-connections", "max-queues")
LIMITS_COMPONENT: Final = "vhost-limits"
LIMITS_NAME: Final = "limits"
POLICY_COMPONENTS: Final = ("policy", "operator_policy")
"""The components in which RabbitMQ stores policies."""


class Parameters:
    """A node's parameters. ``notes`` collects the changes."""

    __slots__ = ("_global", "_parameters")

    def __init__(self, notes: ChangeNotes | None = None) -> None:
        change_notes = ChangeNotes() if notes is None else notes
        self._parameters: NotedTable[tuple[str, str, str], Any] = NotedTable(
            change_notes,
            "parameter",
            lambda key, value: {"vhost": key[0], "component": key[1], "name": key[2], "value": value},
        )
        self._global: NotedTable[str, Any] = NotedTable(
            change_notes, "global_parameter", lambda name, value: {"name": name, "value": value}
        )

    # ── of a vhost ──────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, vhost: str, component: str, name: str, value: Any) -> bool:
        """Set a parameter; return whether it changed. The caller ensures that the vhost exists.

        Raises :class:`ArgumentsError`, and :class:`AccessRefusedError` for a policy.
        """
        checked = checked_parameter(component, name, value)
        return self._parameters.put((vhost, component, name), checked)

    def clear(self, vhost: str, component: str, name: str) -> None:
        """Raises :class:`NotFoundError`."""
        if not self._parameters.drop((vhost, component, name)):
            raise NotFoundError(f"no parameter '{name}' of component '{component}' in vhost '{vhost}'")

    def vhost_limits(self, vhost: str) -> dict[str, int]:
        """How many connections and queues a vhost may have (:data:`VHOST_LIMITS`); below 0: any number."""
        limits: dict[str, int] = self._parameters.get((vhost, LIMITS_COMPONENT, LIMITS_NAME)) or {}
        return limits

    def check_queue_limit(self, vhost: str, queue: str, count: int) -> None:
        """Raise :class:`PreconditionFailedError` if a vhost with ``count`` queues may not have another one."""
        limit = self.vhost_limits(vhost).get("max-queues", -1)
        if 0 <= limit <= count:
            raise PreconditionFailedError(
                f"cannot declare queue '{queue}': queue limit in vhost '{vhost}' ({limit}) is reached"
            )

    def forget_vhost(self, vhost: str) -> None:
        """Remove the parameters of a deleted vhost."""
        for key, _ in self._parameters:
            if key[0] == vhost:
                self._parameters.drop(key)

    def in_vhost(self, vhost: str | None = None, component: str | None = None) -> list[dict[str, Any]]:
        """The parameters of one vhost, of one component, or all, as in RabbitMQ's definitions."""
        return [
            item
            for item in self._parameters.to_json()
            if vhost in (None, item["vhost"]) and component in (None, item["component"])
        ]

    # ── of the node ─────────────────────────────────────────────────────────────────────────────────────────────

    def set_global(self, name: str, value: Any) -> bool:
        """Set a global parameter; return whether it changed. Raises :class:`ArgumentsError`."""
        check_short_string("a parameter's name", name)
        check_texts("a parameter", value)
        return self._global.put(name, value)

    def clear_global(self, name: str) -> None:
        """Raises :class:`NotFoundError`."""
        if not self._global.drop(name):
            raise NotFoundError(f"no global parameter '{name}'")

    def global_value(self, name: str) -> Any:
        """Return a global parameter's value, ``None`` if it does not exist."""
        return self._global.get(name)

    def of_node(self) -> list[dict[str, Any]]:
        """The global parameters, as in RabbitMQ's definitions."""
        return self._global.to_json()

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """The parts ``parameters`` and ``global_parameters`` of RabbitMQ's definitions."""
        return {"parameters": self.in_vhost(), "global_parameters": self.of_node()}

    def check_invariants(self, vhosts: Mapping[str, object]) -> None:
        """Raise ``RuntimeError`` if a parameter names a vhost that does not exist."""
        for (vhost, component, name), _ in self._parameters:
            if vhost not in vhosts:
                raise RuntimeError(f"parameter {component} {name} in vhost '{vhost}'")


def means_something(component: str) -> bool:
    """Whether parameters of this component have an effect."""
    return component == LIMITS_COMPONENT


def checked_parameter(component: Any, name: Any, value: Any) -> Any:
    """Check a parameter; return its normalized value. Raises :class:`ArgumentsError`, :class:`AccessRefusedError`."""
    check_short_string("a parameter's component", component)
    check_short_string("a parameter's name", name)
    if component in POLICY_COMPONENTS:
        raise AccessRefusedError("policies may not be set as parameters")
    if component != LIMITS_COMPONENT:
        check_texts("a parameter", value)
        return value
    if name != LIMITS_NAME:
        raise ArgumentsError(f"{LIMITS_COMPONENT} has one parameter, {LIMITS_NAME}, and none of the name '{name:.100}'")
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        value = {str(limit): number for limit, number in value}  # as a broker writes it in some places
    return checked_limits("vhost limits", value, VHOST_LIMITS)
