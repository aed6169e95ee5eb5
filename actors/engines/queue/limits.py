"""How many messages may wait: ``x-max-length``, ``x-max-length-bytes`` and what ``x-overflow`` does about more.

Only ready messages count, and only the bytes of their bodies. ``drop-head``: what has waited longest goes. The other
two refuse the message that would be too many, each message by itself: a smaller one after it may still fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.declared.queue_arguments import Overflow, QueueArguments
from warren.actors.engines.queue.backing import Backing


@attrs.frozen
class Limits:
    """What a queue may hold; ``None``: any number."""

    messages: int | None
    size: int | None
    """Bytes of bodies."""
    overflow: Overflow

    @classmethod
    def of(cls, arguments: QueueArguments) -> Limits | None:
        """What arguments say; ``None``: there are no limits."""
        messages, size = arguments.max_length, arguments.max_length_bytes
        return None if messages is None and size is None else cls(messages, size, arguments.overflow)

    @property
    def refuses(self) -> bool:
        """Whether a message too many is not taken."""
        return self.overflow != "drop-head"

    @property
    def dead_letters_refused(self) -> bool:
        """Whether what is not taken becomes a dead letter."""
        return self.overflow == "reject-publish-dlx"

    def excess(self, backing: Backing) -> tuple[int, int] | None:
        """By how many messages, and how many bytes, there are too many; ``None``: it is within its limits."""
        messages = 0 if self.messages is None else len(backing) - self.messages
        size = 0 if self.size is None else backing.ready_bytes - self.size
        return (max(messages, 0), max(size, 0)) if messages > 0 or size > 0 else None

    def refused(self, backing: Backing, bodies: Sequence[bytes], at_once: int) -> list[int]:
        """Which of the bodies, by index, are too many. The first ``at_once`` that are taken go on to consumers."""
        count, size, refused = len(backing), backing.ready_bytes, []
        for index, body in enumerate(bodies):
            if (self.messages is not None and count >= self.messages) or (
                self.size is not None and size + len(body) > self.size
            ):
                refused.append(index)
            elif at_once:
                at_once -= 1
            else:
                count += 1
                size += len(body)
        return refused
