"""What keeps a node, or a part of it, from doing what was asked."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class ForeignDirectoryError(WarrenError):
    """The directory is somebody else's, and nobody said that it may be taken over."""


class VhostDownError(WarrenError):
    """The vhost cannot be opened, or its store has failed too often; the reason is in the text."""


class TopicsDownError(WarrenError):
    """The topics cannot be opened, or have failed too often; the reason is in the text."""


class DelaysDownError(WarrenError):
    """A vhost's delayed messages cannot be opened, or have failed too often; the reason is in the text."""


class UnsavedError(WarrenError):
    """What is declared could not be written down, so what was asked for was not done; but a queue that was to be
    deleted has lost its messages."""


class BrokenNodeError(RuntimeError):
    """What is declared contradicts itself: nothing that the node did from here on would be right."""
