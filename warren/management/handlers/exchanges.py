"""Exchanges and bindings: listed, declared, deleted."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from warren.actors.engines.declared.exchanges import (
    DEFAULT_EXCHANGE,
    DELAYED,
    EXCHANGE_TYPES,
    Binding,
    DestinationType,
    ExchangeDeclaration,
)
from warren.actors.engines.declared.vhost_definitions import VhostDefinitions, is_builtin
from warren.actors.engines.errors import AccessRefusedError, NotFoundError
from warren.management.call import Call
from warren.management.handlers.overview import disable_stats
from warren.management.http import Long, arguments_of, bad_request, boolean, done, in_pieces, not_found, with_rests
from warren.management.lists import listed
from warren.management.past import Past
from warren.management.samples import Document

_BINDING_ORDER = ("vhost", "source", "type", "destination", "routing_key", "properties_key")
_HASH_BYTES = 4


# ── exchanges ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def exchange_json(exchange: ExchangeDeclaration) -> Document:
    """Return an exchange as the API shows it."""
    by = "rmq-internal" if is_builtin(exchange.name) else "guest"
    return exchange.to_json() | {"user_who_performed_action": by}


def _shown(call: Call, vhost: VhostDefinitions, exchange: ExchangeDeclaration, past: Past) -> Document:
    """Return an exchange with its policy, if any, and its traffic, if any."""
    applied, document = vhost.policies.of("exchange", exchange.name), exchange_json(exchange)
    if applied.policy is not None:
        document["policy"] = applied.policy.name
    if exchange.type == DELAYED:
        document["messages_delayed"] = call.node.vhost(exchange.vhost).waiting_of_exchange(exchange.name)
    key = exchange.vhost, exchange.name
    if (traffic := call.managed.clients.traffic.exchanges.get(key)) is not None and not disable_stats(call):
        document["message_stats"] = call.managed.samples.rates_of(("exchange", key), traffic.to_json(), past)
    return document


async def exchanges(call: Call) -> Any:
    """``/api/exchanges``, ``/api/exchanges/:vhost``."""
    past = call.past
    shown = (_shown(call, vhost, exchange, past) for vhost in call.listed_definitions for exchange in vhost.exchanges())
    documents = await in_pieces(shown)
    return Long(lambda: listed(documents, call.query, pages=True))


def _find(call: Call) -> ExchangeDeclaration:
    definitions = call.definitions_of(call.vhost)
    try:
        if definitions is not None:
            return definitions.exchange(call.exchange_part("exchange"))
    except NotFoundError:
        pass
    raise not_found()


async def exchange(call: Call) -> Any:
    """``/api/exchanges/:vhost/:exchange``."""
    document = _shown(call, call.node.vhost(call.vhost).definitions, _find(call), call.past)
    return document if disable_stats(call) else {"incoming": [], "outgoing": []} | document


async def put_exchange(call: Call) -> Any:
    """Declare an exchange."""
    vhost, name = call.vhost_to_change, call.exchange_part("exchange")
    body = await call.body()
    arguments = arguments_of(body)
    call.check(vhost, "exchange", name, "configure")
    if isinstance(alternate := arguments.get("alternate-exchange"), str):
        call.check(vhost, "exchange", name, "read")
        call.check(vhost, "exchange", alternate, "write")
    if not name:
        raise AccessRefusedError("operation not permitted on the default exchange")
    definitions = call.node.vhost(vhost).definitions
    new = not definitions.has("exchange", name)
    kind = body.get("type", "direct")
    if kind not in EXCHANGE_TYPES:
        raise bad_request(f"unknown exchange type '{kind}'")
    declaration = ExchangeDeclaration(
        vhost=vhost,
        name=name,
        type=kind,
        durable=boolean(body.get("durable")),
        auto_delete=boolean(body.get("auto_delete")),
        internal=boolean(body.get("internal")),
        arguments=arguments,
    )
    await call.managed.change(lambda registry: registry.declare_exchange(declaration))
    return done(new)


async def delete_exchange(call: Call) -> Any:
    """Delete an exchange, with ``if-unused``."""
    declaration = _find(call)
    call.check(declaration.vhost, "exchange", declaration.name, "configure")
    if_unused = call.query.get("if-unused") == "true"
    await call.managed.change(
        lambda registry: registry.delete_exchange(declaration.vhost, declaration.name, if_unused=if_unused)
    )
    return done()


# ── bindings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def properties_key(binding: Binding) -> str:
    """What stands for a binding's routing key and arguments in a path."""
    key = quote_plus(binding.routing_key, errors="surrogateescape").replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    arguments = json.dumps(binding.to_json()["arguments"], sort_keys=True).encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(arguments).digest()[:_HASH_BYTES]).decode().rstrip("=")
    return f"{key}~{digest}"


