"""Definitions: the export and import of all that is declared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.actors.engines.errors import RefusedError
from warren.aio import bridge
from warren.management.call import Call
from warren.management.http import bad_request, done, json_response, not_found, parse_json
from warren.management.lists import columns_of, pick


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
