"""One node per directory for all users in a process that know only the path: Kombu's connections, durable queues.

The node is opened for the first of them and closed by the last, or when the process ends; with other processes it is
shared. A directory that the program has opened by itself, with :func:`warren.open` and without ``share``, is locked:
pass that node instead of the path. ``":memory:"`` is one node in memory for all of them only.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any

import attrs

from warren.actors.runtime.shared import Shared
from warren.config import Config
from warren.handles import node as nodes
from warren.handles.node import Node
from warren.storage.errors import SettingsError, WarrenError


def is_open(node: Node) -> bool:
    """Whether the node is open and was opened by this process."""
    if node.is_foreign:
        return False
    try:
        node._opened.check_process()
    except WarrenError:
        return False
    return True


_NODES: Shared[str, Node] = Shared(Node.close, is_open)
atexit.register(_NODES.close_all)


@attrs.frozen
class NodeLease:
    """A node in use; :meth:`release` it once."""

    node: Node
    _key: str | None

    def release(self) -> None:
        """End the lease. In a forked child: do nothing, the node is the parent's."""
        if self._key is not None:
            _NODES.release(self._key, self.node)


def lease_node(
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> NodeLease:
    """Lease the node of a directory, opening it if needed; the arguments are those of :func:`warren.open`.

    Raises what :func:`warren.open` does, and :class:`SettingsError` if the node is open with other settings than
    the given ones; without settings it is taken as it is.
    """
    in_memory = os.fspath(path) == nodes.MEMORY
    key = nodes.MEMORY if in_memory else os.path.realpath(path)
    chosen = None if config is None and not settings else Config.of(config, **(settings or {}))
    node = _NODES.acquire(key, lambda: nodes.open(key, chosen, share=not in_memory))
    lease = NodeLease(node, key)
    if chosen is not None and chosen != node.config:
        lease.release()
        raise SettingsError(f"{key} is open in this process with other settings")
    return lease


def borrow_node(node: Node) -> NodeLease:
    """Lease a node without closing it at the end: its owner does."""
    return NodeLease(node, None)
