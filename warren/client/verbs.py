"""The verbs of :mod:`warren.verbs.vhost_verbs` and :mod:`warren.verbs.exchange_verbs` for a node that another process
hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pamqp import commands as c

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.exchanges import Binding, ExchangeDeclaration
from warren.actors.node.node_registry import log_unknown_arguments
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm
from warren.amqp.methods import method_of
from warren.client.calls import call, check_fits
from warren.client.queue_verbs import RemoteQueueVerbs, with_due
from warren.client.remote import RemoteVhost
from warren.client.topic_verbs import RemoteTopicVerbs, RemoteTransactionVerbs
from warren.storage.call_arguments import as_texts
from warren.storage.errors import WarrenError
from warren.storage.topic_settings import TopicSettings
from warren.values.messages import LATER, PublishArguments, as_bodies, as_body, publish_key
from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.operation import Operation
from warren.verbs.publishing import PATIENCE_S, AsTheyWere, publish_groups, settled_confirm
from warren.verbs.queue_verbs import QueueHandle
from warren.verbs.steps import Steps, run
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs, queue_properties

if TYPE_CHECKING:
    from warren.values.retry import Retry
    from warren.verbs.topic_verbs import TopicVerbs
    from warren.verbs.transaction_verbs import TransactionVerbs

T = TypeVar("T")


class RemoteExchangeVerbs(ExchangeVerbs):
    """The verbs of one exchange."""

    def __init__(self, remote: RemoteVhost, declaration: ExchangeDeclaration) -> None:
        super().__init__(remote, declaration)  # type: ignore[arg-type]
        self.remote = remote

    def publish_many(
        self,
        bodies: Iterable[bytes],
        routing_key: str = "",
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Steps[Confirm]:
        if not LATER.isdisjoint(properties):
            return (yield from self._publish_later(as_bodies(bodies), routing_key, properties, block, timeout))
        key, checked_bodies = self._key(routing_key, properties), as_bodies(bodies)
        if not checked_bodies:
            return settled_confirm()
        return (
            yield from self.remote.publish(
                key,
                _publish(self.declaration.name, routing_key, mandatory=mandatory),
                checked_bodies,
                (lambda: self._unroutable(routing_key)) if mandatory else None,
                block=block,
                timeout=timeout,
                is_delayed=self.delays(properties.get("headers")),
            )
        )

    def _publish_later(
        self,
        bodies: list[bytes],
        routing_key: str,
        properties: Mapping[str, Any],
        block: bool,
        timeout: float | None,
    ) -> Steps[Confirm]:
        from warren.values.scheduling import Scheduled, schedule

        if not bodies:
            return settled_confirm()
        remote = self.remote
        scheduled = schedule(properties, len(bodies), remote.now_ms(), remote.new_message_id, share_id=True)
        confirms: list[Confirm] = []
        for body, due_ms in zip(bodies, scheduled.due_ms, strict=True):
            key = self._new_key(routing_key, with_due(scheduled.properties, due_ms))  # type: ignore[arg-type]
            publish = _publish(self.declaration.name, routing_key)
            confirm = yield from remote.publish(
                key, publish, [body], None, block=block, timeout=timeout, is_delayed=True
            )
            confirms.append(confirm)
        return Scheduled(confirms, scheduled)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        def publish(group: AsTheyWere) -> Steps[Confirm | WarrenError]:
            routing_key = group.routing_keys[0].decode("utf-8", "surrogateescape")
            return self.remote.publish(
                group.key(self.declaration.vhost),
                _publish(self.declaration.name, routing_key, mandatory=True),
                group.bodies,
                partial(self._unroutable, routing_key),
                block=True,
                timeout=PATIENCE_S,
            )

        return publish_groups(groups, publish)

    def _new_key(self, routing_key: str, properties: PublishArguments) -> PublishKey:
        # The host makes copies of what the headers say, and takes the blind ones off.
        return publish_key(self.declaration.vhost, self.declaration.name, [routing_key], properties)


class RemoteVhostVerbs(VhostVerbs):
    """The verbs of one vhost."""

    def __init__(self, remote: RemoteVhost, name: str, new_remote: Callable[[str], RemoteVhost]) -> None:
        VhostVerbs.__init__(self, remote, name)  # type: ignore[arg-type]
        self.remote = remote
        self._new_remote = new_remote

    def _call(self, verb: str, /, **arguments: Any) -> Steps[Any]:
        return call(self.remote, verb, vhost=self.name, **arguments)

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.remote.perform(operation, self.name)

    def release(self) -> Steps[None]:
        """Delete the exclusive queues that were declared through this object: they go with its connection."""
        self.remote.check_process()
        yield from self.remote.flush()
        self.remote.release()

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(
        self,
        name: str,
        *,
        durable: bool | None = None,
        exclusive: bool | None = None,
        auto_delete: bool | None = None,
        arguments: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        passive: bool = False,
    ) -> Steps[RemoteQueueVerbs]:
        properties = queue_properties(durable, exclusive, auto_delete, arguments, retry)
        if not passive:  # what is wrong with them is known here
            QueueDeclaration(vhost=self.name, name=name or "amq.gen-", **properties)
            check_fits(properties)
        fields = yield from self._call("vhost.queue", name=name, properties=properties, passive=passive)
        declaration = QueueDeclaration(**fields)
        if not passive:
            self.remote.topology.declare_queue(
                method_of(
                    c.Queue.Declare,
                    queue=declaration.name,
                    durable=declaration.durable,
                    exclusive=declaration.exclusive,
                    auto_delete=declaration.auto_delete,
                    arguments=dict(declaration.arguments),
                )
            )
            self._log_unknown_arguments(declaration)
        return RemoteQueueVerbs(self.remote, declaration)

    def _log_unknown_arguments(self, declaration: QueueDeclaration | ExchangeDeclaration) -> None:
        """Log unknown arguments once in this process, too: the host has logged them in its own."""
        if declaration.unknown_arguments and str(declaration) not in self.remote.logged:
            self.remote.logged.add(str(declaration))
            log_unknown_arguments(declaration)

    def _delete_queue(self, vhost: str, name: str, *, if_empty: bool, if_unused: bool, force: bool) -> Steps[int]:
        self.remote.topology.delete_queue(name)
        if vhost == self.name and not force:  # by the owner of exclusive ones
            answer = yield from self.remote.ask(
                method_of(c.Queue.Delete, queue=name, if_unused=if_unused, if_empty=if_empty)
            )
            return int(answer.message_count)
        arguments = {"name": name, "if_empty": if_empty, "if_unused": if_unused, "force": force}
        return int((yield from call(self.remote, "vhost.delete_queue", vhost=vhost, **arguments)))

    def all_queues(self) -> list[Any]:
        declarations = run(self._call("vhost.queues"))
        return [RemoteQueueVerbs(self.remote, QueueDeclaration(**fields)) for fields in declarations]

    def failed_queues(self) -> dict[str, str]:
        reasons: dict[str, str] = run(self._call("vhost.failed_queues"))
        return reasons

    def queue_identity(self, name: str) -> object:
        return self  # the handle goes by the name

    # ── exchanges and bindings ──────────────────────────────────────────────────────────────────────────────────

    def exchange(
        self,
        name: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Steps[RemoteExchangeVerbs]:
        if type is None:
            fields = yield from self._call("exchange.declaration", name=name)
            return RemoteExchangeVerbs(self.remote, ExchangeDeclaration(**fields))
        declaration = ExchangeDeclaration(
            vhost=self.name,
            name=name,
            type=type,  # type: ignore[arg-type]
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments or {},
        )
        method = method_of(
            c.Exchange.Declare,
            exchange=name,
            exchange_type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(declaration.arguments),
        )
        yield from self.remote.ask(method)
        self.remote.topology.declare_exchange(method)
        self._log_unknown_arguments(declaration)
        return RemoteExchangeVerbs(self.remote, declaration)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Steps[None]:
        yield from self.remote.ask(method_of(c.Exchange.Delete, exchange=name, if_unused=if_unused))
        self.remote.topology.delete_exchange(name)

    def bind(
        self,
        destination: QueueHandle | ExchangeHandle | str,
        source: ExchangeHandle | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
        binding = self._binding(destination, source, routing_key, arguments)
        method = _bind(binding)
        yield from self.remote.ask(method)
        self.remote.topology.bind(method)

    def unbind(
        self,
        destination: QueueHandle | ExchangeHandle | str,
        source: ExchangeHandle | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
        binding = self._binding(destination, source, routing_key, arguments)
        self.remote.topology.unbind(_bind(binding))
        kind = c.Exchange.Unbind if binding.destination_type == "exchange" else c.Queue.Unbind
        yield from self.remote.ask(method_of(kind, **_of_binding(binding)))

    def publish_to(
        self,
        names: Iterable[str],
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Steps[Confirm]:
        queue_names, body = list(dict.fromkeys(as_texts(names, "names"))), as_body(body)
        later = not LATER.isdisjoint(properties)
        if len(queue_names) > 1 and not later:
            properties = {**properties, "headers": {**(properties.get("headers") or {}), "BCC": queue_names[1:]}}
        key = None if later else publish_key(self.name, "", queue_names[:1], properties)  # raises what is wrong
        declared = yield from self.remote.within(timeout, self._call("queue.declarations", names=queue_names))
        if not queue_names:
            return settled_confirm()
        if key is None:
            queues = [RemoteQueueVerbs(self.remote, QueueDeclaration(**fields)) for fields in declared]
            return (yield from self._publish_to_later(queues, body, properties, block, timeout))
        return (
            yield from self.remote.publish(
                key,
                _publish("", queue_names[0]),
                [body],
                None,
                block=block,
                timeout=timeout,
            )
        )


def _bind(binding: Binding) -> c.Queue.Bind | c.Exchange.Bind:
    if binding.destination_type == "exchange":
        return method_of(c.Exchange.Bind, **_of_binding(binding))
    return method_of(c.Queue.Bind, **_of_binding(binding))


def _of_binding(binding: Binding) -> dict[str, Any]:
    """The arguments of the methods that make it and take it back."""
    ends = ("destination", "source") if binding.destination_type == "exchange" else ("queue", "exchange")
    names = dict(zip(ends, (binding.destination, binding.source), strict=True))
    return names | {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}


def _publish(exchange: str, routing_key: str, *, mandatory: bool = False) -> c.Basic.Publish:
    return method_of(c.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory)


class RemoteNodeVerbs(RemoteVhostVerbs, NodeVerbs):
    """The verbs of a node, and of its vhost ``/``."""

    def __init__(self, remote: RemoteVhost, new_remote: Callable[[str], RemoteVhost]) -> None:
        RemoteVhostVerbs.__init__(self, remote, "/", new_remote)

    def __str__(self) -> str:
        return f"{self.remote.path!r}{' (closed)' if self.remote.closed else ''}"

    def vhost(self, name: str = "/") -> Steps[VhostVerbs]:
        yield from call(self.remote, "node.declare_vhost", name=name)
        return RemoteVhostVerbs(self._new_remote(name), name, self._new_remote)

    def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        force: bool = False,
        vhost: str | None = None,
    ) -> Steps[int]:
        where = self.name if vhost is None else vhost
        return self._delete_queue(where, name, if_empty=if_empty, if_unused=if_unused, force=force)

    def topic(self, name: str, *, queues: int | None = None) -> Steps[TopicVerbs]:
        answer = yield from call(self.remote, "topic.declare", name=name, queues=queues)
        yield from self.remote.open_calls()  # so that messages can be handed over without waiting
        return RemoteTopicVerbs(self.remote, name, answer["queues"], TopicSettings(**answer["settings"]))

    def pending_transactions(self) -> Steps[list[TransactionVerbs]]:
        halves = yield from call(self.remote, "node.pending_transactions")
        return [RemoteTransactionVerbs(self.remote, **half) for half in halves]
