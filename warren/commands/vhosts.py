"""The vhost of a node's directory that a command opens: the options ``--vhost`` and ``--adopt``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, VhostOption
from warren.handles.node import Vhost
from warren.handles.queue import Queue


@attrs.frozen(kw_only=True)
class VhostOptions:
    """Which vhost, and whether the directory may be RabbitMQ's."""

    vhost: VhostOption = "/"
    adopt: AdoptOption = False

    @contextmanager
    def opened(self, path: str, *, make: bool = False) -> Iterator[Vhost]:
        """Open the vhost. ``make``: create the directory if it is missing."""
        with opened_node(path, adopt=self.adopt, make=make) as node:
            yield vhost_of(node, self.vhost)

    @contextmanager
    def opened_queue(self, path: str, queue: str, *, share: bool = False) -> Iterator[Queue]:
        """Open a queue that exists. ``share``: other processes may use the directory meanwhile."""
        with opened_node(path, adopt=self.adopt, share=share) as node:
            yield vhost_of(node, self.vhost).queue(queue, passive=True)
