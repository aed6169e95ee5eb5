"""The verbs of a vhost, and of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.exchanges import Binding, DestinationType, ExchangeDeclaration
from warren.actors.engines.declared.policies import ApplyTo, Policy, PolicyKind
from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm, CountDown
from warren.hosting.running_node import RunningNode
from warren.storage.call_arguments import as_texts, checked
from warren.storage.topic_settings import TopicSettings
from warren.values.messages import LATER, PublishArguments, as_body
from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.operation import Operation, Performer, local, operation
from warren.verbs.publishing import settled_confirm
from warren.verbs.queue_verbs import QueueHandle, QueueVerbs
from warren.verbs.steps import Handle, Steps, answered, run
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_host import LocalVhost, VhostHost

if TYPE_CHECKING:
    from warren.actors.engines.declared.definitions_json import Imported
    from warren.values.retry import Retry
    from warren.verbs.topics.topic_verbs import TopicVerbs
    from warren.verbs.topics.transaction_verbs import HalfPlace, TransactionVerbs


def _fields_of_queue(entry: QueueEntry) -> dict[str, Any]:
    return entry.declaration.to_json() | {"exclusive": entry.declaration.exclusive}


def _queue_of(fields: Mapping[str, Any]) -> QueueEntry:
    return QueueEntry(QueueDeclaration(**fields))


def _fields_of_queues(entries: list[QueueEntry]) -> list[dict[str, Any]]:
    return list(map(_fields_of_queue, entries))


def _queues_of(each: list[Mapping[str, Any]]) -> list[QueueEntry]:
    return list(map(_queue_of, each))


def _exchange_of(fields: Mapping[str, Any]) -> ExchangeDeclaration:
    return ExchangeDeclaration(**fields)


def _ends(
    source: ExchangeHandle | str, destination: QueueHandle | ExchangeHandle | str
) -> tuple[str, str, DestinationType]:
    """Return the names of a binding's two ends, and what its destination is."""
    return (
        source if isinstance(source, str) else source.name,
        destination if isinstance(destination, str) else destination.name,
        "exchange" if isinstance(destination, ExchangeHandle) else "queue",
    )


def _declared_topic_of(answer: list[Any]) -> tuple[int, TopicSettings]:
    queues, settings = answer
    return queues, TopicSettings(**settings)


def _fields_of_places(places: list[HalfPlace]) -> list[dict[str, Any]]:
    return [attrs.asdict(place) for place in places]


def _places_of(each: list[dict[str, Any]]) -> list[HalfPlace]:
    from warren.verbs.topics.transaction_verbs import HalfPlace

    return [HalfPlace(**fields) for fields in each]


T = TypeVar("T")


