"""The verbs under rabbitmqctl's names, and how one is performed for a request over the node's socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
)
from warren.ctl import access, checks, listing, node_verbs
from warren.ctl.verb import Verb, Work
from warren.hosting.running_node import RunningNode
from warren.storage.errors import StorageError, WarrenError

EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOUSER: Final = 67
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
"""BSD's exit codes, as rabbitmqctl has them."""

VHOST: Final = frozenset({"vhost"})
_POLICY: Final = frozenset({"vhost", "priority", "apply_to"})
_PERMISSIONS: Final = ("configure", "write", "read")


def _said(name: str) -> Any:
    return lambda answer: str(answer[name])


ACCESS: Final[dict[str, Verb]] = {
    "add_user": Verb(takes=("user", "password?"), says='Adding user "{user}" ...', work=access.add_user),
    "authenticate_user": Verb(
        takes=("user", "password?"),
        says='Authenticating user "{user}" ...',
        work=access.authenticate_user,
        shown="text",
        text=lambda _: "Success",
    ),
    "change_password": Verb(
        takes=("user", "password?"), says='Changing password for user "{user}" ...', work=access.change_password
    ),
    "clear_password": Verb(takes=("user",), says='Clearing password for user "{user}" ...', work=access.clear_password),
    "delete_user": Verb(takes=("user",), says='Deleting user "{user}" ...', work=access.delete_user),
    "list_users": Verb(says="Listing users ...", work=access.list_users, shown="rows", columns=("user", "tags")),
    "set_user_tags": Verb(
        takes=("user", "tags*"), says='Setting tags for user "{user}" to [{tags}] ...', work=access.set_user_tags
    ),
    "set_user_limits": Verb(
        takes=("user", "limits:json"),
        says='Setting user limits to "{limits}" for user "{user}" ...',
        work=access.set_user_limits,
    ),
    "clear_user_limits": Verb(
        takes=("user", "limit"), says='Clearing "{limit}" limit for user "{user}" ...', work=access.clear_user_limits
    ),
    "list_user_limits": Verb(
        says="Listing limits of users ...",
        work=access.list_user_limits,
        options=frozenset({"user", "global"}),
        defaults={"user": "guest"},
        shown="rows",
        columns=("user", "limits"),
        text=_said("message"),
    ),
    "set_permissions": Verb(
        takes=("user", *_PERMISSIONS),
        says='Setting permissions for user "{user}" in vhost "{vhost}" ...',
        work=access.set_permissions,
        options=VHOST,
    ),
    "clear_permissions": Verb(
        takes=("user",),
        says='Clearing permissions for user "{user}" in vhost "{vhost}" ...',
        work=access.clear_permissions,
        options=VHOST,
    ),
    "list_permissions": Verb(
        says='Listing permissions for vhost "{vhost}" ...',
        work=access.list_permissions,
        options=VHOST,
        shown="rows",
        columns=("user", *_PERMISSIONS),
    ),
    "list_user_permissions": Verb(
        takes=("user",),
        says='Listing permissions for user "{user}" ...',
        work=access.list_user_permissions,
        shown="rows",
        columns=("vhost", *_PERMISSIONS),
    ),
    "set_topic_permissions": Verb(
        takes=("user", "exchange", "write", "read"),
        says='Setting topic permissions on "{exchange}" for user "{user}" in vhost "{vhost}" ...',
        work=access.set_topic_permissions,
        options=VHOST,
    ),
    "clear_topic_permissions": Verb(
        takes=("user", "exchange?"),
        says='Clearing topic permissions for user "{user}" in vhost "{vhost}" ...',
        work=access.clear_topic_permissions,
        options=VHOST,
    ),
    "list_topic_permissions": Verb(
        says='Listing topic permissions for vhost "{vhost}" ...',
        work=access.list_topic_permissions,
        options=VHOST,
        shown="rows",
        columns=("user", "exchange", "write", "read"),
    ),
    "list_user_topic_permissions": Verb(
        takes=("user",),
        says='Listing topic permissions for user "{user}" ...',
        work=access.list_user_topic_permissions,
        shown="rows",
        columns=("vhost", "exchange", "write", "read"),
    ),
    "add_vhost": Verb(
        takes=("vhost",),
        says='Adding vhost "{vhost}" ...',
        work=access.add_vhost,
        options=frozenset({"description", "tags", "default_queue_type"}),
    ),
    "delete_vhost": Verb(takes=("vhost",), says='Deleting vhost "{vhost}" ...', work=access.delete_vhost),
    "list_vhosts": Verb(
        takes=("columns*",),
        says="Listing vhosts ...",
        work=access.list_vhosts,
        shown="rows",
        columns=("name",),
        all_columns=("name", "description", "tags", "default_queue_type", "tracing", "state"),
    ),
    "set_vhost_tags": Verb(
        takes=("vhost", "tags*"), says='Setting tags for vhost "{vhost}" to [{tags}] ...', work=access.set_vhost_tags
    ),
    "set_vhost_limits": Verb(
        takes=("limits:json",),
        says='Setting vhost limits to "{limits}" for vhost "{vhost}" ...',
        work=access.set_vhost_limits,
        options=VHOST,
    ),
    "clear_vhost_limits": Verb(
        says='Clearing vhost "{vhost}" limits ...', work=access.clear_vhost_limits, options=VHOST
    ),
    "list_vhost_limits": Verb(
        says="Listing limits of vhosts ...",
        work=access.list_vhost_limits,
        options=frozenset({"vhost", "global"}),
        shown="rows",
        columns=("vhost", "limits"),
        text=_said("message"),
    ),
    "set_parameter": Verb(
        takes=("component", "name", "value:json"),
        says='Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{vhost}" ...',
        work=access.set_parameter,
        options=VHOST,
    ),
    "clear_parameter": Verb(
        takes=("component", "name"),
        says='Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
        work=access.clear_parameter,
        options=VHOST,
    ),
    "list_parameters": Verb(
        says='Listing runtime parameters for vhost "{vhost}" ...',
        work=access.list_parameters,
        options=VHOST,
        shown="rows",
        columns=("component", "name", "value"),
    ),
    "set_global_parameter": Verb(
        takes=("name", "value:json"),
        says='Setting global runtime parameter "{name}" to "{value}" ...',
        work=access.set_global_parameter,
    ),
    "clear_global_parameter": Verb(
        takes=("name",), says='Clearing global runtime parameter "{name}" ...', work=access.clear_global_parameter
    ),
    "list_global_parameters": Verb(
        says="Listing global runtime parameters ...",
        work=access.list_global_parameters,
        shown="rows",
        columns=("name", "value"),
    ),
}
"""Users, permissions, vhosts, parameters."""


