"""The verbs for the node as a whole, and for the export and import of its definitions."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import attrs

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.information_units import parse_information_unit
from warren.ctl import checks
from warren.ctl.feature_flags import FEATURE_FLAGS
from warren.ctl.verb import Arguments, Verb, WrongUsageError, list_verb, text_verb
from warren.hosting.running_node import RunningNode
from warren.storage.errors import SettingsError, StorageError
from warren.verbs.steps import run
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs

STARTUP_TIMEOUT_S: Final = 300.0
"""How long ``await_startup`` waits, as rabbitmqctl does."""


def status(node: RunningNode, _: Arguments) -> dict[str, Any]:
    memory = run(node.memory())
    settings = node.config.node
    vhosts = list(node.registry.vhosts.values())
    return {
        "pid": os.getpid(),
        "os": platform.system(),
        "uptime": round(time.monotonic() - node.opened_s),
        "rabbitmq_version": BROKER_VERSION,
        "product_name": "warren",
        "product_version": _version(),
        "data_directory": node.path,
        "alarms": memory["alarms"],
        "memory": {"strategy": settings.vm_memory_calculation_strategy, "total": {"rss": memory["used_bytes"]}},
        "vm_memory_calculation_strategy": settings.vm_memory_calculation_strategy,
        "vm_memory_high_watermark_setting": memory["high_watermark"],
        "vm_memory_high_watermark_limit": memory["limit_bytes"],
        "disk_free": memory["disk_free_bytes"],
        "disk_free_limit": memory["disk_limit_bytes"],
        "file_descriptors": {
            "total_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "total_used": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None,
        },
        "totals": {
            "connection_count": sum(len(server.connections) for server in list(node.hosted)),
            "queue_count": sum(len(vhost.queues) for vhost in vhosts) + len(list(node.registry.streams)),
            "virtual_host_count": len(vhosts) + len(node.registry.down),
        },
        "listeners": checks.listeners(node),
    }


def cluster_status(node: RunningNode, _: Arguments) -> dict[str, Any]:
    return {
        "cluster_name": node.cluster_name,
        "disk_nodes": [node.name],
        "ram_nodes": [],
        "running_nodes": [node.name],
        "versions": {node.name: {"rabbitmq_name": "RabbitMQ", "rabbitmq_version": BROKER_VERSION}},
        "alarms": checks.alarms(node),
        "partitions": {},
        "listeners": {node.name: checks.listeners(node)},
    }


def set_cluster_name(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(LocalVhost(node)).users.set_global_parameter("cluster_name", arguments["name"]))


def set_vm_memory_high_watermark(node: RunningNode, arguments: Arguments) -> None:
    """Set the memory limit until the node is closed: a fraction, or ``absolute`` and an amount."""
    threshold, amount = arguments["threshold"], arguments["amount"]
    if amount is None and threshold == "absolute":
        raise WrongUsageError("not enough arguments; usage: set_vm_memory_high_watermark absolute <amount>")
    if amount is not None and threshold != "absolute":
        raise WrongUsageError("too many arguments; usage: set_vm_memory_high_watermark <fraction> | absolute <amount>")
    run(node.memory(high_watermark=_fraction(threshold) if amount is None else _amount(amount)))


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        raise ArgumentsError(
            f"the threshold should be a fraction, or absolute and an amount, not {text!r:.100}"
        ) from None
    if not 0.0 <= fraction <= 1.0:
        raise ArgumentsError(f"the threshold should be a fraction between 0.0 and 1.0, not {text}")
    return fraction


def _amount(text: str) -> int:
    try:
        return parse_information_unit("the threshold", text)
    except SettingsError as error:
        raise ArgumentsError(str(error)) from error


def _shown_threshold(arguments: Arguments) -> str:
    amount = arguments["amount"]
    return (
        f"Setting memory threshold on the node to {arguments['threshold'] if amount is None else f'{amount} bytes'} ..."
    )


def set_tracing(node: RunningNode, vhost: str, *, on: bool) -> None:
    """Trace the messages of a vhost's clients from now on, or no longer; until the node is closed."""
    (node.registry.traced.add if on else node.registry.traced.discard)(vhost)
    for server in list(node.hosted):
        for connection in list(server.connections.values()):
            for channel in list(connection.channels.values()):
                channel.link.note_tracing()


