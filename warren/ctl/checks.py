"""The verbs of rabbitmq-diagnostics. A check returns a sentence, or raises an error that says what is wrong."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Any, Final

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.ctl.verb import Arguments, Verb, text_verb
from warren.hosting.queue_rows import queue_row
from warren.hosting.running_node import RunningNode
from warren.storage.errors import WarrenError
from warren.verbs.steps import run

_PATIENCE_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 5.0


class CheckFailedError(WarrenError):
    """A health check has found a problem."""


def listeners(node: RunningNode) -> list[dict[str, Any]]:
    """Where the node listens: ``interface``, ``port``, ``protocol`` and ``purpose``."""
    return [
        {"interface": interface, "port": port, "protocol": server.protocol, "purpose": server.purpose}
        for server in list(node.hosted)
        for interface, port in server.addresses
    ]


def alarms(node: RunningNode) -> list[str]:
    """The names of the alarms that are set."""
    names: list[str] = run(node.memory())["alarms"]
    return names


def check_running(node: RunningNode, _: Arguments) -> str:
    run(node.change(lambda _: None))
    return f"RabbitMQ on node {node.name} is fully booted and running"


def check_alarms(node: RunningNode, _: Arguments) -> str:
    if names := alarms(node):
        raise CheckFailedError(f"Node {node.name} reported the following alarms: {', '.join(names)}")
    return f"Node {node.name} reported no alarms, local or clusterwide"


def check_local_alarms(node: RunningNode, arguments: Arguments) -> str:
    check_alarms(node, arguments)
    return f"Node {node.name} reported no local alarms"


def show_alarms(node: RunningNode, arguments: Arguments) -> str:
    with contextlib.suppress(CheckFailedError):
        return check_alarms(node, arguments)
    return "\n".join(f"{alarm.capitalize()} alarm on node {node.name}" for alarm in alarms(node))


def _within_reach(interface: str) -> str:
    """The address to connect to: the loopback address if the listener has an unspecified one."""
    try:
        address = ipaddress.ip_address(interface)
    except ValueError:  # a name
        return interface
    if not address.is_unspecified:
        return interface
    return "127.0.0.1" if address.version == 4 else "::1"


def check_port_connectivity(node: RunningNode, _: Arguments) -> str:
    """Connect to each port, on the loopback address if the node listens on all interfaces."""
    for listener in listeners(node):
        host = _within_reach(listener["interface"])
        try:
            socket.create_connection((host, listener["port"]), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise CheckFailedError(
                f"Connection to port {listener['port']} on node {node.name} failed: {error}"
            ) from error
    return f"Successfully connected to ports {_ports(node)} on node {node.name}."


def check_port_listener(node: RunningNode, arguments: Arguments) -> str:
    port = arguments["port"]
    if port not in {str(listener["port"]) for listener in listeners(node)}:
        raise CheckFailedError(
            f"No listener for port {port} is active on node {node.name}. "
            f"Found listeners that use the following ports: {_ports(node)}"
        )
    return f"A listener for port {port} is running on node {node.name}."


def _ports(node: RunningNode) -> str:
    return ", ".join(str(port) for port in sorted({listener["port"] for listener in listeners(node)}))


def check_protocol_listener(node: RunningNode, arguments: Arguments) -> str:
    protocol = arguments["protocol"]
    protocols = sorted({listener["protocol"] for listener in listeners(node)})
    if {"amqp091": "amqp", "amqp0-9-1": "amqp", "amqp0.9.1": "amqp"}.get(protocol, protocol) not in protocols:
        raise CheckFailedError(
            f"No listener for protocol {protocol} is active on node {node.name}. "
            f"Found listeners for the following protocols: {', '.join(protocols)}"
        )
    return f"A listener for protocol {protocol} is running on node {node.name}."


def check_virtual_hosts(node: RunningNode, _: Arguments) -> str:
    if down := sorted(node.registry.down):
        raise CheckFailedError(f"Some virtual hosts on node {node.name} are down: {', '.join(down)}")
    return f"Node {node.name} reported all vhosts as running"


def node_health_check(node: RunningNode, arguments: Arguments) -> str:
    check_running(node, arguments)
    check_alarms(node, arguments)
    check_virtual_hosts(node, arguments)
    return "Health check passed"


def restart_vhost(node: RunningNode, arguments: Arguments) -> str:
    """There is nothing to do: the node itself tries again to start a vhost that is down."""
    node.vhost(arguments["vhost"])
    return f"Vhost '{arguments['vhost']}' is already running on node '{node.name}'"


def list_unresponsive_queues(node: RunningNode, arguments: Arguments) -> list[dict[str, Any]]:
    queues = list(node.vhost(arguments["vhost"]).queues.items())
    return [{"name": name} for name, entry in queues if queue_row(entry, _PATIENCE_S).stats is None]


def memory_breakdown(node: RunningNode, _: Arguments) -> dict[str, int]:
    """Bytes that queues account for, and the rest of the process."""
    vhosts = list(node.registry.vhosts.values())
    actors = [entry.running for vhost in vhosts for entry in list(vhost.queues.values())]
    queues = sum(node.allocated_bytes(actor) for actor in actors if actor is not None)
    used: int = run(node.memory())["used_bytes"]
    return {"queue_procs": queues, "other_proc": max(0, used - queues)}


def memory_lines(sizes: dict[str, int]) -> str:
    """As ``queue_procs: 0.0014 gb (0.97%)``, the largest first."""
    total = sum(sizes.values()) or 1
    parts = sorted(sizes.items(), key=lambda part: -part[1])
    return "\n".join(f"{name}: {round(size / 10**9, 4)} gb ({round(100 * size / total, 2)}%)" for name, size in parts)


def listener_lines(rows: list[dict[str, Any]]) -> str:
    """As ``Interface: 127.0.0.1, port: 5672, protocol: amqp, purpose: AMQP 0-9-1``."""
    return "\n".join(
        f"Interface: {row['interface']}, port: {row['port']}, protocol: {row['protocol']}, purpose: {row['purpose']}"
        for row in rows
    )


_ALARMS: Final = "Asking the node to report any resource alarms ..."
CHECKS: Final[dict[str, Verb]] = {
    "node_health_check": text_verb(node_health_check, "Checking health of the node ..."),
    "is_running": text_verb(check_running, "Asking the node for its status ..."),
    "check_running": text_verb(check_running, "Checking if the node is running ..."),
    "alarms": text_verb(show_alarms, _ALARMS),
    "check_alarms": text_verb(check_alarms, _ALARMS),
    "check_local_alarms": text_verb(check_local_alarms, _ALARMS),
    "check_port_connectivity": text_verb(
        check_port_connectivity, "Testing TCP connections to all active listeners ..."
    ),
    "check_port_listener": text_verb(
        check_port_listener, "Asking the node if there's an active listener on port {port} ...", syntax="port"
    ),
    "check_protocol_listener": text_verb(
        check_protocol_listener,
        "Asking the node if there's an active listener for protocol {protocol} ...",
        syntax="protocol",
    ),
    "check_virtual_hosts": text_verb(check_virtual_hosts, "Checking if all vhosts are running ..."),
    "server_version": text_verb(lambda *_: BROKER_VERSION, "Asking the node for its RabbitMQ version..."),
    "listeners": Verb(
        says="Asking the node to report its protocol listeners ...",
        work=lambda node, _: listeners(node),
        shown="text",
        text=listener_lines,
    ),
    "memory_breakdown": Verb(
        says="Reporting memory breakdown on the node...",
        work=memory_breakdown,
        shown="text",
        text=memory_lines,
    ),
}
"""The verbs of rabbitmq-diagnostics."""
