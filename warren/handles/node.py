"""Node: a running message store in a directory, for threads.

``Node`` acts on the vhost ``/``; :meth:`Node.vhost` gives the same verbs for another one. Handles are safe to share
between threads, not between processes: after a fork the child gets :class:`WrongProcessError`.

The verbs are those of :mod:`warren.verbs.vhost_verbs`; :class:`~warren.hosting.running_node.RunningNode` runs the node.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final, Self, Unpack

import attrs

from warren.actors.clock import SystemClock
from warren.actors.engines.memory_readings import keep_one_heap
from warren.actors.node.guest_listener import GuestListener
from warren.actors.node.node_context import NodeContext, shared_files
from warren.actors.runtime.pool import ThreadPool
from warren.config import Config, SettingKeywords, check_names
from warren.handles.queue import Queue
from warren.hosting import open_nodes
from warren.hosting.data_directory import refuse_part, refuse_running_broker
from warren.hosting.running_node import RunningNode
from warren.storage.call_arguments import checked
from warren.storage.errors import DirectoryLockedError, InvalidValueError, shown
from warren.storage.filesystem import make_data_directory
from warren.values.messages import delayed_messages
from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.steps import blocking, run
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs, VhostHandle, VhostVerbs

if TYPE_CHECKING:
    from warren.client.shared_directory import SharedDirectory
    from warren.handles.topic import Topic, Transaction
    from warren.server import Server, ServerSettings
    from warren.verbs.topics.topic_verbs import TopicVerbs
    from warren.verbs.topics.transaction_verbs import TransactionVerbs


class Exchange(ExchangeHandle):
    """An exchange, which routes messages by their keys or their headers. Made by :meth:`warren.Vhost.exchange`."""

    publish = blocking(ExchangeVerbs.publish)
    publish_many = blocking(ExchangeVerbs.publish_many)


def _users(verbs: NodeVerbs) -> UserVerbs:
    return verbs.users


MEMORY: Final = ":memory:"
"""As the path of a directory: a node in memory, as with SQLite."""


class Vhost(VhostHandle):
    """One vhost, and the owner of the exclusive queues that were declared through it.

    Made by :meth:`Node.vhost`; every call makes another owner. Nothing needs to be closed: :meth:`release` deletes the
    exclusive queues before the node is closed, and a ``with`` does that at its end.
    """

    release = blocking(VhostVerbs.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    queue = blocking(VhostVerbs.queue, Queue)
    delete_queue = blocking(VhostVerbs.delete_queue)

    def queues(self) -> list[Queue]:
        """Return a handle on every queue, including those that failed."""
        return [Queue(verbs) for verbs in run(self._verbs.queues())]

    exchange = blocking(VhostVerbs.exchange, Exchange)
    delete_exchange = blocking(VhostVerbs.delete_exchange)
    bind = blocking(VhostVerbs.bind)
    unbind = blocking(VhostVerbs.unbind)

    set_policy = blocking(VhostVerbs.set_policy)
    clear_policy = blocking(VhostVerbs.clear_policy)
    policies = blocking(VhostVerbs.policies)
    set_operator_policy = blocking(VhostVerbs.set_operator_policy)
    clear_operator_policy = blocking(VhostVerbs.clear_operator_policy)
    operator_policies = blocking(VhostVerbs.operator_policies)
    publish_to = blocking(VhostVerbs.publish_to)

    delayed = blocking(VhostVerbs.delayed, delayed_messages)
    cancel_delayed = blocking(VhostVerbs.cancel_delayed)


def _topic(verbs: TopicVerbs) -> Topic:
    from warren.handles.topic import Topic

    return Topic(verbs)


def _transactions(pending: list[TransactionVerbs]) -> list[Transaction]:
    from warren.handles.topic import Transaction

    return [Transaction(verbs) for verbs in pending]


def _verbs_of(opened: RunningNode | SharedDirectory) -> NodeVerbs:
    if isinstance(opened, RunningNode):
        return NodeVerbs(LocalVhost(opened))
    return opened.verbs()


_delete_queue = blocking(NodeVerbs.delete_queue)


class Node(Vhost):
    """A running node. Made by :func:`warren.open`; close it, or use it in a ``with``."""

    _verbs: NodeVerbs

    def __init__(self, running: RunningNode | SharedDirectory) -> None:
        """Not for programs: call :func:`warren.open`."""
        if type(running).__module__.partition(".")[0] != "warren":
            raise InvalidValueError(f"a Node is not made from {shown(running)}: call warren.open(path)")
        self._opened = running
        self._process = os.getpid()
        super().__init__(_verbs_of(running))

    @property
    def _running(self) -> RunningNode:
        """The node in this process; raises :class:`NotFromOutsideError` if another process hosts it."""
        return self._opened if isinstance(self._opened, RunningNode) else self._opened.running()

    @property
    def path(self) -> str:
        """The data directory."""
        return self._opened.path

    @property
    def config(self) -> Config:
        """Its settings."""
        return self._opened.config

    @property
    def is_foreign(self) -> bool:
        """Whether it was opened by the process that this one was forked from."""
        return self._process != os.getpid()

    @property
    def is_guest(self) -> bool:
        """Whether another process hosts the node of a shared directory."""
        return not isinstance(self._opened, RunningNode) and not self._opened.hosts

    vhost = blocking(NodeVerbs.vhost, Vhost)
    vhosts = blocking(NodeVerbs.vhosts)
    delete_vhost = blocking(NodeVerbs.delete_vhost)
    delete_queue = _delete_queue
    definitions = blocking(NodeVerbs.definitions)
    import_definitions = blocking(NodeVerbs.import_definitions)

    topic = blocking(NodeVerbs.topic, _topic)
    topics = blocking(NodeVerbs.topics)
    pending_transactions = blocking(NodeVerbs.pending_transactions, _transactions)

    users = blocking(UserVerbs.users, of=_users)
    add_user = blocking(UserVerbs.add_user, of=_users)
    delete_user = blocking(UserVerbs.delete_user, of=_users)
    change_password = blocking(UserVerbs.change_password, of=_users)
    set_user_tags = blocking(UserVerbs.set_user_tags, of=_users)
    authenticate = blocking(UserVerbs.authenticate, of=_users)
    set_user_limits = blocking(UserVerbs.set_user_limits, of=_users)
    clear_user_limits = blocking(UserVerbs.clear_user_limits, of=_users)

    permissions = blocking(UserVerbs.permissions, of=_users)
    set_permissions = blocking(UserVerbs.set_permissions, of=_users)
    clear_permissions = blocking(UserVerbs.clear_permissions, of=_users)
    topic_permissions = blocking(UserVerbs.topic_permissions, of=_users)
    set_topic_permissions = blocking(UserVerbs.set_topic_permissions, of=_users)
    clear_topic_permissions = blocking(UserVerbs.clear_topic_permissions, of=_users)

    vhost_metadata = blocking(UserVerbs.vhost_metadata, of=_users)
    set_vhost_metadata = blocking(UserVerbs.set_vhost_metadata, of=_users)
    vhost_limits = blocking(UserVerbs.vhost_limits, of=_users)
    set_vhost_limits = blocking(UserVerbs.set_vhost_limits, of=_users)
    clear_vhost_limits = blocking(UserVerbs.clear_vhost_limits, of=_users)

    parameters = blocking(UserVerbs.parameters, of=_users)
    set_parameter = blocking(UserVerbs.set_parameter, of=_users)
    clear_parameter = blocking(UserVerbs.clear_parameter, of=_users)
    global_parameters = blocking(UserVerbs.global_parameters, of=_users)
    set_global_parameter = blocking(UserVerbs.set_global_parameter, of=_users)
    clear_global_parameter = blocking(UserVerbs.clear_global_parameter, of=_users)

    memory = blocking(NodeVerbs.memory)
    stats = blocking(NodeVerbs.stats)

    @checked
    def serve(self, settings: ServerSettings | None = None, *, port: int | None = None) -> Server:
        """Serve AMQP 0-9-1 clients, beside this program, until :meth:`Server.stop` or the node's end.

        ``port``: replaces the settings' port. Raises :class:`~warren.server.settings.ListenError` if it cannot
        listen there.
        """
        from warren.server import Server, ServerSettings

        chosen = ServerSettings() if settings is None else settings
        server = Server(self._running, chosen if port is None else attrs.evolve(chosen, port=port))
        server.start()
        return server

    def close(self) -> None:
        """Wait until what was published is safe, write everything to disk, and release the directory.

        If another thread is closing it, wait for that. A program that ends normally closes its nodes by itself.
        """
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._opened.forked:
            self.close()


@open_nodes.opening
def open(
    opening: open_nodes.Opening,
    /,
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    *,
    adopt: bool = False,
    share: bool = False,
    **settings: Unpack[SettingKeywords],
) -> Node:
    """Open a data directory and start a node in it; create it if missing. ``":memory:"``: a node in memory.

    ``config``: a :class:`Config`, or a TOML file; ``settings`` override it, by keyword, under RabbitMQ's names.
    ``adopt``: take over the directory of a stopped RabbitMQ, which can have it back. ``share``: any number of processes
    of the machine may open it this way; the settings are those of the one that currently hosts the node. Raises
    :class:`~warren.storage.errors.DirectoryLockedError` if another process has it (:class:`BrokerRunningError`: a
    RabbitMQ), ``ForeignDirectoryError`` for a RabbitMQ's without ``adopt`` and for a part of one,
    :class:`~warren.storage.errors.SettingsError`, :class:`~warren.storage.errors.DataError`.
    """
    check_names(settings, ("adopt", "config", "share"))
    if os.fspath(path) == MEMORY:
        from warren.hosting.memory_node import start_in_memory

        return Node(opening.start(lambda: start_in_memory(MEMORY, config, share=share, settings=settings)))
    chosen = Config.of(config, **settings)
    refuse_part(os.fspath(path))
    refuse_running_broker(os.fspath(path))
    where = os.path.abspath(path)
    make_data_directory(where)
    keep_one_heap()  # before threads are started
    try:
        if share:
            return Node(_open_shared(opening, where, chosen, adopt))
        running = opening.start(lambda: _start(where, chosen, adopt))
    except DirectoryLockedError as error:
        if not open_nodes.is_open(where):
            raise
        raise DirectoryLockedError(
            f"{error}: that is this process; use the node that it has open, or give share=True each time"
        ) from error
    open_nodes.close_at_exit(running)
    return Node(running)


def _open_shared(opening: open_nodes.Opening, path: str, config: Config, adopt: bool) -> SharedDirectory:
    import warren.server
    from warren.client.shared_directory import open_shared

    directory = open_shared(opening, path, config, lambda: _serve_directory(_start(path, config, adopt, shared=True)))
    if not directory.hosts:
        import warren.server.channels.guest_calls  # noqa: F401 - it may be the next host
    return directory


def _start(path: str, config: Config, adopt: bool, *, shared: bool = False) -> RunningNode:
    context = NodeContext(
        files=shared_files(sync_evicted=config.node.sync != "os"),
        pool=ThreadPool(config.node.threads),
        clock=SystemClock(),
        random=os.urandom,
        settings=config.node,
        engine=config.engine,
    )
    start_listener = _start_listener if config.node.attach and not shared else None
    return RunningNode(context, path, config, adopt=adopt, start_listener=start_listener, shared=shared)


def _start_listener(running: RunningNode) -> GuestListener | None:
    """Let other processes of the directory's user in."""

    def let_in(connection: socket.socket) -> None:
        from warren.server.server import let_in

        let_in(running, connection)

    return GuestListener.start(running.path, let_in)


def _serve_directory(running: RunningNode) -> RunningNode:
    """Serve other processes."""
    from warren.server import Server, ServerSettings

    try:
        Server(running, ServerSettings(port=None, directory=running.path, consumer_timeout=None)).start()
    except BaseException:
        running.close()
        raise
    return running
