"""The verbs of :mod:`warren.verbs.vhost_verbs` and :mod:`warren.verbs.exchange_verbs` for a node that another process
hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pamqp import commands as c

from warren.actors.engines.declared.exchanges import ExchangeDeclaration
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm
from warren.amqp.methods import method_of
from warren.amqp.own_methods import DUE
from warren.client.link_queue import LinkQueue
from warren.client.remote import RemoteVhost
from warren.client.topic_verbs import RemoteTopicVerbs, RemoteTransactionVerbs
from warren.queue_index.message.amqp_tables import LongInteger
from warren.storage.call_arguments import as_texts
from warren.storage.errors import WarrenError
from warren.values.messages import LATER, PublishArguments, as_bodies, as_body, publish_key
from warren.verbs.exchange_verbs import ExchangeVerbs
from warren.verbs.operation import Operation
from warren.verbs.publishing import PATIENCE_S, AsTheyWere, publish_groups, settled_confirm
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import Steps
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

if TYPE_CHECKING:
    from warren.verbs.topic_verbs import TopicVerbs
    from warren.verbs.transaction_verbs import TransactionVerbs

T = TypeVar("T")


def with_due(properties: Mapping[str, Any], due_ms: int) -> dict[str, Any]:
    """Return the properties of a message that the host delays."""
    return {**properties, "headers": {**(properties.get("headers") or {}), DUE: LongInteger(due_ms)}}


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
            key = self._new_key(routing_key, with_due(scheduled.properties, due_ms))
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

    def _new_key(self, routing_key: str, properties: Mapping[str, Any]) -> PublishKey:
        # The host makes copies of what the headers say, and takes the blind ones off.
        return publish_key(self.declaration.vhost, self.declaration.name, [routing_key], properties)


class RemoteVhostVerbs(VhostVerbs):
    """The verbs of one vhost."""

    def __init__(self, remote: RemoteVhost, name: str, new_remote: Callable[[str], RemoteVhost]) -> None:
        VhostVerbs.__init__(self, remote, name)  # type: ignore[arg-type]
        self.remote = remote
        self._new_remote = new_remote

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.remote.perform(operation, self.name)

    def release(self) -> Steps[None]:
        """Delete the exclusive queues that were declared through this object: they go with its connection."""
        self.remote.check_process()
        yield from self.remote.flush()
        self.remote.release()

    def _queue(self, entry: QueueEntry) -> QueueVerbs:
        return QueueVerbs(LinkQueue(self.remote, entry))

    def _exchange(self, declaration: ExchangeDeclaration) -> RemoteExchangeVerbs:
        return RemoteExchangeVerbs(self.remote, declaration)

    def queue_identity(self, name: str) -> object:
        return self  # the handle goes by the name

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
        entries = yield from self.remote.within(timeout, self.find_queues(queue_names))
        if not queue_names:
            return settled_confirm()
        if key is None:
            queues = map(self._queue, entries)
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


def _publish(exchange: str, routing_key: str, *, mandatory: bool = False) -> c.Basic.Publish:
    return method_of(c.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory)


class RemoteNodeVerbs(RemoteVhostVerbs, NodeVerbs):
    """The verbs of a node, and of its vhost ``/``."""

    def __init__(self, remote: RemoteVhost, new_remote: Callable[[str], RemoteVhost]) -> None:
        RemoteVhostVerbs.__init__(self, remote, "/", new_remote)

    def __str__(self) -> str:
        return f"{self.remote.path!r}{' (closed)' if self.remote.closed else ''}"

    def vhost(self, name: str = "/") -> Steps[VhostVerbs]:
        yield from self.declare_vhost(name)
        return RemoteVhostVerbs(self._new_remote(name), name, self._new_remote)

    def topic(self, name: str, *, queues: int | None = None) -> Steps[TopicVerbs]:
        has, settings = yield from self.declare_topic(name, queues)
        yield from self.remote.open_calls()  # so that messages can be handed over without waiting
        return RemoteTopicVerbs(self.remote, name, has, settings)

    def pending_transactions(self) -> Steps[list[TransactionVerbs]]:
        return [RemoteTransactionVerbs(self.remote, **place) for place in (yield from self.pending_places())]
