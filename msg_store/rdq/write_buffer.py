"""Messages that were handed over and are not in a file yet: the store's write-back cache.

A message in the buffer has no place. It gets one when it is flushed, so one that is written and removed before that
costs no byte on disk. What is in the buffer is not among the locations, and the other way round.

Invariant: ``size_bytes`` is the size of the buffered messages' records; every count is above 0, and is 1 if it is not
stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from warren.msg_store.rdq.rdq_format import MSG_ID_BYTES, OVERHEAD_BYTES
from warren.storage.pieces import Whole, sizes_of


@attrs.define(eq=False, repr=False)
class WriteBuffer:
    """msg_id → message and count, in the order of writing."""

    messages: dict[bytes, Whole] = attrs.field(factory=dict)
    _counts: dict[bytes, int] = attrs.field(factory=dict)
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.messages)

    def __contains__(self, msg_id: object) -> bool:
        return msg_id in self.messages

    def count(self, msg_id: bytes) -> int:
        """Return the references to a message; 0 if it is not in the buffer."""
        return self._counts.get(msg_id, 1) if msg_id in self.messages else 0

    def add(self, msg_ids: Iterable[bytes], messages: Iterable[Whole]) -> None:
        """Take in new messages with one reference each. Raises ``ValueError`` for an id that is not 16 bytes."""
        new = dict(zip(msg_ids, messages, strict=True))
        if set(map(len, new)) - {MSG_ID_BYTES}:
            raise ValueError(f"a msg_id is {MSG_ID_BYTES} bytes, not {sorted(set(map(len, new)))}")
        self.messages.update(new)
        self.size_bytes += sum(sizes_of(new.values())) + OVERHEAD_BYTES * len(new)

    def reference(self, msg_id: bytes, count: int = 1) -> None:
        """Count more references to a buffered message."""
        self._counts[msg_id] = self.count(msg_id) + count

    def release(self, msg_id: bytes) -> None:
        """Remove one reference; with the last one the message is gone."""
        count = self.count(msg_id) - 1
        if count:
            self._counts[msg_id] = count
        else:
            self.drop((msg_id,), len(self.messages[msg_id]) + OVERHEAD_BYTES)

    def drop(self, msg_ids: Iterable[bytes], size_bytes: int) -> None:
        """Forget messages, written out or cancelled, whose records take ``size_bytes`` together."""
        for msg_id in msg_ids:
            del self.messages[msg_id]
            if self._counts:
                self._counts.pop(msg_id, None)
        self.size_bytes -= size_bytes

    def shared(self, msg_ids: Sequence[bytes]) -> dict[bytes, int]:
        """The counts above 1 among these messages."""
        return (
            {msg_id: count for msg_id in msg_ids if (count := self._counts.get(msg_id, 1)) > 1} if self._counts else {}
        )

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if size and counts do not fit the messages."""
        size = sum(len(message) + OVERHEAD_BYTES for message in self.messages.values())
        if size != self.size_bytes:
            raise RuntimeError(f"the buffer holds {size} bytes, not {self.size_bytes}")
        if any(msg_id not in self.messages or count < 1 for msg_id, count in self._counts.items()):
            raise RuntimeError("the buffer counts references to what it does not hold")
