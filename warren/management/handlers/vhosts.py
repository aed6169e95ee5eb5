"""Vhosts: listed, declared, deleted, started; with the sums of what is in them; and the definitions of all that is
declared, exported and imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.actors.engines.errors import RefusedError
from warren.aio import bridge
from warren.ctl.node_verbs import set_tracing
from warren.management.call import Call
from warren.management.handlers.overview import client_rates, client_sums, disable_stats, octets
from warren.management.http import bad_request, boolean, done, json_response, not_found, parse_json
from warren.management.lists import columns_of, listed, pick
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


async def definitions(call: Call) -> Any:
    """``/api/definitions``, ``/api/definitions/:vhost``; ``download``: as a file of that name. The answer is a
    backup, so bytes that are not UTF-8 survive."""
    vhost = call.parts.get("vhost")
    if vhost is not None and vhost not in call.vhosts:
        raise bad_request("vhost_not_found")
    document = await call.managed.run(call.node.definitions(vhost))
    for queue in document["queues"]:
        queue.pop("type", None)
    if vhost is None:
        document = {**document, "product_name": "RabbitMQ", "product_version": BROKER_VERSION}
    headers = {}
    if (name := call.query.get("download")) is not None:
        quoted = "".join(character for character in name if character.isalnum() or character in "-_. @")
        headers["content-disposition"] = f'attachment; filename="{quoted or "definitions.json"}"'
    return json_response(pick(document, columns_of(call.query)), headers=headers, errors="backslashreplace")


async def import_definitions(call: Call) -> Any:
    """Declare what a document defines."""
    body = await call.raw_body()
    try:
        document = await bridge.in_thread(lambda: parse_json(body)) if body else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise bad_request("failed_to_parse_json")
    vhost = call.parts.get("vhost")
    vhosts = call.vhosts
    if vhost is None:
        unknown = await bridge.in_thread(lambda: _unknown_vhost(document, vhosts))
        if unknown is not None:
            raise bad_request(["no_such_vhost", unknown])
    elif vhost not in vhosts:
        raise not_found("vhost_not_found")
    try:
        await call.managed.run(call.verbs.import_definitions(document, vhost))
    except RefusedError as error:
        raise bad_request(str(error)) from error
    return done()


def _unknown_vhost(document: dict[str, Any], vhosts: Iterable[str]) -> Any:
    """The first vhost that a definition names and that neither the node nor the document has."""
    candidates = [*vhosts, *(vhost.get("name") for vhost in _items(document, "vhosts"))]
    names = frozenset(name for name in candidates if isinstance(name, str))
    for part in ("queues", "exchanges", "bindings", "permissions", "policies"):
        for definition in _items(document, part):
            name = definition.get("vhost")
            if name is not None and not (isinstance(name, str) and name in names):
                return name
    return None


def _items(document: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Return the objects of a part; the node rejects other values."""
    entries = document.get(part)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
