"""Policies, operator policies, parameters and limits of vhosts."""

from __future__ import annotations

from typing import Any, Final

from warren.actors.engines.declared.erlang_text import erlang_pairs, erlang_text
from warren.actors.engines.declared.parameters import LIMITS_COMPONENT, LIMITS_NAME, VHOST_LIMITS
from warren.actors.engines.declared.policies import Policy, PolicyKind
from warren.actors.engines.errors import ArgumentsError
from warren.management.call import Call
from warren.management.http import Done, HttpError, bad_request, escaped, not_found, required
from warren.management.lists import listed
from warren.management.samples import Document
from warren.management.users import define


def _kind(call: Call) -> PolicyKind:
    return "operator_policy" if call.request.url.path.startswith("/api/operator-policies") else "policy"


def _policies(call: Call, kind: PolicyKind) -> list[Policy]:
    found = [call.node.actor.vhosts.get(vhost) for vhost in call.listed_vhosts]
    return [policy for one in found if one is not None for policy in one.definitions.policies.all(kind)]


async def policies(call: Call) -> Any:
    """``/api/policies``, ``/api/operator-policies``, and those of a vhost."""
    return listed([policy.to_json() for policy in _policies(call, _kind(call))], call.query)


def _find(call: Call) -> Policy:
    running = call.node.actor.vhosts.get(call.vhost)
    found = None if running is None else running.definitions.policies.get(_kind(call), call.parts["name"])
    if found is None:
        raise not_found()
    return found


async def policy(call: Call) -> Any:
    """``/api/policies/:vhost/:name``."""
    return _find(call).to_json()


async def put_policy(call: Call) -> Any:
    """``pattern``, ``definition``, ``priority`` and ``apply-to``."""
    vhost, name, kind = call.vhost_to_change, call.parts["name"], _kind(call)
    said = await call.body()
    pattern, definition = required(said, "pattern", "definition")
    item: Document = {"vhost": vhost, "name": name, "pattern": pattern, "definition": definition}
    item |= {key: said[key] for key in ("priority", "apply-to") if key in said}
    try:
        found = Policy.from_json(kind, item)
    except ArgumentsError as error:
        raise _invalid(str(error), kind) from error
    new = call.node.vhost(vhost).definitions.policies.get(kind, name) is None
    await call.managed.change(lambda actor: actor.set_policy(found))
    return Done(new)


def _invalid(why: str, kind: PolicyKind = "operator_policy") -> HttpError:
    reason = f"Validation failed\n\n{why}\n"
    return bad_request(escaped(reason) if kind == "policy" else reason)


async def delete_policy(call: Call) -> Any:
    """It holds no more."""
    found = _find(call)
    await call.managed.change(lambda actor: actor.clear_policy(found.kind, found.vhost, found.name))
    return Done()


# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────────

KEPT_COMPONENTS: Final = frozenset({"shovel", "federation", "federation-upstream", "federation-upstream-set"})
"""Those of RabbitMQ's plugins: kept and given out again, as definitions have them."""


async def parameters(call: Call) -> Any:
    """``/api/parameters``, and those of a component, in a vhost. RabbitMQ has operator policies among them."""
    component = call.parts.get("component")
    found = [one.to_parameter() for one in _policies(call, "operator_policy")] if component != "policy" else []
    known = set(call.listed_vhosts)
    found += [one for one in call.node.actor.parameters.in_vhost() if one["vhost"] in known]
    chosen = [one for one in found if component in (None, one["component"])]
    return listed(chosen, call.query, ("vhost", "component", "name"))


async def parameter(call: Call) -> Any:
    """``/api/parameters/:component/:vhost/:name``."""
    component, name = call.parts["component"], call.parts["name"]
    if component == "operator_policy" and (running := call.node.actor.vhosts.get(call.vhost)) is not None:
        found = running.definitions.policies.get("operator_policy", name)
        if found is not None:
            return found.to_parameter()
    for one in call.node.actor.parameters.in_vhost(call.vhost, component):
        if one["name"] == name:
            return one
    raise not_found()


