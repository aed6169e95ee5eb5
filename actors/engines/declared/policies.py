"""Policies: optional arguments that queues and exchanges get by their names, and lose again.

A *policy* has a pattern, a regular expression that is searched for in a name, and a *definition*: its settings, under
the names of queue arguments without their ``x-``. An *operator policy* limits what users may set. Of each kind a queue
or an exchange has at most one: the matching one with the highest priority or, if several have the same priority, the
one whose name comes first.

Both are merged into the *effective policy definition* (:meth:`AppliedPolicies.definition`): if both set a value, the
lower one applies. :mod:`warren.actors.engines.declared.queue_arguments` merges it with a queue's own arguments.

The allowed settings, and the errors for others, are RabbitMQ 3.10's; ``consumer-timeout`` is a later
RabbitMQ's, and ``delayed-retry-…`` is that of a later RabbitMQ's quorum queues and of LavinMQ
(:mod:`warren.actors.engines.declared.retry_policy`). Settings for a cluster, or for queues other than classic ones, are
accepted and have no effect.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, cast

import attrs

from warren.actors.engines.declared.name_patterns import NamePattern
from warren.actors.engines.declared.texts import check_depth, check_short_string, check_texts
from warren.actors.engines.errors import ArgumentsError
from warren.storage.erlang_text import json_pairs, json_text

PolicyKind = Literal["policy", "operator_policy"]
ApplyTo = Literal["all", "queues", "exchanges"]
PolicyTarget = Literal["queue", "exchange"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_APPLY_TO: Final = {"all": ("queue", "exchange"), "queues": ("queue",), "exchanges": ("exchange",)}

# ── what a definition may have ────────────────────────────────────────────────────────────────────────────────────────


def _number_from(minimum: int, maximum: int | None = None) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= minimum and (maximum is None or value <= maximum)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _one_of(*allowed: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(choice) and value == choice for choice in allowed)


def _is_max_age(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+[YMDhms]", value, re.ASCII) is not None


_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "consumer-timeout": (_number_from(1), "consumer timeout"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "delayed-retry-jitter": (_number_from(0, 100), "delayed retry jitter"),
    "delayed-retry-max": (_number_from(1), "delayed retry max"),
    "delayed-retry-min": (_number_from(1), "delayed retry min"),
    "delayed-retry-multiplier": (_number_from(1), "delayed retry multiplier"),
    "delayed-retry-type": (_one_of("disabled", "all", "failed", "returned"), "delayed retry type"),
    "delivery-limit": (_number_from(0), "delivery limit"),
    "expires": (_number_from(1), "queue expiry"),
    "initial-cluster-size": (_number_from(0), "cluster size"),
    "max-age": (_is_max_age, "max age"),
    "max-in-memory-bytes": (_number_from(0), "maximum memory in bytes"),
    "max-in-memory-length": (_number_from(0), "maximum memory in bytes"),
    "max-length": (_number_from(0), "maximum length"),
    "max-length-bytes": (_number_from(0), "maximum length in bytes"),
    "message-ttl": (_number_from(0), "message TTL"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "stream-max-segment-size-bytes": (_number_from(0, 3_000_000_000), "segment size"),
}
"""The check of each setting, and its name in the error text."""

_MIRRORING: Final = (
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-sync-batch-size",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
)
"""Settings of mirrored queues in a cluster. They are accepted if there is a mode, and not checked otherwise."""

_OPERATOR: Final = frozenset(
    {
        "consumer-timeout",
        "delivery-limit",
        "expires",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
    }
)


def _check_definition(kind: PolicyKind, definition: Any) -> None:
    if not isinstance(definition, Mapping):
        raise ArgumentsError(f"parse error while reading policy definition: {json_text(definition)}")
    if not definition:
        raise ArgumentsError("no policy provided")
    for name in definition:
        check_short_string("a policy's setting", name)
    try:
        json.dumps(dict(definition), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentsError(f"a policy's definition is JSON: {error}") from error
    check_texts("a policy's definition", definition)
    setting_names = _OPERATOR if kind == "operator_policy" else {*_CHECKS, *_MIRRORING}
    for name in sorted(setting_names & definition.keys()):
        check, called = _CHECKS.get(name, (None, ""))
        if check is not None and not check(definition[name]):
            raise ArgumentsError(f"{json_text(definition[name])} is not a valid {called}")
    if kind == "policy" and "ha-mode" not in definition and not definition.keys().isdisjoint(_MIRRORING):
        raise ArgumentsError("ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown")
    if unknown := {name: definition[name] for name in definition if name not in setting_names}:
        raise ArgumentsError(f"{json_pairs(unknown)} are not recognised policy settings")


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _frozen(definition: Any) -> Any:
    check_depth("a policy's definition", definition)
    return MappingProxyType(copy.deepcopy(dict(definition))) if isinstance(definition, Mapping) else definition


@attrs.frozen(kw_only=True)
class Policy:
    """One policy or operator policy. Raises :class:`ArgumentsError` with RabbitMQ's text if it is invalid."""

    kind: PolicyKind = "policy"
    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any] = attrs.field(converter=_frozen, hash=False)
    priority: int = 0
    apply_to: ApplyTo = "all"
    _regex: NamePattern = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_short_string("a policy's name", self.name)
        check_short_string("a vhost's name", self.vhost)
        if type(self.priority) is not int:
            raise ArgumentsError(f"priority should be a number, actually was {json_text(self.priority)}")
        if not isinstance(self.pattern, str):
            raise ArgumentsError(f"pattern should be a binary but was {json_text(self.pattern)}")
        check_texts("a pattern", self.pattern)
        try:
            regex = NamePattern(self.pattern)
        except re.error as error:
            raise ArgumentsError(
                f"pattern should be regular expression but is invalid: {_regex_error(error)}"
            ) from error
        object.__setattr__(self, "_regex", regex)
        if not isinstance(self.apply_to, str) or self.apply_to not in _APPLY_TO:
            raise ArgumentsError(
                f"apply-to '{self.apply_to!s:.100}' unrecognised; should be 'queues', 'exchanges' or 'all'"
            )
        _check_definition(self.kind, self.definition)

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} '{self.name}' in vhost '{self.vhost}'"

    def matches(self, target: PolicyTarget, name: str) -> bool:
        """Whether it matches a queue or an exchange of that name."""
        return target in _APPLY_TO[self.apply_to] and self._regex.matches(name)

    def to_json(self) -> dict[str, Any]:
        """As in RabbitMQ's lists and files of policies."""
        return {
            "vhost": self.vhost,
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": copy.deepcopy(dict(self.definition)),
            "priority": self.priority,
        }

    def to_parameter(self) -> dict[str, Any]:
        """As in RabbitMQ's files of parameters, which contain the operator policies."""
        json_of = self.to_json()
        vhost, name = json_of.pop("vhost"), json_of.pop("name")
        return {"vhost": vhost, "component": self.kind, "name": name, "value": json_of}

    @classmethod
    def from_json(cls, kind: PolicyKind, definition: Any) -> Policy:
        """Parse what :meth:`to_json` or a broker wrote; raises :class:`ArgumentsError` for anything else."""
        if not isinstance(definition, Mapping):
            raise ArgumentsError(f"a policy cannot be {definition!r:.100}")
        for key in ("vhost", "name", "pattern", "definition"):
            if key not in definition:
                raise ArgumentsError(f'Key "{key}" not found in {definition.get("name", "a policy")!s:.100}')
        return cls(
            kind=kind,
            vhost=definition["vhost"],
            name=definition["name"],
            pattern=definition["pattern"],
            definition=definition["definition"],
            priority=definition.get("priority", 0),
            apply_to=definition.get("apply-to", "all"),
        )

    @classmethod
    def from_parameter(cls, definition: Mapping[str, Any]) -> Policy:
        """Parse what :meth:`to_parameter` or a broker wrote, which exports the settings as pairs."""
        value = definition.get("value")
        if not isinstance(value, Mapping):
            raise ArgumentsError(f"a policy cannot be {value!r:.100}")
        fields = {**value, **{key: definition[key] for key in ("vhost", "name") if key in definition}}
        settings = value.get("definition")
        if isinstance(settings, list) and all(_is_pair(setting) for setting in settings):
            fields["definition"] = dict(settings)
        return cls.from_json(cast(PolicyKind, definition["component"]), fields)