class VhostVerbs(Performer):
    """The verbs of one vhost."""

    def __init__(self, host: VhostHost) -> None:
        self.host = host

    def __str__(self) -> str:
        return repr(self.name)

    @property
    def name(self) -> str:
        return self.host.name

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.host.perform(self, operation)

    @property
    def node(self) -> RunningNode:
        """The node in this process, which performs the operations."""
        return local(self.host, LocalVhost).node

    @property
    def _owner(self) -> object:
        return local(self.host, LocalVhost).owner

    def release(self) -> Steps[None]:
        """Delete the exclusive queues that were declared through this object."""
        return self.host.release()

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
    ) -> Steps[QueueVerbs]:
        """Get a queue, or declare it if it does not exist; ``passive``: only get it. The node replaces the name "".

        Values not given match any queue. A new one is durable, and neither ``exclusive`` nor ``auto_delete``.
        ``arguments`` and ``retry`` (:class:`warren.Retry`; it handles messages that come back) count as one value
        here: if either is given, the queue has exactly these arguments.

        ``exclusive``: only its owner, which is this object (see :class:`Vhost`), can use it; it ends with the owner.
        Raises :class:`PreconditionFailedError` if it exists and something that is given differs,
        :class:`NotFoundError` if it is ``passive`` and does not exist, :class:`ResourceLockedError` if it is exclusive
        to another owner.
        """
        properties = queue_properties(durable, exclusive, auto_delete, arguments, retry)
        return self._queue((yield from self.declare_queue(name, properties, passive=passive)))

    def _queue(self, entry: QueueEntry) -> QueueVerbs:
        host = self.host.queue(entry)
        verbs = QueueVerbs(host)
        self.host.host.move_at_fork(verbs, lambda: self.host.queue(entry, host.take_channel()))
        return verbs

    @operation("vhost", encode=_fields_of_queue, decode=_queue_of)
    def declare_queue(self, name: str, properties: Mapping[str, Any], *, passive: bool = False) -> Steps[QueueEntry]:
        """Do what :meth:`queue` does, with the result of :func:`queue_properties`."""
        if passive:
            return (yield from self.node.change(lambda registry: registry.use_queue(self.name, name, self._owner)))
        declared = checked(queue_properties)(**properties)
        name = name or self.node.new_queue_name()
        return (
            yield from self.node.change(
                lambda registry: _declare_queue(registry, self.name, name, declared, self._owner)
            )
        )

    @operation("vhost")
    def delete_queue(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, force: bool = False
    ) -> Steps[int]:
        """Delete a queue with its messages and bindings; return how many were ready. A missing queue is no error.

        ``force``: delete even a queue that failed, with what could still be read from its files.
        """
        return self._delete_queue(self.name, name, if_empty=if_empty, if_unused=if_unused, force=force)

    def _delete_queue(self, vhost: str, name: str, *, if_empty: bool, if_unused: bool, force: bool) -> Steps[int]:
        return (
            yield from self.node.change(
                lambda registry: registry.delete_queue(
                    vhost, name, owner=self._owner, if_empty=if_empty, if_unused=if_unused, force=force
                )
            )
        )

    def queues(self) -> Steps[list[QueueVerbs]]:
        """Return all queues, including those that failed."""
        return [self._queue(entry) for entry in (yield from self.queue_entries())]

    @operation("vhost", encode=_fields_of_queues, decode=_queues_of)
    def queue_entries(self) -> Steps[list[QueueEntry]]:
        """Return the entries of all queues; for another process, without those exclusive to others."""
        entries = list(self.node.vhost(self.name).queues.values())
        if self._owner is not self.host:
            entries = [entry for entry in entries if entry.owner in (None, self._owner)]
        return answered(entries)

    @operation("vhost", encode=_fields_of_queues, decode=_queues_of)
    def find_queues(self, names: Iterable[str]) -> Steps[list[QueueEntry]]:
        """Return the entries of the named queues. Raises :class:`NotFoundError`, :class:`ResourceLockedError`."""
        return answered([self.node.registry.find_queue(self.name, name, self._owner) for name in names])

    @operation("vhost")
    def failed_queues(self) -> Steps[dict[str, str]]:
        """The queues that cannot be used, and why."""
        return answered(self.node.vhost(self.name).failed_queues)

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
    ) -> Steps[ExchangeVerbs]:
        """Declare an exchange ("direct", "fanout", "topic", "headers"); without a ``type``: get the existing one.

        The default exchange is ``""``.
        """
        if type is None:
            declaration = yield from self.find_exchange(name)
        else:
            declaration = yield from self.declare_exchange(
                name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments or {}
            )
        return self._exchange(declaration)

    def _exchange(self, declaration: ExchangeDeclaration) -> ExchangeVerbs:
        verbs = ExchangeVerbs(self.host.exchange(declaration))
        self.host.host.move_at_fork(verbs, lambda: self.host.exchange(declaration))
        return verbs

    @operation("vhost", decode=_exchange_of)
    def find_exchange(self, name: str) -> Steps[ExchangeDeclaration]:
        """Return an exchange's declaration. Raises :class:`NotFoundError`."""
        return answered(self.node.vhost(self.name).definitions.exchange(name))

    @operation("vhost", decode=_exchange_of)
    def declare_exchange(
        self, name: str, type: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: Mapping[str, Any]
    ) -> Steps[ExchangeDeclaration]:
        """Do what :meth:`exchange` does with a type."""
        declaration = ExchangeDeclaration(
            vhost=self.name,
            name=name,
            type=type,  # type: ignore[arg-type]
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        yield from self.node.change(lambda registry: registry.declare_exchange(declaration))
        return declaration

    @operation("vhost")
    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Steps[None]:
        """Delete an exchange with its bindings."""
        yield from self.node.change(lambda registry: registry.delete_exchange(self.name, name, if_unused=if_unused))

    def bind(
        self,
        destination: QueueHandle | ExchangeHandle | str,
        source: ExchangeHandle | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
        """Bind a queue (a name is a queue's) or another exchange to an exchange."""
        return self.add_binding(*_ends(source, destination), routing_key, arguments or {})

    def unbind(
        self,
        destination: QueueHandle | ExchangeHandle | str,
        source: ExchangeHandle | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
        """Delete a binding."""
        return self.remove_binding(*_ends(source, destination), routing_key, arguments or {})

    @operation("vhost")
    def add_binding(
        self,
        source: str,
        destination: str,
        destination_type: DestinationType,
        routing_key: str,
        arguments: Mapping[str, Any],
    ) -> Steps[None]:
        """Declare a binding, given the names of its ends."""
        binding = Binding(
            vhost=self.name,
            source=source,
            destination=destination,
            destination_type=destination_type,
            routing_key=routing_key,
            arguments=arguments,
        )
        yield from self.node.change(lambda registry: registry.bind(binding, self._owner))

    @operation("vhost")
    def remove_binding(
        self,
        source: str,
        destination: str,
        destination_type: DestinationType,
        routing_key: str,
        arguments: Mapping[str, Any],
    ) -> Steps[None]:
        """Undo :meth:`add_binding`."""
        binding = Binding(
            vhost=self.name,
            source=source,
            destination=destination,
            destination_type=destination_type,
            routing_key=routing_key,
            arguments=arguments,
        )
        yield from self.node.change(lambda registry: registry.unbind(binding, self._owner))

    # ── policies ────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("vhost")
    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        apply_to: ApplyTo = "all",
    ) -> Steps[None]:
        """Set or replace a policy for queues and exchanges whose names contain a match for ``pattern``.

        ``definition``: queue arguments without their ``x-``, and ``alternate-exchange``. ``apply_to``: "queues",
        "exchanges" or "all". Raises :class:`ArgumentsError` for an invalid policy.
        """
        yield from self._set_policy("policy", name, pattern, definition, priority=priority, apply_to=apply_to)

    @operation("vhost")
    def clear_policy(self, name: str) -> Steps[None]:
        """Delete a policy; raises :class:`NotFoundError` if there is no policy with that name."""
        yield from self.node.change(lambda registry: registry.clear_policy("policy", self.name, name))

    @operation("vhost")
    def policies(self) -> Steps[list[dict[str, Any]]]:
        """Return the policies, under RabbitMQ's names, by ascending priority."""
        return (yield from self.node.change(lambda registry: registry.policies("policy", self.name)))

    @operation("vhost")
    def set_operator_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        apply_to: ApplyTo = "all",
    ) -> Steps[None]:
        """As :meth:`set_policy`, for numbers and times that bound those of users' policies and arguments."""
        yield from self._set_policy("operator_policy", name, pattern, definition, priority=priority, apply_to=apply_to)

    @operation("vhost")
    def clear_operator_policy(self, name: str) -> Steps[None]:
        """Delete an operator policy; raises :class:`NotFoundError` if no such policy exists."""
        yield from self.node.change(lambda registry: registry.clear_policy("operator_policy", self.name, name))

    @operation("vhost")
    def operator_policies(self) -> Steps[list[dict[str, Any]]]:
        """As :meth:`policies`."""
        return (yield from self.node.change(lambda registry: registry.policies("operator_policy", self.name)))

    def _set_policy(
        self,
        kind: PolicyKind,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int,
        apply_to: ApplyTo,
    ) -> Steps[None]:
        policy = Policy(
            kind=kind,
            vhost=self.name,
            name=name,
            pattern=pattern,
            definition=definition,
            priority=priority,
            apply_to=apply_to,
        )
        yield from self.node.change(lambda registry: registry.set_policy(policy))

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    @operation("vhost")
    def delayed(self, limit: int = 100, *, queue: str | None = None) -> Steps[list[tuple[int, bytes]]]:
        """Return up to ``limit`` messages that wait until they are due (``delay``, ``at``, ``x-delayed-message``), as
        :class:`warren.DelayedMessage`, the next due first. ``queue``: only those published directly to this queue."""
        from warren.verbs.delayed_verbs import waiting

        return waiting(self.node, self.name, limit, queue)

    @operation("vhost")
    def cancel_delayed(self, message_id: str, *, queue: str | None = None) -> Steps[int]:
        """Cancel the messages that wait under an id; return how many."""
        from warren.verbs.delayed_verbs import cancel

        return cancel(self.node, self.name, message_id, queue)

    @operation("vhost")
    def purge_delayed(self, queue: str) -> Steps[int]:
        """Cancel all messages that wait for a queue; return how many."""
        from warren.verbs.delayed_verbs import purge

        return purge(self.node, self.name, queue)

    def publish_to(
        self,
        names: Iterable[str],
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Steps[Confirm]:
        """Publish one message to several queues: each gets it once, and a large body is stored once."""
        queue_names, body = list(dict.fromkeys(as_texts(names, "names"))), as_body(body)
        if LATER.isdisjoint(properties):
            return self.host.publish_to(queue_names, body, properties, block, timeout)
        return self._publish_to_later(queue_names, body, properties, block, timeout)

    def _publish_to_later(
        self, names: list[str], body: bytes, properties: Mapping[str, Any], block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        """The same with ``delay`` or ``at``: the message waits for each queue separately, with the same id."""
        host = self.host.host
        entries = yield from host.within(timeout, self.host.entries(names))
        rest = {**properties, "message_id": properties.get("message_id") or host.new_message_id()}
        confirms: list[Confirm] = []
        for entry in entries:
            confirms.append((yield from self._queue(entry).publish(body, block=block, timeout=timeout, **rest)))
        return CountDown([*confirms]) if confirms else settled_confirm()


def imported_of(answer: dict[str, Any]) -> Imported:
    """Decode what was imported."""
    from warren.actors.engines.declared.definitions_json import Imported

    kinds = {"policies": Policy, "exchanges": ExchangeDeclaration, "queues": QueueDeclaration, "bindings": Binding}
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in answer.items()
    }
    for name, kind in kinds.items():
        fields[name] = tuple(kind(**declaration) for declaration in answer[name])
    for name in ("permissions", "topic_permissions", "parameters"):
        fields[name] = tuple(map(tuple, answer[name]))
    return Imported(**fields)


class NodeVerbs(VhostVerbs):
    """The verbs of a node, and of its vhost ``/``."""

    @property
    def users(self) -> UserVerbs:
        """Those about users, permissions, limits and parameters."""
        return UserVerbs(self.host)

    def __str__(self) -> str:
        return f"{self.host.host.path!r}{' (closed)' if self.host.host.closed else ''}"

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhost(self, name: str = "/") -> Steps[VhostVerbs]:
        """Return the verbs for a vhost, declaring it if missing. They own their exclusive queues."""
        yield from self.declare_vhost(name)
        verbs = VhostVerbs(self.host.vhost(name))
        self.host.host.move_at_fork(verbs, lambda: self.host.vhost(name))
        return verbs

    @operation("node")
    def declare_vhost(self, name: str) -> Steps[None]:
        """Declare a vhost if it is missing."""
        yield from self.node.change(lambda registry: registry.declare_vhost(name))

    @operation("node")
    def vhosts(self) -> Steps[list[str]]:
        """Return the names of all vhosts."""
        return (yield from self.node.change(lambda registry: registry.definitions.vhosts()))

    @operation("node")
    def delete_vhost(self, name: str) -> Steps[None]:
        """Delete a vhost with everything in it."""
        yield from self.node.change(lambda registry: registry.delete_vhost(name))

    @operation("node")
    def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        force: bool = False,
        vhost: str | None = None,
    ) -> Steps[int]:
        """As for a vhost; ``vhost``: the queue's, by default ``/``."""
        where = self.name if vhost is None else vhost
        return self._delete_queue(where, name, if_empty=if_empty, if_unused=if_unused, force=force)

    @operation("node")
    def definitions(self, vhost: str | None = None) -> Steps[dict[str, Any]]:
        """Return what is declared, in the whole node (with users) or in one vhost, as RabbitMQ's definitions JSON."""
        return self.node.definitions(vhost)

    @operation("node", decode=imported_of)
    def import_definitions(self, document: Mapping[str, Any], vhost: str | None = None) -> Steps[Imported]:
        """Declare what RabbitMQ's definitions JSON has; an error lists all conflicts before anything is declared.

        A long document is declared in slices, and other changes may come between two of them. If one fails, as on a
        full disk, the slices before it stay.
        """
        from warren.actors.engines.declared.definitions_json import Imported

        slices = yield from self.node.change(lambda registry: registry.definitions.importing(document, vhost))
        done: list[Imported] = []
        while (part := (yield from self.node.change(lambda registry: registry.import_slice(slices)))) is not None:
            done.append(part)
        return Imported.join(done)

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str, *, queues: int | None = None) -> Steps[TopicVerbs]:
        """Declare a topic, or get the existing one; it gets at least ``queues`` queues (by default 4 if it is new).

        Raises :class:`TopicNameError`, :class:`QueueRangeError`, and ``TopicsDownError`` if the topics' files cannot be
        opened.
        """
        from warren.verbs.topics.topic_verbs import TopicVerbs

        has, settings = yield from self.declare_topic(name, queues)
        host = self.host.topic(name, has)
        yield from host.open()
        verbs = TopicVerbs(host, settings)
        self.host.host.move_at_fork(verbs, lambda: self.host.topic(name, has))
        return verbs

    @operation("node", decode=_declared_topic_of)
    def declare_topic(self, name: str, queues: int | None) -> Steps[tuple[int, TopicSettings]]:
        """Do what :meth:`topic` does. Return how many queues the topic has, and the node's settings for topics."""
        from warren.actors.engines.topics.names import check_user_topic

        check_user_topic(name, may_be_long=True)
        settings = self.node.config.topics
        has = yield from self.node.change(
            lambda registry: _declare_topic(registry, name, queues, settings.default_topic_queue_nums)
        )
        return has, settings

    @operation("node")
    def topics(self) -> Steps[dict[str, int]]:
        """Return all topics, including those of retries and dead letters, and how many queues each has."""
        running = yield from self.node.change(lambda registry: registry.topics)
        return {} if running is None else running.table.topics

    def pending_transactions(self) -> Steps[list[TransactionVerbs]]:
        """Return prepared messages that are neither committed nor rolled back, even from before a restart."""
        return [self._transaction(place) for place in (yield from self.pending_places())]

    def _transaction(self, place: HalfPlace) -> TransactionVerbs:
        from warren.verbs.topics.transaction_verbs import TransactionVerbs

        verbs = TransactionVerbs(self.host.transaction(place))
        self.host.host.move_at_fork(verbs, lambda: self.host.transaction(place))
        return verbs

    @operation("node", encode=_fields_of_places, decode=_places_of)
    def pending_places(self) -> Steps[list[HalfPlace]]:
        """Return where the messages are that are neither committed nor rolled back."""
        from warren.verbs.topics.transaction_verbs import pending_places

        return pending_places(self.node)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("node")
    def memory(self) -> Steps[dict[str, Any]]:
        """Return memory and disk as measured by the monitor, and the alarms that are set."""
        return self.node.memory()

    @operation("node")
    def stats(self) -> Steps[dict[str, Any]]:
        """Return every vhost's queues' :meth:`Queue.stats`, failed queues, and stores; :meth:`memory`; and the topics
        (:mod:`warren.hosting.node_stats`), ``None`` if there never was one."""
        return self.node.stats()