def trace_on(node: RunningNode, arguments: Arguments) -> str:
    set_tracing(node, node.vhost(arguments["vhost"]).name, on=True)
    return f"Trace enabled for vhost {arguments['vhost']}"


def trace_off(node: RunningNode, arguments: Arguments) -> str:
    set_tracing(node, arguments["vhost"], on=False)
    return f"Trace disabled for vhost {arguments['vhost']}"


def _version() -> str:
    try:
        return version("warrenmq")
    except PackageNotFoundError:
        return ""


def environment(node: RunningNode, _: Arguments) -> dict[str, Any]:
    config = node.config
    sections = {
        "rabbit": _plain(attrs.asdict(config.node) | attrs.asdict(config.engine)),
        "topics": _plain(attrs.asdict(config.topics)),
    }
    for server in list(node.hosted):
        if server.addresses:
            sections[type(server).__module__.split(".")[1]] = _plain(attrs.asdict(server.settings))
    return sections


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def ping(node: RunningNode, _: Arguments) -> None:
    run(node.change(lambda _: None))


def export_definitions(node: RunningNode, arguments: Arguments) -> dict[str, Any]:
    return run(NodeVerbs(LocalVhost(node)).definitions(arguments["vhost"]))


def import_definitions(node: RunningNode, arguments: Arguments) -> dict[str, Any]:
    """The node's process reads the file, because a document may be larger than a request."""
    try:
        with open(arguments["file"], encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise StorageError(f"{arguments['file']}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentsError(f"{arguments['file']}: not JSON: {error}") from error
    imported = run(NodeVerbs(LocalVhost(node)).import_definitions(document, arguments["vhost"]))
    counts: dict[str, Any] = {
        field.name: len(getattr(imported, field.name))
        for field in attrs.fields(type(imported))
        if field.name not in ("skipped", "kept", "ignored")
    }
    return counts | {
        "skipped": list(imported.skipped),
        "kept": dict(imported.kept),
        "ignored": dict(imported.ignored),
    }


NODE: Final[dict[str, Verb]] = {
    "status": Verb(says="Status of the node ...", work=status, shown="json"),
    "environment": Verb(says="Settings of the node ...", work=environment, shown="json"),
    "ping": Verb(says="Asking the node ...", work=ping, shown="text", text=lambda _: "Ping succeeded"),
    "cluster_status": Verb(says="Cluster status of the node ...", work=cluster_status, shown="json"),
    "set_cluster_name": Verb(syntax="name", says="Setting cluster name to {name} ...", work=set_cluster_name),
    "trace_on": text_verb(trace_on, 'Starting tracing for vhost "{vhost}" ...', "--vhost"),
    "trace_off": text_verb(trace_off, 'Stopping tracing for vhost "{vhost}" ...', "--vhost"),
    "set_vm_memory_high_watermark": Verb(
        syntax="threshold amount?", says=_shown_threshold, work=set_vm_memory_high_watermark
    ),
    "await_startup": Verb(
        syntax="--timeout", says="", work=ping, defaults={"timeout": STARTUP_TIMEOUT_S}, awaits_node=True
    ),
    "list_feature_flags": list_verb(
        lambda *_: list(FEATURE_FLAGS),
        "Listing feature flags ...",
        ("name", "state"),
        ("name", "state", "stability", "provided_by", "desc", "doc_url"),
    ),
    "list_unresponsive_queues": Verb(
        syntax="--vhost",
        says="Listing unresponsive queues for vhost {vhost} ...",
        work=checks.list_unresponsive_queues,
        without_vhost=[],
        shown="rows",
        columns=("name",),
    ),
    "restart_vhost": text_verb(checks.restart_vhost, "Trying to restart vhost '{vhost}' ...", "--vhost"),
    "export_definitions": Verb(
        syntax="file --vhost",
        says="Exporting definitions to {file} ...",
        work=export_definitions,
        defaults={"vhost": None},
    ),
    "import_definitions": Verb(
        syntax="file --vhost",
        says="Importing definitions from {file} ...",
        work=import_definitions,
        defaults={"vhost": None},
        shown="json",
    ),
}
"""The node, and its definitions."""