def _is_pair(setting: object) -> bool:
    return isinstance(setting, list) and len(setting) == 2 and isinstance(setting[0], str)


def _regex_error(error: re.error) -> str:
    return f'{{"{error.msg}",{error.pos or 0}}}'


# ── which one a queue or an exchange has ──────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class AppliedPolicies:
    """The policies of a queue or an exchange: at most one of each kind."""

    policy: Policy | None = None
    operator_policy: Policy | None = None

    @property
    def definition(self) -> Mapping[str, Any]:
        """The effective definition: both merged."""
        if self.policy is None or self.operator_policy is None:
            only = self.policy or self.operator_policy
            return _NOTHING if only is None else only.definition
        user, operator = self.policy.definition, self.operator_policy.definition
        return {**operator, **user, **{name: min(user[name], operator[name]) for name in user.keys() & operator.keys()}}

    def to_json(self) -> dict[str, Any]:
        """As in RabbitMQ's lists of queues and exchanges."""
        return {
            "policy": None if self.policy is None else self.policy.name,
            "operator_policy": None if self.operator_policy is None else self.operator_policy.name,
            "effective_policy_definition": copy.deepcopy(dict(self.definition)),
        }


PoliciesOf = Callable[[str, str], AppliedPolicies]
"""Vhost, queue → the policies of the queue."""


NO_POLICIES: Final = AppliedPolicies()


def by_precedence(policies: Iterable[Policy]) -> list[Policy]:
    """Sort policies; those that take precedence come first."""
    return sorted(policies, key=lambda policy: (-policy.priority, policy.name))
