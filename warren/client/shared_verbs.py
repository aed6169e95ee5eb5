"""Verbs of a shared directory: those of the node in this process while it works on that directly, in a forked child
those of a client.

Handles hold on to them, whatever becomes of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from warren.client.link_queue import LinkQueue
from warren.client.remote import RemoteVhost
from warren.client.shared_directory import SharedDirectory
from warren.client.topic_verbs import RemoteTopicVerbs, RemoteTransactionVerbs
from warren.client.verbs import RemoteExchangeVerbs, RemoteNodeVerbs, RemoteVhostVerbs
from warren.verbs.queue_host import LocalQueue
from warren.verbs.steps import Steps
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

if TYPE_CHECKING:
    from warren.verbs.exchange_verbs import ExchangeVerbs
    from warren.verbs.queue_verbs import QueueVerbs
    from warren.verbs.topic_verbs import TopicVerbs
    from warren.verbs.transaction_verbs import TransactionVerbs


class Switch:
    """Verbs of one of two kinds: local ones while there are some, else remote ones, made when they are needed."""

    def __init__(self, directory: SharedDirectory, local: Any, remote: Callable[[], Any]) -> None:
        self._directory = directory
        self._local = local
        self._new_remote = remote
        self._remote: Any = None

    def now(self) -> Any:
        """The verbs to use."""
        local = self._local
        if local is not None and self._directory.local is not None:
            return local
        if self._remote is None:
            self._local, self._remote = None, self._new_remote()
        return self._remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now(), name)

    def __str__(self) -> str:
        return str(self.now())


class SharedVhostVerbs(Switch):
    """A vhost's. What it returns switches, too."""

    def __init__(
        self,
        directory: SharedDirectory,
        name: str,
        local: VhostVerbs | None,
        connection: Callable[[], RemoteVhost],
    ) -> None:
        """``connection``: makes one when it is needed."""
        self._connection = functools.cache(connection)
        super().__init__(directory, local, lambda: RemoteVhostVerbs(self._connection(), name, directory.new_remote))

    def _switching(self, local: Any, remote: Callable[[], Any]) -> Any:
        return Switch(self._directory, local, remote)

    def _queue(self, verbs: QueueVerbs) -> Any:
        host = verbs.host
        if isinstance(host, LocalQueue):
            self._directory.moves[verbs] = lambda: LinkQueue(self._connection(), host.entry, host.take_channel())
        return verbs

    def queue(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        return self._queue((yield from self.now().queue(*args, **kwargs)))

    def all_queues(self) -> list[Any]:
        return [self._queue(verbs) for verbs in self.now().all_queues()]

    def exchange(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        verbs: ExchangeVerbs = yield from self.now().exchange(*args, **kwargs)
        if isinstance(verbs, RemoteExchangeVerbs):
            return verbs
        return self._switching(verbs, lambda: RemoteExchangeVerbs(self._connection(), verbs.declaration))


class SharedNodeVerbs(SharedVhostVerbs):
    """A node's."""

    def __init__(self, directory: SharedDirectory) -> None:
        local = None if directory.local is None else NodeVerbs(directory.local)
        super().__init__(directory, "/", local, lambda: directory.node)
        self._new_remote = lambda: RemoteNodeVerbs(directory.node, directory.new_remote)

    def vhost(self, name: str = "/") -> Steps[Any]:
        verbs = yield from self.now().vhost(name)
        if isinstance(verbs, RemoteVhostVerbs):
            return verbs
        return SharedVhostVerbs(self._directory, name, verbs, lambda: self._directory.new_remote(name))

    def topic(self, name: str, *, queues: int | None = None) -> Steps[Any]:
        verbs = yield from self.now().topic(name, queues=queues)
        if isinstance(verbs, RemoteTopicVerbs):
            return verbs
        return SharedTopicVerbs(self._directory, verbs)

    def pending_transactions(self) -> Steps[list[Any]]:
        transactions = yield from self.now().pending_transactions()
        return [_transaction(self._directory, verbs) for verbs in transactions]


def node_verbs(directory: SharedDirectory) -> NodeVerbs:
    """Return the verbs for a handle on the node."""
    return cast("NodeVerbs", SharedNodeVerbs(directory))


class SharedTopicVerbs(Switch):
    """A topic's."""

    def __init__(self, directory: SharedDirectory, local: TopicVerbs) -> None:
        name, queues, settings = local.name, local.queues, directory.config.topics
        super().__init__(directory, local, lambda: RemoteTopicVerbs(directory.node, name, queues, settings))

    def prepare(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        return _transaction(self._directory, (yield from self.now().prepare(*args, **kwargs)))


def _transaction(directory: SharedDirectory, verbs: TransactionVerbs) -> Any:
    if isinstance(verbs, RemoteTransactionVerbs):
        return verbs
    return Switch(directory, verbs, lambda: RemoteTransactionVerbs(directory.node, **verbs.place))
