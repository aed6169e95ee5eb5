"""The verbs under rabbitmqctl's names, and how one is performed for a command's request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
)
from warren.ctl.access import ACCESS, POLICIES
from warren.ctl.checks import CHECKS
from warren.ctl.listing import LISTS
from warren.ctl.node_verbs import NODE
from warren.ctl.verb import Verb, WrongUsageError
from warren.hosting.running_node import RunningNode
from warren.storage.errors import StorageError, WarrenError

EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOUSER: Final = 67
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
"""BSD's exit codes, as rabbitmqctl has them."""


def _report(node: RunningNode) -> dict[str, Any]:
    """The answers of the verbs that only read: of the node, and of each vhost."""
    of_node = ("status", "cluster_status", "environment", "list_connections", "list_channels", "list_users")
    of_vhosts = (
        "list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_permissions", "list_policies",
        "list_operator_policies", "list_parameters",
    )  # fmt: skip

    def answer_of(name: str, **arguments: Any) -> Any:
        verb = VERBS[name]
        answer = verb.work(node, {"columns": list(verb.columns), **arguments})
        return (
            [{column: row.get(column) for column in verb.columns} for row in answer] if verb.shown == "rows" else answer
        )

    vhosts = list(node.registry.vhosts)
    answers = {name: answer_of(name) for name in of_node}
    return answers | {"vhosts": {vhost: {name: answer_of(name, vhost=vhost) for name in of_vhosts} for vhost in vhosts}}


VERBS: Final[Mapping[str, Verb]] = {
    **ACCESS,
    **POLICIES,
    **LISTS,
    **NODE,
    "report": Verb(says="Reporting server status of the node ...", work=lambda node, _: _report(node), shown="json"),
    **CHECKS,
}


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
        "clear_password", "set_user_limits", "clear_user_limits", "list_user_limits", "list_user_permissions",
        "list_user_topic_permissions",
    }
)  # fmt: skip
"""Verbs that exit with :data:`EX_UNAVAILABLE` also if the user does not exist."""


def _is_without_vhost(error: WarrenError) -> bool:
    return isinstance(error, NotFoundError) and str(error).startswith("no vhost")


def exit_code(verb: str, error: WarrenError) -> int:
    """The code that rabbitmqctl exits with if a verb fails with this error."""
    match error:
        case WrongUsageError():
            return EX_USAGE
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
        case ArgumentsError() if verb in ("import_definitions", "set_vm_memory_high_watermark"):
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
    for argument in verb.object_names:
        if not isinstance(arguments[argument], dict):
            raise ArgumentsError(f"a JSON object is expected, not {arguments[argument]!r:.100}")
    return verb.work(node, arguments)