class VhostHandle(Handle[VhostVerbs]):
    """The properties of a vhost that need no request."""

    made_by = "node.vhost(name)"

    @property
    def name(self) -> str:
        return self._verbs.name

    @property
    def failed_queues(self) -> dict[str, str]:
        """The queues that cannot be used, and why."""
        return run(self._verbs.failed_queues())


def queue_properties(
    durable: bool | None = None,
    exclusive: bool | None = None,
    auto_delete: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    retry: Retry | None = None,
) -> dict[str, Any]:
    """Return the fields of a :class:`QueueDeclaration` that are given."""
    if retry is not None:
        arguments = {**retry.arguments, **(arguments or {})}
    given = {
        "durable": False if exclusive else durable,  # it ends with its owner, and so before a restart
        "exclusive": exclusive,
        "auto_delete": auto_delete,
        "arguments": arguments,
    }
    return {name: value for name, value in given.items() if value is not None}


def _declare_queue(
    registry: NodeRegistry, vhost: str, name: str, properties: Mapping[str, Any], owner: object
) -> QueueEntry:
    definitions = registry.vhost(vhost).definitions
    if not definitions.has("queue", name):
        return registry.declare_queue(QueueDeclaration(vhost=vhost, name=name, **properties), owner)
    existing = definitions.queue(name)
    declaration = existing if existing.is_stream else attrs.evolve(existing, **properties)
    differences = existing.all_differences(declaration)
    if differences and existing.exclusive == declaration.exclusive:
        registry.use_queue(vhost, name, owner)  # another owner's is locked, whatever differs
        raise PreconditionFailedError(
            f"{existing} exists and differs: {', '.join(differences)}; passive=True gets it as it is"
        )
    return registry.declare_queue(declaration, owner)


def _declare_topic(registry: NodeRegistry, name: str, queues: int | None, otherwise: int) -> int:
    """Ensure that a topic exists with at least ``queues`` queues (``None``: any number, ``otherwise`` if new).

    Returns how many it has.
    """
    from warren.actors.engines.topics.names import check_user_topic

    existing_queues = None if registry.topics is None else registry.topics.table.queues(name)
    if existing_queues is None:
        check_user_topic(name)
    if existing_queues is not None and (queues is None or queues <= existing_queues):
        return existing_queues
    declared = otherwise if queues is None else queues
    registry.declare_topic(name, declared)
    return declared
