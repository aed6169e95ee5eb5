"""Vhosts: listed, declared, deleted, started; with the sums of what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.ctl.node_verbs import set_tracing
from warren.management.call import Call
from warren.management.handlers.overview import client_rates, client_sums, disable_stats, octets
from warren.management.http import bad_request, boolean, done
from warren.management.lists import listed
from warren.management.samples import Document, NodeSample


def _vhost(call: Call, name: str, sample: NodeSample | None, sums: Mapping[str | None, Counter[str]]) -> Document:
    metadata = call.node.registry.definitions.metadata(name)
    description = metadata.description or ("Default virtual host" if name == "/" else "")
    document: Document = {
        "name": name,
        "description": description,
        "tags": list(metadata.tags),
        "default_queue_type": metadata.default_queue_type or "undefined",
        "metadata": {"description": description, "tags": list(metadata.tags)},
        "tracing": name in call.node.registry.traced,
        "cluster_state": {call.managed.node_name: "stopped" if name in call.node.registry.down else "running"},
    }
    if sample is None:
        return document
    managed, past, of_clients = call.managed, call.past, sums.get(name, Counter())
    lengths, counted = managed.samples.totals(sample, name, past)
    document |= lengths | octets(managed, name, of_clients, past)
    if counted:
        document["message_stats"] = counted | client_rates(managed, name, of_clients, past)
    return document


async def vhosts(call: Call) -> Any:
    """``/api/vhosts``."""
    sample = None if disable_stats(call) else await call.sample()
    sums = client_sums(call.managed)
    documents = [_vhost(call, name, sample, sums) for name in call.visible_vhosts]
    return listed(documents, call.query, ("name",), pages=True)


async def vhost(call: Call) -> Any:
    """``/api/vhosts/:vhost``."""
    name = call.vhost
    sample = None if disable_stats(call) else await call.sample()
    return _vhost(call, name, sample, client_sums(call.managed))


async def put_vhost(call: Call) -> Any:
    """Declare a vhost; the user gets all permissions in it."""
    body = await call.body()
    traced = boolean(body["tracing"]) if "tracing" in body else None
    if isinstance(body.get("tags"), str):
        body["tags"] = [tag for tag in body["tags"].split(",") if tag]
    metadata = VhostMetadata.from_json(body)
    name, user = call.parts["vhost"], call.user.name
    new = name not in call.vhosts
    await call.managed.change(lambda registry: registry.declare_vhost(name))

    def describe(definitions: Definitions) -> None:
        if new:
            definitions.users.set_permissions(user, name, ".*", ".*", ".*")
        if metadata is not None:
            definitions.describe_vhost(name, metadata)

    await call.managed.change(lambda registry: registry.define(describe))
    if traced is not None:
        set_tracing(call.node, name, on=traced)
    return done(new)


async def delete_vhost(call: Call) -> Any:
    """Delete a vhost with everything in it."""
    name = call.vhost
    await call.managed.change(lambda registry: registry.delete_vhost(name))
    return done()


async def start_vhost(call: Call) -> Any:
    """``/api/vhosts/:vhost/start/:node``: it runs, or is tried again by itself."""
    if call.vhost in call.node.registry.down:
        raise bad_request(f"vhost '{call.vhost}' is down: {call.node.registry.down[call.vhost]}")
    return done(new=True)