async def put_parameter(call: Call) -> Any:
    """``value``: a vhost's limits, or what a component of one of RabbitMQ's plugins has."""
    vhost, component, name = call.vhost_to_change, call.parts["component"], call.parts["name"]
    (value,) = required(await call.body(), "value")
    if component == "policy":
        raise bad_request("policies may not be set using this method")
    if component == LIMITS_COMPONENT and isinstance(value, dict):
        for limit, number in value.items():
            _check_limit(limit, number, "policy")
    elif component not in KEPT_COMPONENTS:
        raise _invalid(f"component {component} not found")
    known = call.node.actor.parameters.in_vhost(vhost, component)
    await define(call, lambda definitions: definitions.set_parameter(vhost, component, name, value))
    return Done(new=all(one["name"] != name for one in known))


async def delete_parameter(call: Call) -> Any:
    """It is no more. Operator policies are deleted by their own paths."""
    await parameter(call)
    vhost, component, name = call.vhost, call.parts["component"], call.parts["name"]
    if component == "operator_policy":
        raise bad_request("an operator policy is deleted by its own path")
    await define(call, lambda definitions: definitions.parameters.clear(vhost, component, name))
    return Done()


async def global_parameters(call: Call) -> Any:
    """``/api/global-parameters``."""
    return listed(call.node.actor.parameters.of_node(), call.query, ("name",))


async def global_parameter(call: Call) -> Any:
    """``/api/global-parameters/:name``."""
    for one in call.node.actor.parameters.of_node():
        if one["name"] == call.parts["name"]:
            return one
    raise not_found()


async def put_global_parameter(call: Call) -> Any:
    """``value``."""
    name = call.parts["name"]
    (value,) = required(await call.body(), "value")
    new = all(one["name"] != name for one in call.node.actor.parameters.of_node())
    await define(call, lambda definitions: definitions.parameters.set_global(name, value))
    return Done(new)


async def delete_global_parameter(call: Call) -> Any:
    """It is no more."""
    await global_parameter(call)
    await define(call, lambda definitions: definitions.parameters.clear_global(call.parts["name"]))
    return Done()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def limits(call: Call) -> Any:
    """``/api/vhost-limits``, and those of a vhost."""
    one, known = call.one_vhost, call.node.actor.parameters
    chosen = call.visible_vhosts if one is None else [one]
    found = [{"vhost": vhost, "value": limits} for vhost in chosen if (limits := known.vhost_limits(vhost))]
    return listed(found, call.query, ("vhost",))


async def put_limit(call: Call) -> Any:
    """``value``: how many ``max-connections`` or ``max-queues``."""
    vhost, name = call.vhost_to_change, call.parts["name"]
    (value,) = required(await call.body(), "value")
    _check_limit(name, value)
    await _set_limits(call, vhost, call.node.actor.parameters.vhost_limits(vhost) | {name: value})
    return Done()


def _check_limit(name: str, value: Any, kind: PolicyKind = "operator_policy") -> None:
    if name not in VHOST_LIMITS:
        raise _invalid(f"Unrecognised terms {erlang_pairs({name: value})} in limits", kind)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(f"{name} should be a number, actually was {erlang_text(value)}", kind)


async def delete_limit(call: Call) -> Any:
    """Any number from now on."""
    vhost, known = call.vhost_to_change, call.node.actor.parameters
    kept = known.vhost_limits(vhost)
    left = {name: value for name, value in kept.items() if name != call.parts["name"]}
    if left != kept:
        await _set_limits(call, vhost, left)
    return Done()


async def _set_limits(call: Call, vhost: str, found: dict[str, int]) -> None:
    await define(call, lambda known: known.set_parameter(vhost, LIMITS_COMPONENT, LIMITS_NAME, found))
