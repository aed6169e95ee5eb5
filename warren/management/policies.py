"""Policies and operator policies; parameters, of which there are no others; and limits of vhosts, of which none is."""

from __future__ import annotations

from typing import Any

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.policies import Policy, PolicyKind
from warren.management.call import Call
from warren.management.http import Done, HttpError, bad_request, escaped, not_found, required
from warren.management.lists import listed
from warren.management.samples import Document


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


# ── parameters: RabbitMQ keeps operator policies as such ─────────────────────────────────────────────────────────────


async def parameters(call: Call) -> Any:
    """``/api/parameters``, and those of a component, in a vhost."""
    component = call.parts.get("component", "operator_policy")
    found = [one.to_parameter() for one in _policies(call, "operator_policy")] if component == "operator_policy" else []
    return listed(found, call.query, ("vhost", "component", "name"))


async def parameter(call: Call) -> Any:
    """``/api/parameters/:component/:vhost/:name``."""
    running = call.node.actor.vhosts.get(call.vhost)
    if running is not None and call.parts["component"] == "operator_policy":
        found = running.definitions.policies.get("operator_policy", call.parts["name"])
        if found is not None:
            return found.to_parameter()
    raise not_found()


async def put_parameter(call: Call) -> Any:
    """No plugin is there that a parameter could be for. Raises :class:`HttpError`."""
    assert call.vhost_to_change
    required(await call.body(), "value")
    raise _invalid(f"component {call.parts['component']} not found")


async def delete_parameter(call: Call) -> Any:
    """Operator policies are deleted as such. Raises :class:`HttpError`."""
    await parameter(call)
    raise bad_request("an operator policy is deleted by its own path")


async def global_parameters(call: Call) -> Any:
    """``/api/global-parameters``: what the cluster is named."""
    return [{"name": "cluster_name", "value": call.managed.cluster_name}]


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def limits(call: Call) -> Any:
    """``/api/vhost-limits``, and those of a vhost: none."""
    if "vhost" in call.parts:
        assert call.vhost
    return []


async def put_limit(call: Call) -> Any:
    """Vhosts have no limits. Raises :class:`HttpError`."""
    assert call.vhost_to_change
    required(await call.body(), "value")
    raise bad_request("a vhost has no limits here")


async def delete_limit(call: Call) -> Any:
    """There is none."""
    assert call.vhost_to_change
    return Done()
