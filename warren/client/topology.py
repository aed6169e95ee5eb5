"""Topology: what a guest has declared that does not survive its host, to be declared again at the next one.

It consists of queues and exchanges that are not durable, exclusive or deleted automatically, and of their bindings.
The queues are empty then, as after a restart of a broker.
"""

from __future__ import annotations

from typing import Any

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.exchanges import Binding, DestinationType, ExchangeDeclaration
from warren.actors.node.node_registry import log_unknown_arguments
from warren.verbs.operation import Operation

End = tuple[DestinationType, str]
"""A queue or an exchange."""


class Topology:
    """What one connection has declared, as the operations that declare it."""

    def __init__(self) -> None:
        self._declared: dict[End, Operation[Any]] = {}
        self._bindings: dict[Binding, Operation[Any]] = {}
        self._logged: set[End] = set()

    def forget(self, operation: Operation[Any], vhost: str) -> None:
        """Forget what an operation on a vhost is about to delete."""
        arguments = operation.arguments
        match operation.definition.name:
            case "vhost.delete_queue":
                self._delete(("queue", arguments["name"]))
            case "node.delete_queue" if arguments.get("vhost") in {None, vhost}:
                self._delete(("queue", arguments["name"]))
            case "vhost.remove_binding":
                self._bindings.pop(Binding(vhost=vhost, **arguments), None)

    def note(self, operation: Operation[Any], vhost: str, answer: Any) -> None:
        """Note what an operation on a vhost has done."""
        arguments = operation.arguments
        match operation.definition.name:
            case "vhost.declare_queue" if not arguments["passive"]:
                queue: QueueDeclaration = answer.declaration
                self._log_unknown_arguments(("queue", queue.name), queue)
                if not queue.durable or queue.exclusive or queue.auto_delete:
                    properties = {
                        "durable": queue.durable,
                        "exclusive": queue.exclusive,
                        "auto_delete": queue.auto_delete,
                        "arguments": queue.arguments,
                    }
                    again = {"name": queue.name, "properties": properties}  # as it is, whatever was given
                    self._declared["queue", queue.name] = attrs.evolve(operation, arguments=again)
            case "vhost.declare_exchange":
                exchange: ExchangeDeclaration = answer
                self._log_unknown_arguments(("exchange", exchange.name), exchange)
                if not exchange.durable or exchange.auto_delete:
                    self._declared["exchange", exchange.name] = operation
            case "vhost.delete_exchange":
                self._delete(("exchange", arguments["name"]))
            case "vhost.add_binding":
                binding = Binding(vhost=vhost, **arguments)
                if not self._declared.keys().isdisjoint(_ends(binding)):
                    self._bindings[binding] = operation

    def again(self) -> list[Operation[Any]]:
        """Return the operations that declare everything again."""
        declared = sorted(self._declared, key=lambda end: end[0])  # a queue may name its dead-letter exchange
        return [*(self._declared[end] for end in declared), *self._bindings.values()]

    def _delete(self, end: End) -> None:
        if self._declared.pop(end, None) is not None:
            self._bindings = {
                binding: operation for binding, operation in self._bindings.items() if end not in _ends(binding)
            }

    def _log_unknown_arguments(self, end: End, declaration: QueueDeclaration | ExchangeDeclaration) -> None:
        """Log unknown arguments once in this process, too: the host has logged them in its own."""
        if declaration.unknown_arguments and end not in self._logged:
            self._logged.add(end)
            log_unknown_arguments(declaration)


def _ends(binding: Binding) -> tuple[End, End]:
    return ("exchange", binding.source), (binding.destination_type, binding.destination)
