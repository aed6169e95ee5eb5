"""Node: a running message store, for coroutines.

It wraps a :class:`warren.Node`, which threads can use at the same time (``plain``), as can other event loops. Opening
and closing read and write files for as long as it takes; they run in the loop's default executor, to their ends, even
if the coroutine is cancelled that waits for them: a directory is never left open by nobody.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from actors.engines.arguments import QueueDeclaration
from actors.engines.definitions_json import Imported
from actors.engines.exchanges import ExchangeDeclaration
from actors.engines.topics.names import check_user_topic
from actors.queue_actor import QueueActor
from warren import node
from warren.aio.bridge import change, in_thread
from warren.aio.exchange import Exchange
from warren.aio.publishing import admitted, safe
from warren.aio.queue import Queue
from warren.aio.topic import Topic
from warren.aio.transaction import Transaction, pending_transactions
from warren.config import Config
from warren.exchange import give, size_of
from warren.messages import PublishArguments, as_body
from warren.setting_keywords import SettingKeywords
from warren.topic import declare


class Vhost:
    """What can be done in one vhost, and the owner of the exclusive queues that were declared through it."""

    def __init__(self, of: node.Node, plain: node.Vhost) -> None:
        self._of = of
        self._vhost = plain

    @property
    def name(self) -> str:
        """The vhost's."""
        return self._vhost.name

    async def release(self) -> None:
        """Delete the exclusive queues that were declared through this object."""
        await change(self._of, lambda actor: actor.release(self._vhost))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        passive: bool = False,
    ) -> Queue:
        """Declare a queue, or get the one that is there; ``passive``: only get it. As :meth:`warren.Node.queue`."""
        owner = self._vhost
        if passive:
            cell = await change(self._of, lambda actor: actor.find_queue(self.name, name, owner))
        else:
            declaration = QueueDeclaration(
                vhost=self.name,
                name=name or self._of.new_queue_name(),
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments or {},
            )
            cell = await change(self._of, lambda actor: actor.declare_queue(declaration, owner))
        return Queue(self._of, cell)

    async def delete_queue(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete a queue with its messages and bindings; returns how many messages were ready. None there is fine."""
        owner = self._vhost
        return await change(
            self._of,
            lambda actor: actor.delete_queue(self.name, name, owner=owner, if_empty=if_empty, if_unused=if_unused),
        )

    def queues(self) -> list[Queue]:
        """A handle on every queue, those that are down too."""
        return [Queue(self._of, cell) for cell in list(self._of.actor.vhost(self.name).cells.values())]

    @property
    def down(self) -> dict[str, str]:
        """The queues that cannot be used, and why."""
        return self._vhost.down

    # ── exchanges and bindings ──────────────────────────────────────────────────────────────────────────────────

    async def exchange(
        self,
        name: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Exchange:
        """Declare an exchange ("direct", "fanout", "topic", "headers"); without a ``type``: get the one that is there.

        The default exchange is ``""``.
        """
        if type is None:
            return Exchange(self._of, self._of.actor.vhost(self.name).definitions.exchange(name))
        declaration = ExchangeDeclaration(
            vhost=self.name,
            name=name,
            type=type,  # type: ignore[arg-type]
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments or {},
        )
        await change(self._of, lambda actor: actor.declare_exchange(declaration))
        return Exchange(self._of, declaration)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings."""
        await change(self._of, lambda actor: actor.delete_exchange(self.name, name, if_unused=if_unused))

    async def bind(
        self,
        destination: Queue | Exchange | str,
        source: Exchange | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Let messages go from an exchange to a queue (a name is a queue's), or to another exchange."""
        binding = self._vhost.binding(_plain(destination), _plain(source), routing_key, arguments)
        await change(self._of, lambda actor: actor.bind(binding, self._vhost))

    async def unbind(
        self,
        destination: Queue | Exchange | str,
        source: Exchange | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a binding away."""
        binding = self._vhost.binding(_plain(destination), _plain(source), routing_key, arguments)
        await change(self._of, lambda actor: actor.unbind(binding, self._vhost))

    async def publish_to(
        self,
        names: Iterable[str],
        body: bytes,
        *,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> None:
        """Publish one message to several queues, and come back when it is safe in all of them.

        A position in each, and one body in the store where it is large. ``timeout``: as for a queue's publish.
        """
        found, bodies = list(names), [as_body(body)]
        key = self._vhost.key_to(found, properties)

        def actors() -> list[QueueActor]:
            self._of.check_process()
            return [cell.actor for cell in self._vhost.cells(found)]

        targets, reserved_bytes = await admitted(actors, lambda targets: size_of(targets, key, bodies), timeout)
        await safe(give(self._of, targets, key, bodies, reserved_bytes, here=False))


def _plain(end: Any) -> Any:
    return end if isinstance(end, str) else end.plain


class Node(Vhost):
    """A running node, in the vhost ``/``. Made by :func:`warren.aio.open`, or around a node that is open already."""

    def __init__(self, plain: node.Node) -> None:
        super().__init__(plain, plain)
        self.plain = plain
        """The same node, for threads."""

    def __repr__(self) -> str:
        return repr(self.plain).replace("<warren.", "<warren.aio.", 1)

    @property
    def path(self) -> str:
        return self.plain.path

    async def vhost(self, name: str = "/") -> Vhost:
        """The verbs for a vhost, declared where it is missing; an owner of exclusive queues by itself."""
        await change(self.plain, lambda actor: actor.declare_vhost(name))
        return Vhost(self.plain, node.Vhost(self.plain, name))

    async def vhosts(self) -> list[str]:
        """The names of those that there are."""
        return await change(self.plain, lambda actor: actor.definitions.vhosts())

    async def delete_vhost(self, name: str) -> None:
        """With everything in it."""
        await change(self.plain, lambda actor: actor.delete_vhost(name))

    async def definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """What is declared, of the whole node or of one vhost, as RabbitMQ's definitions JSON."""
        return await change(self.plain, lambda actor: actor.export_definitions(vhost))

    async def import_definitions(self, document: Mapping[str, Any], vhost: str | None = None) -> Imported:
        """Declare what RabbitMQ's definitions JSON has: all of it, or an error that lists what is in the way."""
        return await change(self.plain, lambda actor: actor.import_definitions(document, vhost))

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def topic(self, name: str, *, queues: int | None = None) -> Topic:
        """Declare a topic, or get the one that is there. As :meth:`warren.Node.topic`."""
        check_user_topic(name)
        otherwise = self.plain.config.topics.default_topic_queue_nums
        await change(self.plain, lambda actor: declare(actor, name, queues, otherwise))
        return Topic(self.plain, name)

    async def topics(self) -> dict[str, int]:
        """The topics that there are, those of retries and dead letters too, and how many queues each has."""
        running = await change(self.plain, lambda actor: actor.topics)
        return {} if running is None else running.table.topics

    async def pending_transactions(self) -> list[Transaction]:
        """Messages that were prepared and neither committed nor rolled back, those of before a restart too."""
        return await pending_transactions(self.plain)

    # ── the whole node ──────────────────────────────────────────────────────────────────────────────────────────

    async def memory(self) -> dict[str, Any]:
        """Memory and disk as the monitor sees them, and the alarms that are set."""
        return await in_thread(self.plain.memory)

    async def stats(self) -> dict[str, Any]:
        """Of every vhost the queues' :meth:`Queue.stats`, those that are down, and the stores; and :meth:`memory`."""
        return await in_thread(self.plain.stats)

    async def close(self) -> None:
        """Wait for what was published to be safe, write everything down, and give the directory free."""
        await in_thread(self.plain.close)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Opening:
    """What :func:`warren.aio.open` gives: await it for the node, or use it in an ``async with``, which closes it."""

    def __init__(self, path: str | os.PathLike[str], config: Any, *, adopt: bool, settings: Mapping[str, Any]) -> None:
        self._open = functools.partial(node.open_node, path, config, adopt=adopt, **settings)
        self._node: Node | None = None

    def __await__(self) -> Generator[Any, None, Node]:
        return self._opened().__await__()

    async def _opened(self) -> Node:
        opened: list[node.Node] = []
        try:
            await in_thread(lambda: opened.append(self._open()))
        except asyncio.CancelledError:
            for one in opened:  # nobody gets it
                await in_thread(one.close)
            raise
        return Node(opened[0])

    async def __aenter__(self) -> Node:
        self._node = await self._opened()
        return self._node

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._node is not None:
            await self._node.close()


def open_node(
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    *,
    adopt: bool = False,
    **settings: Unpack[SettingKeywords],
) -> Opening:
    """Open a data directory and start a node in it. Arguments and errors are those of :func:`warren.open`.

    ``node = await warren.aio.open("data")``, or ``async with warren.aio.open("data") as node:``.
    """
    return Opening(path, config, adopt=adopt, settings=settings)