def _policy_verbs(kind: str, setting: str, plural: str, work: Mapping[str, Any]) -> dict[str, Verb]:
    return {
        f"set_{kind}": Verb(
            takes=("name", "pattern", "definition:json"),
            says=f'Setting {setting} "{{name}}" for pattern "{{pattern}}" to "{{definition}}" with priority '
            '"{priority}" for vhost "{vhost}" ...',
            work=work["set"],
            options=_POLICY,
            defaults={"priority": 0, "apply_to": "all"},
        ),
        f"clear_{kind}": Verb(
            takes=("name",),
            says=f'Clearing {kind.replace("_", " ")} "{{name}}" on vhost "{{vhost}}" ...',
            work=work["clear"],
            options=VHOST,
        ),
        f"list_{plural}": Verb(
            says=f'Listing {"policies" if kind == "policy" else "operator policy overrides"} for vhost "{{vhost}}" ...',
            work=work["list"],
            options=VHOST,
            shown="rows",
            columns=("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        ),
    }


POLICIES: Final[dict[str, Verb]] = _policy_verbs(
    "policy",
    "policy",
    "policies",
    {"set": access.set_policy, "clear": access.clear_policy, "list": access.list_policies},
) | _policy_verbs(
    "operator_policy",
    "operator policy override",
    "operator_policies",
    {
        "set": access.set_operator_policy,
        "clear": access.clear_operator_policy,
        "list": access.list_operator_policies,
    },
)

LISTS: Final[dict[str, Verb]] = {
    "list_queues": Verb(
        takes=("columns*",),
        says="Listing queues for vhost {vhost} ...",
        work=listing.list_queues,
        options=VHOST,
        without_vhost=[],
        shown="rows",
        columns=("name", "messages"),
        all_columns=listing.QUEUE_COLUMNS,
    ),
    "list_exchanges": Verb(
        takes=("columns*",),
        says="Listing exchanges for vhost {vhost} ...",
        work=listing.list_exchanges,
        options=VHOST,
        without_vhost=[],
        shown="rows",
        columns=("name", "type"),
        all_columns=listing.EXCHANGE_COLUMNS,
    ),
    "list_bindings": Verb(
        takes=("columns*",),
        says="Listing bindings for vhost {vhost} ...",
        work=listing.list_bindings,
        options=VHOST,
        without_vhost=[],
        shown="rows",
        columns=listing.BINDING_COLUMNS,
        all_columns=listing.BINDING_COLUMNS,
    ),
    "list_connections": Verb(
        takes=("columns*",),
        says="Listing connections ...",
        work=listing.list_connections,
        shown="rows",
        columns=("user", "peer_host", "peer_port", "state"),
        all_columns=listing.CONNECTION_COLUMNS,
    ),
    "list_channels": Verb(
        takes=("columns*",),
        says="Listing channels ...",
        work=listing.list_channels,
        shown="rows",
        columns=("pid", "user", "consumer_count", "messages_unacknowledged"),
        all_columns=listing.CHANNEL_COLUMNS,
    ),
    "list_consumers": Verb(
        takes=("columns*",),
        says="Listing consumers in vhost {vhost} ...",
        work=listing.list_consumers,
        options=VHOST,
        without_vhost=[],
        shown="rows",
        columns=listing.CONSUMER_COLUMNS,
        all_columns=listing.CONSUMER_COLUMNS,
    ),
    "purge_queue": Verb(
        takes=("queue",),
        says="Purging queue '{queue}' in vhost '{vhost}' ...",
        work=listing.purge_queue,
        options=VHOST,
    ),
    "delete_queue": Verb(
        takes=("queue",),
        says="Deleting queue '{queue}' on vhost '{vhost}' ...",
        work=listing.delete_queue,
        options=frozenset({"vhost", "if_empty", "if_unused"}),
        shown="text",
        text=lambda answer: f"Queue was successfully deleted with {answer['ready']} ready messages",
    ),
    "close_connection": Verb(
        takes=("connection", "reason"),
        says="Closing connection {connection}, reason: {reason}...",
        work=listing.close_connection,
    ),
    "close_all_user_connections": Verb(
        takes=("user", "reason"),
        says="Closing connections of user {user}, reason: {reason}...",
        work=listing.close_all_user_connections,
    ),
    "close_all_connections": Verb(
        takes=("reason",),
        says="Closing connections, reason: {reason}...",
        work=listing.close_all_connections,
        options=frozenset({"vhost", "limit"}),
        defaults={"vhost": None, "limit": 0},
        without_vhost={"closed": 0},
        shown="text",
        text=lambda answer: f"Closed {answer['closed']} connections",
    ),
}
"""Queues, exchanges, bindings, clients."""


def _check(work: Work, says: str, takes: tuple[str, ...] = (), options: frozenset[str] = frozenset()) -> Verb:
    return Verb(takes=takes, says=says, work=work, options=options, shown="text", text=str)


NODE: Final[dict[str, Verb]] = {
    "status": Verb(says="Status of the node ...", work=node_verbs.status, shown="json"),
    "environment": Verb(says="Settings of the node ...", work=node_verbs.environment, shown="json"),
    "ping": Verb(says="Asking the node ...", work=node_verbs.ping, shown="text", text=lambda _: "Ping succeeded"),
    "cluster_status": Verb(says="Cluster status of the node ...", work=node_verbs.cluster_status, shown="json"),
    "set_cluster_name": Verb(
        takes=("name",), says="Setting cluster name to {name} ...", work=node_verbs.set_cluster_name
    ),
    "report": Verb(says="Reporting server status of the node ...", work=lambda node, _: _report(node), shown="json"),
    "list_unresponsive_queues": Verb(
        says="Listing unresponsive queues for vhost {vhost} ...",
        work=checks.list_unresponsive_queues,
        options=VHOST,
        without_vhost=[],
        shown="rows",
        columns=("name",),
    ),
    "restart_vhost": _check(checks.restart_vhost, "Trying to restart vhost '{vhost}' ...", options=VHOST),
    "export_definitions": Verb(
        takes=("file",),
        says="Exporting definitions to {file} ...",
        work=node_verbs.export_definitions,
        options=VHOST,
        defaults={"vhost": None},
    ),
    "import_definitions": Verb(
        takes=("file",),
        says="Importing definitions from {file} ...",
        work=node_verbs.import_definitions,
        options=VHOST,
        defaults={"vhost": None},
        shown="json",
    ),
}
"""The node, and its definitions."""

_ALARMS: Final = "Asking the node to report any resource alarms ..."
CHECKS: Final[dict[str, Verb]] = {
    "node_health_check": _check(checks.node_health_check, "Checking health of the node ..."),
    "is_running": _check(checks.check_running, "Asking the node for its status ..."),
    "check_running": _check(checks.check_running, "Checking if the node is running ..."),
    "alarms": _check(checks.show_alarms, _ALARMS),
    "check_alarms": _check(checks.check_alarms, _ALARMS),
    "check_local_alarms": _check(checks.check_local_alarms, _ALARMS),
    "check_port_connectivity": _check(
        checks.check_port_connectivity, "Testing TCP connections to all active listeners ..."
    ),
    "check_port_listener": _check(
        checks.check_port_listener, "Asking the node if there's an active listener on port {port} ...", takes=("port",)
    ),
    "check_protocol_listener": _check(
        checks.check_protocol_listener,
        "Asking the node if there's an active listener for protocol {protocol} ...",
        takes=("protocol",),
    ),
    "check_virtual_hosts": _check(checks.check_virtual_hosts, "Checking if all vhosts are running ..."),
    "server_version": _check(lambda *_: BROKER_VERSION, "Asking the node for its RabbitMQ version..."),
    "listeners": Verb(
        says="Asking the node to report its protocol listeners ...",
        work=lambda node, _: checks.listeners(node),
        shown="text",
        text=checks.listener_lines,
    ),
    "memory_breakdown": Verb(
        says="Reporting memory breakdown on the node...",
        work=checks.memory_breakdown,
        shown="text",
        text=checks.memory_lines,
    ),
}
"""The verbs of rabbitmq-diagnostics."""

VERBS: Final[Mapping[str, Verb]] = ACCESS | POLICIES | LISTS | NODE | CHECKS


def _report(node: RunningNode) -> dict[str, Any]:
    """The answers of the verbs that only read: of the node, and of each vhost."""
    of_node = ("status", "cluster_status", "environment", "list_connections", "list_channels", "list_users")
    of_vhosts = (
        "list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_permissions", "list_policies",
        "list_operator_policies", "list_parameters",
    )  # fmt: skip

    def told(name: str, **arguments: Any) -> Any:
        verb = VERBS[name]
        answer = verb.work(node, {"columns": list(verb.columns), **arguments})
        return (
            [{column: row.get(column) for column in verb.columns} for row in answer] if verb.shown == "rows" else answer
        )

    vhosts = list(node.actor.vhosts)
    answers = {name: told(name) for name in of_node}
    return answers | {"vhosts": {vhost: {name: told(name, vhost=vhost) for name in of_vhosts} for vhost in vhosts}}


def answer(node: RunningNode, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``{"verb": …, "arguments": {…}}``: ``{"answer": …}``, or ``{"refused": …, "exit_code": …}``."""
    name = str(request.get("verb"))
    try:
        return {"answer": _work(node, request)}
    except WarrenError as error:
        if _is_without_vhost(error) and (empty := VERBS[name].without_vhost) is not None:
            return {"answer": empty, "warning": str(error)}
        return {"refused": str(error), "exit_code": exit_code(name, error)}


_EXIT_CODES_WITHOUT_VHOST: Final = {
    **dict.fromkeys(
        (
            "delete_vhost", "set_vhost_tags", "set_vhost_limits", "list_vhost_limits", "list_permissions",
            "list_topic_permissions", "list_parameters", "set_policy", "list_policies", "set_operator_policy",
            "list_operator_policies", "export_definitions", "import_definitions",
        ),
        EX_DATAERR,
    ),
    "delete_queue": EX_USAGE,
    "restart_vhost": EX_SOFTWARE,
}  # fmt: skip
"""What rabbitmqctl exits with if the vhost does not exist; others: :data:`EX_UNAVAILABLE`."""
_ONLY_UNAVAILABLE: Final = frozenset(
    {
        "set_user_limits", "clear_user_limits", "list_user_limits", "list_user_permissions",
        "list_user_topic_permissions",
    }
)  # fmt: skip
"""Verbs that exit with :data:`EX_UNAVAILABLE` also if the user does not exist."""


def _is_without_vhost(error: WarrenError) -> bool:
    return isinstance(error, NotFoundError) and str(error).startswith("no vhost")


def exit_code(verb: str, error: WarrenError) -> int:
    """The code that rabbitmqctl exits with if a verb fails with this error."""
    match error:
        case NotFoundError() if str(error).startswith("no user"):
            return EX_UNAVAILABLE if verb in _ONLY_UNAVAILABLE else EX_NOUSER
        case NotFoundError() if _is_without_vhost(error):
            return _EXIT_CODES_WITHOUT_VHOST.get(verb, EX_UNAVAILABLE)
        case NotFoundError() if verb == "delete_queue":
            return EX_USAGE
        case AccessRefusedError() | StorageError():
            return EX_DATAERR
        case PreconditionFailedError() if verb == "add_user":
            return EX_DATAERR if isinstance(error, ArgumentsError) else EX_SOFTWARE
        case ArgumentsError() if verb == "import_definitions":
            return EX_DATAERR
        case _:
            return EX_UNAVAILABLE


def _work(node: RunningNode, request: Mapping[str, Any]) -> Any:
    name, arguments = request.get("verb"), request.get("arguments")
    verb = VERBS.get(name) if isinstance(name, str) else None
    if verb is None or not isinstance(arguments, dict):
        raise ArgumentsError(f"no verb of ctl: {name!r:.100}")
    required = [*verb.names, *verb.options]
    if not set(required) <= arguments.keys():
        raise ArgumentsError(f"{name} wants {', '.join(sorted(required))}")
    return verb.work(node, arguments)
