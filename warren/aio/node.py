"""Node: a running message store, for coroutines.

It shares the running node with a :class:`warren.Node`, which threads (``blocking``) can use at the same time, as can
other event loops. Opening and closing may read and write files for long; they run in the loop's default executor,
to their ends, even if the waiting coroutine is cancelled: a directory is never left open without a handle.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

from warren.aio.bridge import awaited, awaited_safe, in_thread, run_now
from warren.aio.confirm import Confirm
from warren.aio.queue import Queue
from warren.config import Config, SettingKeywords
from warren.handles import node
from warren.storage.call_arguments import checked
from warren.storage.errors import InvalidValueError, shown
from warren.values.messages import PublishArguments, delayed_messages
from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.instrumentation import called
from warren.verbs.steps import run
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_verbs import NodeVerbs, VhostHandle, VhostVerbs

if TYPE_CHECKING:
    from warren.aio.topic import Topic, Transaction
    from warren.server import Server, ServerSettings
    from warren.verbs.topics.topic_verbs import TopicVerbs
    from warren.verbs.topics.transaction_verbs import TransactionVerbs


class Exchange(ExchangeHandle):
    """One exchange. ``publish`` and ``publish_many`` come back when the messages are safe in all queues."""

    @functools.cached_property
    def blocking(self) -> node.Exchange:
        """The same exchange, for threads."""
        return node.Exchange(self._verbs)

    publish = awaited_safe(ExchangeVerbs.publish)
    publish_many = awaited_safe(ExchangeVerbs.publish_many)

    @checked
    def publish_nowait(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        publish = self._verbs.publish
        return Confirm(run_now(called(publish, body, routing_key, mandatory=mandatory, block=False, **properties)))


def _users(verbs: NodeVerbs) -> UserVerbs:
    return verbs.users


class Vhost(VhostHandle):
    """One vhost, and the owner of the exclusive queues that were declared through it.

    ``publish_to`` returns when the message is safe in all queues.
    """

    release = awaited(VhostVerbs.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    queue = awaited(VhostVerbs.queue, Queue)
    delete_queue = awaited(VhostVerbs.delete_queue)

    def queues(self) -> list[Queue]:
        """Return a handle on every queue, including those that failed."""
        return [Queue(verbs) for verbs in run(self._verbs.queues())]

    exchange = awaited(VhostVerbs.exchange, Exchange)
    delete_exchange = awaited(VhostVerbs.delete_exchange)
    bind = awaited(VhostVerbs.bind)
    unbind = awaited(VhostVerbs.unbind)

    set_policy = awaited(VhostVerbs.set_policy)
    clear_policy = awaited(VhostVerbs.clear_policy)
    policies = awaited(VhostVerbs.policies)
    set_operator_policy = awaited(VhostVerbs.set_operator_policy)
    clear_operator_policy = awaited(VhostVerbs.clear_operator_policy)
    operator_policies = awaited(VhostVerbs.operator_policies)
    publish_to = awaited_safe(VhostVerbs.publish_to)

    delayed = awaited(VhostVerbs.delayed, delayed_messages)
    cancel_delayed = awaited(VhostVerbs.cancel_delayed)


def _topic(verbs: TopicVerbs) -> Topic:
    from warren.aio.topic import Topic

    return Topic(verbs)


def _transactions(pending: list[TransactionVerbs]) -> list[Transaction]:
    from warren.aio.topic import Transaction

    return [Transaction(verbs) for verbs in pending]


_delete_queue = awaited(NodeVerbs.delete_queue)


class Node(Vhost):
    """A running node, in the vhost ``/``. Made by :func:`warren.aio.open`, or around a node that is open already."""

    _verbs: NodeVerbs

    def __init__(self, of: node.Node) -> None:
        if not isinstance(of, node.Node):
            raise InvalidValueError(f"a Node is not made from {shown(of)}: call warren.aio.open(path)")
        super().__init__(of._verbs)
        self.blocking = of
        """The same node, for threads."""

    @property
    def path(self) -> str:
        """The data directory."""
        return self.blocking.path

    @property
    def config(self) -> Config:
        """Its settings."""
        return self.blocking.config

    @property
    def is_foreign(self) -> bool:
        """Whether it was opened by the process that this one was forked from."""
        return self.blocking.is_foreign

    @property
    def is_guest(self) -> bool:
        """Whether another process hosts the node of a shared directory."""
        return self.blocking.is_guest

    vhost = awaited(NodeVerbs.vhost, Vhost)
    vhosts = awaited(NodeVerbs.vhosts)
    delete_vhost = awaited(NodeVerbs.delete_vhost)
    delete_queue = _delete_queue
    definitions = awaited(NodeVerbs.definitions)
    import_definitions = awaited(NodeVerbs.import_definitions)

    topic = awaited(NodeVerbs.topic, _topic)
    topics = awaited(NodeVerbs.topics)
    pending_transactions = awaited(NodeVerbs.pending_transactions, _transactions)

    users = awaited(UserVerbs.users, of=_users)
    add_user = awaited(UserVerbs.add_user, of=_users)
    delete_user = awaited(UserVerbs.delete_user, of=_users)
    change_password = awaited(UserVerbs.change_password, of=_users)
    set_user_tags = awaited(UserVerbs.set_user_tags, of=_users)
    authenticate = awaited(UserVerbs.authenticate, of=_users)
    set_user_limits = awaited(UserVerbs.set_user_limits, of=_users)
    clear_user_limits = awaited(UserVerbs.clear_user_limits, of=_users)

    permissions = awaited(UserVerbs.permissions, of=_users)
    set_permissions = awaited(UserVerbs.set_permissions, of=_users)
    clear_permissions = awaited(UserVerbs.clear_permissions, of=_users)
    topic_permissions = awaited(UserVerbs.topic_permissions, of=_users)
    set_topic_permissions = awaited(UserVerbs.set_topic_permissions, of=_users)
    clear_topic_permissions = awaited(UserVerbs.clear_topic_permissions, of=_users)

    vhost_metadata = awaited(UserVerbs.vhost_metadata, of=_users)
    set_vhost_metadata = awaited(UserVerbs.set_vhost_metadata, of=_users)
    vhost_limits = awaited(UserVerbs.vhost_limits, of=_users)
    set_vhost_limits = awaited(UserVerbs.set_vhost_limits, of=_users)
    clear_vhost_limits = awaited(UserVerbs.clear_vhost_limits, of=_users)

    parameters = awaited(UserVerbs.parameters, of=_users)
    set_parameter = awaited(UserVerbs.set_parameter, of=_users)
    clear_parameter = awaited(UserVerbs.clear_parameter, of=_users)
    global_parameters = awaited(UserVerbs.global_parameters, of=_users)
    set_global_parameter = awaited(UserVerbs.set_global_parameter, of=_users)
    clear_global_parameter = awaited(UserVerbs.clear_global_parameter, of=_users)

    memory = awaited(NodeVerbs.memory)
    stats = awaited(NodeVerbs.stats)

    @checked
    async def serve(self, settings: ServerSettings | None = None, *, port: int | None = None) -> Server:
        """Serve AMQP 0-9-1 clients, in an event loop of the server's own: see :meth:`warren.Node.serve`."""
        return await in_thread(lambda: self.blocking.serve(settings, port=port))

    async def close(self) -> None:
        """Wait until what was published is safe, write everything to disk, and release the directory."""
        await in_thread(self.blocking.close)

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Opening:
    """The result of :func:`warren.aio.open`: await it for the node, or use it in an ``async with``, which closes it."""

    def __init__(
        self, path: str | os.PathLike[str], config: Any, *, adopt: bool, share: bool, settings: Mapping[str, Any]
    ) -> None:
        self._open = functools.partial(node.open, path, config, adopt=adopt, share=share, **settings)
        self._node: Node | None = None

    def __repr__(self) -> str:
        return f"<warren.aio.{type(self).__name__} {str(self._open.args[0])!r}>"

    def __await__(self) -> Generator[Any, None, Node]:
        return self._opened().__await__()

    async def _opened(self) -> Node:
        opened: list[node.Node] = []
        try:
            await in_thread(lambda: opened.append(self._open()))
        except asyncio.CancelledError:
            for opened_node in opened:  # the caller does not get it
                await in_thread(opened_node.close)
            raise
        return Node(opened[0])

    async def __aenter__(self) -> Node:
        self._node = await self._opened()
        return self._node

    async def __aexit__(self, *_: object) -> None:
        if self._node is not None:
            await self._node.close()


@checked
def open(
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    *,
    adopt: bool = False,
    share: bool = False,
    **settings: Unpack[SettingKeywords],
) -> Opening:
    """Open a data directory and start a node in it. Arguments and errors are those of :func:`warren.open`.

    ``node = await warren.aio.open("data")``, or ``async with warren.aio.open("data") as node:``.
    """
    return Opening(path, config, adopt=adopt, share=share, settings=settings)
