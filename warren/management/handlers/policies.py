"""Policies, operator policies, parameters and limits of vhosts."""

from __future__ import annotations

from typing import Any, Final

from warren.actors.engines.declared.parameters import LIMITS_COMPONENT, VHOST_LIMITS
from warren.actors.engines.declared.policies import Policy, PolicyKind
from warren.actors.engines.errors import ArgumentsError
from warren.management.call import Call
from warren.management.http import HttpError, bad_request, done, escaped, not_found, required
from warren.management.lists import listed
from warren.management.samples import Document
from warren.storage.erlang_text import json_pairs, json_text


def _kind(call: Call) -> PolicyKind:
    return "operator_policy" if call.request.url.path.startswith("/api/operator-policies") else "policy"


def _policies(call: Call, kind: PolicyKind) -> list[Policy]:
    return [policy for definitions in call.listed_definitions for policy in definitions.policies.all(kind)]


async def policies(call: Call) -> Any:
    """``/api/policies``, ``/api/operator-policies``, and those of a vhost."""
    return listed([policy.to_json() for policy in _policies(call, _kind(call))], call.query)


def _find(call: Call) -> Policy:
    definitions = call.definitions_of(call.vhost)
    policy = None if definitions is None else definitions.policies.get(_kind(call), call.parts["name"])
    if policy is None:
        raise not_found()
    return policy


async def policy(call: Call) -> Any:
    """``/api/policies/:vhost/:name``."""
    return _find(call).to_json()


async def put_policy(call: Call) -> Any:
    """``pattern``, ``definition``, ``priority`` and ``apply-to``."""
    vhost, name, kind = call.vhost_to_change, call.parts["name"], _kind(call)
    body = await call.body()
    pattern, definition = required(body, "pattern", "definition")
    document: Document = {"vhost": vhost, "name": name, "pattern": pattern, "definition": definition}
    document |= {key: body[key] for key in ("priority", "apply-to") if key in body}
    try:
        policy = Policy.from_json(kind, document)
    except ArgumentsError as error:
        raise _invalid(str(error), kind) from error
    new = call.node.vhost(vhost).definitions.policies.get(kind, name) is None
    await call.managed.change(lambda registry: registry.set_policy(policy))
    return done(new)


def _invalid(problem: str, kind: PolicyKind = "operator_policy") -> HttpError:
    reason = f"Validation failed\n\n{problem}\n"
    return bad_request(escaped(reason) if kind == "policy" else reason)


async def delete_policy(call: Call) -> Any:
    """Delete a policy."""
    policy = _find(call)
    await call.managed.change(lambda registry: registry.clear_policy(policy.kind, policy.vhost, policy.name))
    return done()


# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────────

KEPT_COMPONENTS: Final = frozenset({"shovel", "federation", "federation-upstream", "federation-upstream-set"})
"""The components of RabbitMQ's plugins: their parameters are stored and returned, as definitions have them."""


async def parameters(call: Call) -> Any:
    """``/api/parameters``, and those of a component, in a vhost. RabbitMQ has operator policies among them."""
    component = call.parts.get("component")
    documents = (
        [policy.to_parameter() for policy in _policies(call, "operator_policy")] if component != "policy" else []
    )
    vhosts = set(call.listed_vhosts)
    documents += [parameter for parameter in call.node.registry.parameters.in_vhost() if parameter["vhost"] in vhosts]
    chosen = [parameter for parameter in documents if component in (None, parameter["component"])]
    return listed(chosen, call.query, ("vhost", "component", "name"))


async def parameter(call: Call) -> Any:
    """``/api/parameters/:component/:vhost/:name``."""
    component, name = call.parts["component"], call.parts["name"]
    if component == "operator_policy" and (definitions := call.definitions_of(call.vhost)) is not None:
        policy = definitions.policies.get("operator_policy", name)
        if policy is not None:
            return policy.to_parameter()
    for document in call.node.registry.parameters.in_vhost(call.vhost, component):
        if document["name"] == name:
            return document
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
    existing = call.node.registry.parameters.in_vhost(vhost, component)
    await call.managed.run(call.verbs.users.set_parameter(component, name, value, vhost=vhost))
    return done(new=all(parameter["name"] != name for parameter in existing))


async def delete_parameter(call: Call) -> Any:
    """Delete a parameter. Operator policies are deleted by their own paths."""
    await parameter(call)
    vhost, component, name = call.vhost, call.parts["component"], call.parts["name"]
    if component == "operator_policy":
        raise bad_request("an operator policy is deleted by its own path")
    await call.managed.run(call.verbs.users.clear_parameter(component, name, vhost=vhost))
    return done()


async def global_parameters(call: Call) -> Any:
    """``/api/global-parameters``."""
    return listed(call.node.registry.parameters.of_node(), call.query, ("name",))


async def global_parameter(call: Call) -> Any:
    """``/api/global-parameters/:name``."""
    for parameter in call.node.registry.parameters.of_node():
        if parameter["name"] == call.parts["name"]:
            return parameter
    raise not_found()


async def put_global_parameter(call: Call) -> Any:
    """``value``."""
    name = call.parts["name"]
    (value,) = required(await call.body(), "value")
    new = all(parameter["name"] != name for parameter in call.node.registry.parameters.of_node())
    await call.managed.run(call.verbs.users.set_global_parameter(name, value))
    return done(new)


async def delete_global_parameter(call: Call) -> Any:
    """Delete a global parameter."""
    await global_parameter(call)
    await call.managed.run(call.verbs.users.clear_global_parameter(call.parts["name"]))
    return done()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def limits(call: Call) -> Any:
    """``/api/vhost-limits``, and those of a vhost."""
    only_vhost, parameters = call.one_vhost, call.node.registry.parameters
    vhosts = call.visible_vhosts if only_vhost is None else [only_vhost]
    documents = [{"vhost": vhost, "value": limits} for vhost in vhosts if (limits := parameters.vhost_limits(vhost))]
    return listed(documents, call.query, ("vhost",))


async def put_limit(call: Call) -> Any:
    """``value``: how many ``max-connections`` or ``max-queues``."""
    vhost, name = call.vhost_to_change, call.parts["name"]
    (value,) = required(await call.body(), "value")
    _check_limit(name, value)
    limits = call.node.registry.parameters.vhost_limits(vhost) | {name: value}
    await call.managed.run(call.verbs.users.set_vhost_limits(limits, vhost=vhost))
    return done()


def _check_limit(name: str, value: Any, kind: PolicyKind = "operator_policy") -> None:
    if name not in VHOST_LIMITS:
        raise _invalid(f"Unrecognised terms {json_pairs({name: value})} in limits", kind)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(f"{name} should be a number, actually was {json_text(value)}", kind)


async def delete_limit(call: Call) -> Any:
    """Delete a limit of a vhost."""
    vhost, parameters = call.vhost_to_change, call.node.registry.parameters
    limits = parameters.vhost_limits(vhost)
    remaining = {name: value for name, value in limits.items() if name != call.parts["name"]}
    if remaining != limits:
        await call.managed.run(call.verbs.users.set_vhost_limits(remaining, vhost=vhost))
    return done()
