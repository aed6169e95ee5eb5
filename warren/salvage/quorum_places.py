"""Where quorum queues are: a node's ``quorum`` folder, and whose directories lie in it.

::

    <node's data directory>/quorum/<node's name>/<UId>/config        says which queue it is
                                                /00000001.wal        the log of all of the node's queues

A queue may have several directories: those of its members on other nodes, which somebody put side by side, and those
of a queue that was declared again.
"""

from __future__ import annotations

import attrs

from warren.salvage.queue_directory import Finding


@attrs.frozen
class QuorumPlace:
    """A quorum queue, and its directories."""

    vhost: bytes
    """Empty where nothing says it."""
    name: bytes
    members: tuple[str, ...]
    """Its directories, one for each member there is."""
    problems: tuple[Finding, ...] = ()

    @property
    def path(self) -> str:
        """Its first directory."""
        return self.members[0]