def binding_json(binding: Binding) -> Document:
    """Return a binding as the API shows it."""
    return binding.to_json() | {"properties_key": properties_key(binding)}


def _list(call: Call, bindings: Iterable[Binding]) -> Any:
    return Long(lambda: listed((binding_json(binding) for binding in with_rests(bindings)), call.query, _BINDING_ORDER))


async def bindings(call: Call) -> Any:
    """``/api/bindings``, ``/api/bindings/:vhost``."""
    return _list(call, (binding for vhost in call.listed_definitions for binding in _all(vhost)))


def _all(vhost: VhostDefinitions) -> Iterator[Binding]:
    """Yield all bindings, including those of the default exchange, which exist without being declared."""
    for queue in vhost.queues():
        yield from (binding for binding in vhost.bindings_to("queue", queue.name) if binding.source == DEFAULT_EXCHANGE)
    yield from vhost.bindings()


async def bindings_from(call: Call) -> Any:
    """``/api/exchanges/:vhost/:exchange/bindings/source``."""
    definitions, name = call.definitions_of(call.vhost), call.exchange_part("exchange")
    if definitions is None or not definitions.has("exchange", name):
        return []
    return _list(call, (binding for binding in _all(definitions) if binding.source == name))


async def bindings_to_exchange(call: Call) -> Any:
    """``/api/exchanges/:vhost/:exchange/bindings/destination``."""
    return _to(call, "exchange", call.exchange_part("exchange"))


async def bindings_to_queue(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/bindings``."""
    return _to(call, "queue", call.parts["queue"])


def _to(call: Call, kind: DestinationType, name: str) -> Any:
    definitions = call.definitions_of(call.vhost)
    if definitions is None or not definitions.has(kind, name):
        return []
    return _list(call, definitions.bindings_to(kind, name))


def _ends(call: Call) -> tuple[str, DestinationType, str]:
    kinds: dict[str, DestinationType] = {"q": "queue", "e": "exchange"}
    kind = kinds.get(call.parts["type"])
    if kind is None:
        raise not_found()
    name = call.parts["destination"] if kind == "queue" else call.exchange_part("destination")
    return call.exchange_part("source"), kind, name


def _between(call: Call) -> list[Binding]:
    source, kind, name = _ends(call)
    definitions = call.definitions_of(call.vhost)
    if definitions is None or not definitions.has(kind, name):
        return []
    return [binding for binding in definitions.bindings_to(kind, name) if binding.source == source]


async def bindings_between(call: Call) -> Any:
    """``/api/bindings/:vhost/e/:source/:type/:destination``."""
    return _list(call, _between(call))


async def post_binding(call: Call) -> Any:
    """Declare a binding; the answer has its location."""
    source, kind, name = _ends(call)
    vhost, body = call.vhost_to_change, await call.body()
    binding = Binding(
        vhost=vhost,
        source=source,
        destination=name,
        destination_type=kind,
        routing_key=str(body.get("routing_key") or ""),
        arguments=arguments_of(body),
    )
    _check(call, binding)
    await call.managed.change(lambda registry: registry.bind(binding, call))
    path = f"{quote(name, safe='', errors='surrogateescape')}/{quote(properties_key(binding), safe='~')}"
    return done(new=True, location=path)


def _check(call: Call, binding: Binding) -> None:
    vhost, source = binding.vhost, binding.source
    if DEFAULT_EXCHANGE in (source, binding.destination):
        raise AccessRefusedError("operation not permitted on the default exchange")
    call.check(vhost, binding.destination_type, binding.destination, "write")
    call.check(vhost, "exchange", source, "read")
    definitions = call.definitions_of(vhost)
    if definitions is not None and definitions.has("exchange", source):
        call.check_topic(vhost, source, binding.routing_key, "read")


def _one(call: Call) -> Binding:
    key = unquote_plus(call.parts["key"])
    for binding in _between(call):
        if key in (properties_key(binding), unquote_plus(properties_key(binding))):
            return binding
    raise not_found()


async def binding(call: Call) -> Any:
    """``/api/bindings/:vhost/e/:source/:type/:destination/:key``."""
    return binding_json(_one(call))


async def delete_binding(call: Call) -> Any:
    """Delete a binding."""
    binding = _one(call)
    _check(call, binding)
    await call.managed.change(lambda registry: registry.unbind(binding, call))
    return done()
