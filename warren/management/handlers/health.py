"""Health checks: ``{"status": "ok"}``, or 503 with the reason."""

from __future__ import annotations

from typing import Any, Final, get_args

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.permissions import Right
from warren.management.call import Call
from warren.management.handlers.overview import listeners
from warren.management.http import bad_request, done, failed, integer, not_found
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs

_OK: Final = {"status": "ok"}
_ALIVENESS_QUEUE: Final = "aliveness-test"
_UNITS: Final = frozenset({"day", "days", "week", "weeks", "month", "months", "year", "years"})
_PROTOCOLS: Final = {"amqp091": "amqp", "amqp0-9-1": "amqp", "amqp-0-9-1": "amqp", "amqp": "amqp", "http": "http"}


async def aliveness_test(call: Call) -> Any:
    """Declares a queue, publishes a message to it and gets it."""
    vhost, name = call.vhost, _ALIVENESS_QUEUE
    for right in get_args(Right):
        call.check(vhost, "queue", name, right)
    declaration = QueueDeclaration(vhost=vhost, name=name, durable=False)
    entry = await call.managed.change(lambda registry: registry.declare_queue(declaration, call))
    verbs = QueueVerbs(LocalQueue(call.node, entry))
    await call.managed.run(verbs.publish(b"test_message", persistent=False, timeout=10.0))
    await call.managed.run(verbs.get_many(1, auto_ack=True))
    return _OK


async def alarms(call: Call) -> Any:
    """The alarms of this node, which is the whole cluster."""
    resources = (await call.managed.run(call.node.memory()))["alarms"]
    if not resources:
        return _OK
    node = call.managed.node_name
    return failed({
        "status": "failed",
        "reason": "There are alarms in effect in the cluster",
        "alarms": [{"node": node, "resource": resource} for resource in resources],
    })  # fmt: skip


async def node(call: Call) -> Any:
    """``/api/healthchecks/node``: no alarm is set, and every vhost runs."""
    if call.parts.get("node", call.managed.node_name) != call.managed.node_name:
        raise not_found()
    resources = (await call.managed.run(call.node.memory()))["alarms"]
    down = sorted(call.node.registry.down)
    if resources or down:
        reason = f"resource alarm(s) in effect:{resources}" if resources else f"virtual host(s) down: {', '.join(down)}"
        return failed({"status": "failed", "reason": reason})
    return _OK


async def certificate_expiration(call: Call) -> Any:
    """No certificate is looked at; only the parameters are checked."""
    if call.parts["unit"] not in _UNITS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    integer(call.parts["within"])
    return _OK


async def port_listener(call: Call) -> Any:
    """Whether something listens on a port."""
    try:
        port = int(call.parts["port"])
    except ValueError:
        raise bad_request("Invalid port") from None
    ports = [listener["port"] for listener in listeners(call)]
    if port in ports:
        return {"status": "ok", "port": port}
    return failed({"status": "failed", "reason": "No active listener", "missing": port, "ports": ports})


async def protocol_listener(call: Call) -> Any:
    """Whether something listens that speaks a protocol."""
    requested = call.parts["protocol"]
    protocol = _PROTOCOLS.get(requested, requested)
    protocols = sorted({listener["protocol"] for listener in listeners(call)})
    if protocol in protocols:
        return {"status": "ok", "protocol": protocol}
    return failed({"status": "failed", "reason": "No active listener", "missing": requested, "protocols": protocols})


async def virtual_hosts(call: Call) -> Any:
    """Whether every vhost runs."""
    down = sorted(call.node.registry.down)
    if not down:
        return _OK
    return failed({"status": "failed", "reason": "Some virtual hosts are down", "virtual-hosts": down})


async def single_node(call: Call) -> Any:
    """The checks that only matter in a cluster of several nodes."""
    return {"status": "ok", "reason": "single node cluster"}


async def rebalance(call: Call) -> Any:
    """There is nothing to do, because there are no other nodes."""
    return done()
