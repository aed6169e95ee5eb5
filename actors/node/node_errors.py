"""Errors of a node or its parts."""

from __future__ import annotations

from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.storage.errors import WarrenError


class ClosedError(WarrenError):
    """The node was closed."""


class ClosedMeanwhileError(ClosedError, ActorStoppedError):
    """The node was closed before a request was done."""


class ForeignDirectoryError(WarrenError):
    """The directory belongs to another program, and taking it over was not allowed."""


class VhostDownError(WarrenError):
    """The vhost cannot be opened, or its store has failed too often; the reason is in the text."""


class TopicsDownError(WarrenError):
    """The topics cannot be opened, or have failed too often; the reason is in the text."""


class DelaysDownError(WarrenError):
    """A vhost's delayed messages cannot be opened, or have failed too often; the reason is in the text."""


class UnsavedError(WarrenError):
    """The declarations could not be saved, so the change was not made; but a queue to be deleted has lost its
    messages."""


class BrokenNodeError(RuntimeError):
    """The declarations contradict each other: nothing that the node does from here on would be right."""
