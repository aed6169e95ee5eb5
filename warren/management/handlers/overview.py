"""The whole node: overview, nodes, vhosts, and small questions."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import sys
import time
from collections import Counter
from typing import Any, Final

import psutil

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.actors.engines.declared.exchanges import DELAYED, EXCHANGE_TYPES
from warren.ctl import checks
from warren.ctl.feature_flags import FEATURE_FLAGS
from warren.logs import log_files
from warren.management.call import Call, Managed
from warren.management.http import bad_request, done, not_found, required
from warren.management.lists import listed
from warren.management.past import NOTHING, Past
from warren.management.rates import KEPT_S, RECENT_S
from warren.management.samples import Document, NodeSample

_DESCRIPTIONS: Final = {name: f"AMQP {name} exchange, as per the AMQP specification" for name in EXCHANGE_TYPES} | {
    DELAYED: "Delayed Message Exchange.",
    "x-consistent-hash": "Consistent Hashing Exchange",
    "x-modulus-hash": "Modulus Hashing Exchange",
    "x-random": "Randomly picks a binding (queue) to route via (to).",
    "x-recent-history": "Recent History Exchange.",
}
_RETENTION: Final = {kind: [RECENT_S, KEPT_S] for kind in ("global", "basic", "detailed")}
_CHURN: Final = (
    "channel_closed", "channel_created", "connection_closed", "connection_created", "queue_created", "queue_declared",
    "queue_deleted",
)  # fmt: skip
_COLLECTED: Final = (
    "channel_closed", "channel_consumer_deleted", "connection_closed", "consumer_deleted", "exchange_deleted",
    "node_node_deleted", "queue_deleted", "vhost_deleted",
)  # fmt: skip
_NODE_COUNTERS: Final = (
    *_CHURN, "context_switches", "gc_bytes_reclaimed", "gc_num", "io_read_avg_time", "io_read_bytes", "io_read_count",
    "io_reopen_count", "io_seek_avg_time", "io_seek_count", "io_sync_avg_time", "io_sync_count", "io_write_avg_time",
    "io_write_bytes", "io_write_count", "mnesia_disk_tx_count", "mnesia_ram_tx_count", "msg_store_read_count",
    "msg_store_write_count", "queue_index_read_count", "queue_index_write_count",
)  # fmt: skip
_MECHANISMS: Final = (("PLAIN", "SASL PLAIN authentication mechanism"), ("AMQPLAIN", "QPid AMQPLAIN mechanism"))
_PERSONALITY: Final = "RabbitMQ"
"""The product whose API this is; clients check it first."""


def disable_stats(call: Call) -> bool:
    """Whether the request asks only for what is declared."""
    return bool(call.query.get("disable_stats") == "true")


def exchange_types() -> list[Document]:
    """Return the types of exchanges."""
    return [{"name": name, "description": text, "enabled": True} for name, text in sorted(_DESCRIPTIONS.items())]


async def overview(call: Call) -> Any:
    """``/api/overview``."""
    without_stats = disable_stats(call)
    document: Document = {
        "management_version": BROKER_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": _RETENTION,
        "exchange_types": exchange_types(),
        "product_version": BROKER_VERSION,
        "product_name": _PERSONALITY,
        "rabbitmq_version": BROKER_VERSION,
        "cluster_name": call.managed.cluster_name,
        "erlang_version": platform.python_version(),
        "erlang_full_version": f"{platform.python_implementation()} {sys.version.partition(' ')[0]}",
        "release_series_support_status": "supported",
        "disable_stats": without_stats,
        "enable_queue_totals": call.query.get("enable_queue_totals") == "true",
        "node": call.managed.node_name,
    }
    totals = await _object_totals(call)
    if without_stats:
        return document | {"object_totals": {name: totals[name] for name in ("queues", "exchanges", "connections")}}
    sample, managed, past = await call.sample(), call.managed, call.past
    lengths, counted = managed.samples.totals(sample, None, past)
    document |= {
        "message_stats": counted | client_rates(managed, None, client_sums(managed)[None], past),
        "churn_rates": _churn(managed, past),
        "queue_totals": lengths,
        "object_totals": totals
        | {"consumers": sum(queue.document.get("consumers", 0) for queue in sample.queues.values())},
        "statistics_db_event_queue": 0,
    }
    if call.is_monitor:
        document |= {"listeners": listeners(call), "contexts": contexts(call)}
    return document


def take_samples(managed: Managed, sample: NodeSample) -> None:
    """Take samples of all counters but those of single queues, connections and channels."""
    definitions = {name: running.definitions for name, running in list(managed.node.registry.vhosts.items())}
    sums = client_sums(managed)
    for vhost in (None, *definitions):
        managed.samples.totals(sample, vhost)
        counted = sums.get(vhost, Counter())
        client_rates(managed, vhost, counted)
        if vhost is not None:
            octets(managed, vhost, counted)
    _churn(managed)
    _node_counters(managed, sample, psutil.Process())
    traffic = managed.clients.traffic
    for key, exchange in traffic.exchanges.items():
        managed.samples.rates_of(("exchange", key), exchange.to_json())
    traffic.forget_exchanges(
        [
            (vhost, name)
            for vhost, name in traffic.exchanges
            if vhost not in definitions or not definitions[vhost].has("exchange", name)
        ]
    )


def churned(managed: Managed) -> Counter[str]:
    """How many connections, channels and queues came and went."""
    return managed.clients.traffic.churn + managed.node.registry.churn


def _churn(managed: Managed, past: Past = NOTHING) -> Document:
    counted = churned(managed)
    return managed.samples.rates_of("churn", {name: counted[name] for name in _CHURN}, past)


def client_sums(managed: Managed) -> dict[str | None, Counter[str]]:
    """Sums by vhost, and of all: the counts of open and closed channels, and the bytes of open connections."""
    sums: dict[str | None, Counter[str]] = {None: Counter()}
    for vhost, counted in managed.clients.traffic.closed_channels.items():
        sums[vhost] = Counter(counted)
    for connection in list(managed.clients.connections.values()):
        counts = sums.setdefault(connection.vhost, Counter())
        counts["recv_oct"] += connection.received_bytes
        counts["send_oct"] += connection.sent_bytes
        for channel in list(connection.channels.values()):
            counts.update(channel.message_stats())
    for vhost in [vhost for vhost in sums if vhost is not None]:
        sums[None].update(sums[vhost])
    return sums


def client_rates(managed: Managed, vhost: str | None, counted: Counter[str], past: Past = NOTHING) -> Document:
    """What channels count and queues cannot: confirms, and what reached no queue."""
    names = ("confirm", "return_unroutable", "drop_unroutable")
    return managed.samples.rates_of(("channels", vhost), {name: counted[name] for name in names}, past)


def octets(managed: Managed, vhost: str, counted: Counter[str], past: Past = NOTHING) -> Document:
    """Bytes that the connections of a vhost have received and sent."""
    totals = {name: counted[name] for name in ("recv_oct", "send_oct")}
    return managed.samples.rates_of(("octets", vhost), totals, past)


async def _object_totals(call: Call) -> Document:
    visible = call.visible_vhosts
    running = [vhost for name, vhost in list(call.node.registry.vhosts.items()) if name in visible]
    connections = list(call.managed.clients.connections.values())
    return {
        "channels": sum(len(connection.channels) for connection in connections),
        "connections": len(connections),
        "consumers": 0,
        "exchanges": sum(len(vhost.definitions.exchanges()) for vhost in running),
        "queues": sum(len(vhost.definitions.queues()) for vhost in running),
    }


def listeners(call: Call) -> list[Document]:
    """Return the addresses on which the node listens."""
    options = {"backlog": 128, "nodelay": True, "linger": [True, 0], "exit_on_close": False}
    return [
        {
            "node": call.managed.node_name,
            "protocol": listener["protocol"],
            "ip_address": listener["interface"],
            "port": listener["port"],
            "socket_opts": options,
        }
        for listener in checks.listeners(call.node)
    ]


def contexts(call: Call) -> list[Document]:
    """Return the addresses of the API."""
    return [
        {
            "ssl_opts": [],
            "node": call.managed.node_name,
            "description": "RabbitMQ Management",
            "path": "/",
            "cowboy_opts": "[]",
            "ip": host,
            "port": str(port),
        }
        for host, port in call.managed.addresses
    ]


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def nodes(call: Call) -> Any:
    """``/api/nodes``: the only node."""
    return listed([await _node(call)], call.query, ("name",))


async def node(call: Call) -> Any:
    """``/api/nodes/:node``."""
    if call.parts["node"] != call.managed.node_name:
        raise not_found()
    return await _node(call)


async def node_memory(call: Call) -> Any:
    """``/api/nodes/:node/memory``: what queues account for, and the rest."""
    if call.parts["node"] != call.managed.node_name:
        raise not_found()
    sample = await call.sample()
    queues = sum(queue.document.get("memory", 0) for queue in sample.queues.values())
    used = sample.memory["used_bytes"]
    total = {"erlang": used, "rss": used, "allocated": used}
    parts = {"queue_procs": queues, "other_proc": max(0, used - queues)}
    return {"memory": parts | {"total": total, "strategy": call.node.config.node.vm_memory_calculation_strategy}}


async def _node(call: Call) -> Document:
    sample = await call.sample()
    memory, process = sample.memory, psutil.Process()
    soft_limit = process.rlimit(psutil.RLIMIT_NOFILE)[0] if hasattr(process, "rlimit") else 0
    alarms = memory["alarms"]
    return {
        "name": call.managed.node_name,
        "type": "disc",
        "running": True,
        "partitions": [],
        "os_pid": str(os.getpid()),
        "fd_total": soft_limit,
        "sockets_total": soft_limit,
        "mem_limit": memory["limit_bytes"],
        "mem_alarm": "memory" in alarms,
        "disk_free_limit": memory["disk_limit_bytes"],
        "disk_free_alarm": "disk" in alarms,
        "proc_total": 1_048_576,
        "rates_mode": "basic",
        "uptime": round(1000 * (time.monotonic() - call.node.opened_s)),
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "exchange_types": exchange_types(),
        "auth_mechanisms": [{"name": name, "description": text, "enabled": True} for name, text in _MECHANISMS],
        "applications": [{"name": "rabbit", "description": "RabbitMQ", "version": BROKER_VERSION}],
        "contexts": [
            {name: value for name, value in context.items() if name not in ("node", "ssl_opts")}
            for context in contexts(call)
        ],
        "log_files": log_files(),
        "db_dir": os.path.abspath(call.node.path),
        "config_files": [],
        "net_ticktime": 60,
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "mem_calculation_strategy": call.node.config.node.vm_memory_calculation_strategy,
        "ra_open_file_metrics": {"ra_log_wal": 0, "ra_log_segment_writer": 0},
        "cluster_links": [],
        "metrics_gc_queue_length": dict.fromkeys(_COLLECTED, 0),
        **_node_counters(call.managed, sample, process, call.past),
    }


def _node_counters(managed: Managed, sample: NodeSample, process: psutil.Process, past: Past = NOTHING) -> Document:
    free, counted, churn = sample.memory["disk_free_bytes"], sample.counted[None], churned(managed)
    counters = dict.fromkeys(_NODE_COUNTERS, 0) | {
        "mem_used": sample.memory["used_bytes"],
        "fd_used": process.num_fds() if hasattr(process, "num_fds") else 0,
        "sockets_used": len(managed.clients.connections),
        "proc_used": process.num_threads(),
        "disk_free": shutil.disk_usage(managed.node.path).free if free is None else free,
        "context_switches": sum(process.num_ctx_switches()),
        "gc_num": sum(generation["collections"] for generation in gc.get_stats()),
        "msg_store_read_count": counted["disk_reads"],
        "msg_store_write_count": counted["disk_writes"],
        **{name: churn[name] for name in _CHURN},
        **io_counters(process),
    }
    return managed.samples.rates_of("node", counters, past, "node_stats")


def io_counters(process: psutil.Process) -> dict[str, int]:
    """Return what the process has read and written, if the system counts that."""
    try:
        counters = process.io_counters()
    except (AttributeError, psutil.Error):
        return {}
    return {
        "io_read_bytes": counters.read_bytes,
        "io_read_count": counters.read_count,
        "io_write_bytes": counters.write_bytes,
        "io_write_count": counters.write_count,
    }


# ── small questions ───────────────────────────────────────────────────────────────────────────────────────────────────


async def whoami(call: Call) -> Any:
    """``/api/whoami``."""
    return {"name": call.user.name, "tags": list(call.user.tags)}


async def cluster_name(call: Call) -> Any:
    """``/api/cluster-name``."""
    return {"name": call.managed.cluster_name}


async def put_cluster_name(call: Call) -> Any:
    """Set the name as a global parameter. Raises :class:`HttpError` for all but administrators."""
    if not call.is_administrator:
        raise bad_request("Not administrator user")
    (name,) = required(await call.body(), "name")
    await call.managed.run(call.verbs.users.set_global_parameter("cluster_name", name))
    return done()


async def extensions(call: Call) -> Any:
    """``/api/extensions``."""
    return [{"javascript": "dispatcher.js"}]


async def auth(call: Call) -> Any:
    """``/api/auth``."""
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def feature_flags(call: Call) -> Any:
    """``/api/feature-flags``."""
    return listed(FEATURE_FLAGS, call.query, ("name",))
