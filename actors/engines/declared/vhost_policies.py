"""The policies of one vhost, and which of them a queue or an exchange has. All of them are durable."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from warren.actors.engines.declared.changes import ChangeNotes
from warren.actors.engines.declared.policies import (
    NO_POLICIES,
    AppliedPolicies,
    Policy,
    PolicyKind,
    PolicyTarget,
    by_precedence,
)
from warren.actors.engines.errors import NotFoundError


@attrs.define(eq=False, repr=False)
class VhostPolicies:
    """One caller at a time."""

    _notes: ChangeNotes
    _changed: Callable[[], object]
    """Called after each change, and after it was undone."""
    _by_kind: dict[PolicyKind, dict[str, Policy]] = attrs.field(init=False)
    _ordered: dict[PolicyKind, list[Policy]] = attrs.field(init=False)
    """In order of precedence."""

    def __attrs_post_init__(self) -> None:
        self._by_kind = {"policy": {}, "operator_policy": {}}
        self._ordered = {"policy": [], "operator_policy": []}

    def all(self, kind: PolicyKind) -> list[Policy]:
        """In the order of a broker's lists, which is the reverse order of precedence."""
        return self._ordered[kind][::-1]

    def get(self, kind: PolicyKind, name: str) -> Policy | None:
        """The policy of that name, if there is one."""
        return self._by_kind[kind].get(name)

    def put(self, policy: Policy) -> bool:
        """Set a policy, replacing one of the same name; return whether that changed anything."""
        before = self.get(policy.kind, policy.name)
        if before == policy:
            return False
        self._notes.note("put", policy.kind, policy.to_json())
        self._set(policy.kind, policy.name, policy)
        return True

    def clear(self, kind: PolicyKind, name: str) -> None:
        """Remove a policy. Raises :class:`NotFoundError`."""
        policy = self.get(kind, name)
        if policy is None:
            raise NotFoundError("Parameter does not exist")
        self._notes.note("drop", kind, policy.to_json())
        self._set(kind, name, None)

    def clear_all(self) -> None:
        """Remove all policies, because the vhost is deleted."""
        for kind, policies in self._by_kind.items():
            for name in list(policies):
                self.clear(kind, name)

    def _set(self, kind: PolicyKind, name: str, policy: Policy | None) -> None:
        policies = self._by_kind[kind]
        before = policies.pop(name, None)
        if policy is not None:
            policies[name] = policy
        self._ordered[kind] = by_precedence(policies.values())
        self._notes.undo.append(lambda: self._set(kind, name, before))
        self._changed()

    def of(self, target: PolicyTarget, name: str) -> AppliedPolicies:
        """The policies of a queue or an exchange."""
        if not any(self._ordered.values()):
            return NO_POLICIES
        applied = {
            kind: next((policy for policy in policies if policy.matches(target, name)), None)
            for kind, policies in self._ordered.items()
        }
        return AppliedPolicies(**applied) if any(applied.values()) else NO_POLICIES
