"""Definitions of the source that the destination gets before the messages.

======================  ==========================================================================================
the destination is      it gets
======================  ==========================================================================================
a warren directory      everything
a broker, by its HTTP   everything, as the broker imports definitions
API
a broker, by AMQP only  exchanges, queues and bindings of one vhost, in the vhost of the URL
======================  ==========================================================================================

What is there already stays, and has to be the same. A binding whose exchange or queue is missing is left out, and
named.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from pamqp import commands as c

from warren.commands.opening import opened_node
from warren.salvage.metadata.broker_definitions import of_vhost
from warren.shovel.connection import Connection
from warren.shovel.errors import ChannelRefusedError, ShovelError

Json = dict[str, Any]

PARTS: Final = (
    "vhosts", "users", "permissions", "topic_permissions", "policies", "parameters", "global_parameters", "exchanges",
    "queues", "bindings",
)  # fmt: skip
_OF_AMQP: Final = ("exchanges", "queues", "bindings")
_NOT_FOUND: Final = 404
_ANSWER_S: Final = 600.0
"""How long the HTTP API may take: a broker answers when all is declared."""
_REASON_CHARACTERS: Final = 500


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    """How many definitions of each kind there are."""
    return {part: len(document[part]) for part in PARTS if document.get(part)}


def into_directory(path: str, document: Json, vhost: str | None, notify: Callable[[str], None]) -> dict[str, int]:
    """Import the definitions into the node of a directory, which is created if it is missing; return the numbers.

    ``vhost``: only this one.
    """
    with opened_node(path, make=True) as node:
        if vhost is not None:
            document = of_vhost(document, vhost)
            node.vhost(vhost)  # creates it
        imported = node.import_definitions(document, vhost)
    for sentence in imported.skipped:
        notify(f"skipped: {sentence}")
    return counts(document)


# ── a broker's HTTP API ──────────────────────────────────────────────────────────────────────────────────────────────


def by_management(url: str, document: Json, vhost: str | None, target: str) -> dict[str, int]:
    """Import the definitions through the HTTP API at ``url``, ``http://user:password@host:15672``; return the numbers.

    ``vhost``: only this one, into the vhost ``target``. Raises :class:`ShovelError` if it refuses them.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may quote the password
        host = port = None
    if host is None or parts.scheme not in ("http", "https"):
        raise ShovelError("--management: a URL such as http://user:password@host:15672")
    shown = f"{parts.scheme}://{host}:{port or parts.scheme}"
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    login = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_ANSWER_S, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    path = f"{parts.path.rstrip('/')}/api/definitions"
    if vhost is not None:
        document, path = of_vhost(document, vhost), f"{path}/{quote(target, safe='')}"
    headers = {"authorization": f"Basic {login}", "content-type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(document), headers)
        answer = connection.getresponse()
        reason = answer.read().decode("utf-8", "replace")[:_REASON_CHARACTERS]
    except (OSError, http.client.HTTPException) as error:
        raise ShovelError(f"{shown}: no answer: {error}") from error
    finally:
        connection.close()
    if not http.client.OK <= answer.status < http.client.MULTIPLE_CHOICES:
        raise ShovelError(f"{shown}: refused the definitions: {answer.status} {answer.reason}: {reason}")
    return counts(document)


# ── AMQP ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_amqp(connection: Connection, document: Json, vhost: str | None) -> dict[str, int]:
    """Declare the exchanges, queues and bindings of a vhost in that of the connection; return the numbers.

    ``vhost``: which one; ``None``: the only one that has any. Raises :class:`ShovelError` if something exists with
    other properties.
    """
    document = of_vhost(document, _only_vhost(document) if vhost is None else vhost)
    channel = connection.channel()
    for exchange in document["exchanges"]:
        properties = {name: exchange.get(name, False) for name in ("durable", "auto_delete", "internal")}
        channel.call(
            c.Exchange.Declare,
            exchange=exchange["name"],
            exchange_type=exchange["type"],
            arguments=exchange["arguments"],
            **properties,
        )
    for queue in document["queues"]:
        kind = {} if queue["type"] == "classic" else {"x-queue-type": queue["type"]}
        channel.call(
            c.Queue.Declare,
            queue=queue["name"],
            durable=queue["durable"],
            auto_delete=queue["auto_delete"],
            arguments=kind | queue["arguments"],
        )
    for binding in document["bindings"]:
        is_queue = binding["destination_type"] == "queue"
        target = {"queue" if is_queue else "destination": binding["destination"]}
        target |= {"exchange" if is_queue else "source": binding["source"]}
        try:
            channel.call(
                c.Queue.Bind if is_queue else c.Exchange.Bind,
                routing_key=binding["routing_key"],
                arguments=binding["arguments"],
                **target,
            )
        except ChannelRefusedError as error:
            if error.code != _NOT_FOUND:
                raise
            connection.notify(f"skipped: a binding: {error}")
            channel = connection.channel()
    channel.close()
    return counts({part: document[part] for part in _OF_AMQP})


def _only_vhost(document: Json) -> str:
    vhosts = sorted({item["vhost"] for part in _OF_AMQP for item in document[part]})
    if len(vhosts) > 1:
        raise ShovelError(f"definitions of several vhosts, {', '.join(vhosts)}: choose one with --vhost")
    return vhosts[0] if vhosts else "/"
