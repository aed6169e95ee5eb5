"""The sizes of payloads that an index says, and what becomes of one that cannot be.

A size stands beside each position, for the counters of bytes; no message is found by it. Files of an index have no
checksums, so a damaged size is believed as long as it may be right:

* One beyond the message itself, where the index holds it, is replaced by the payload's length.
* One beyond what a broker takes (``MAX_MESSAGE_BYTES``) is replaced by the length of the payload in the store.
* Any other one shows where what was counted does not fit: when delta says less than nothing, or something of no
  messages (:func:`follow_files`). Then the counters follow the files, and the queue's owner is told, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warren.queue_index.index.record_format import MAX_MESSAGE_BYTES
from warren.queue_index.message.message_format import decode_message, locate_body
from warren.storage.errors import DataError, MessageError, WarrenError

if TYPE_CHECKING:
    from warren.queue_index.queue.run import Run
    from warren.queue_index.queue.state import QueueState


def payload_bytes(term: bytes) -> int:
    """The payload's length in an encoded message; of bytes that are none, theirs."""
    if (located := locate_body(term)) is not None:
        return located[1]
    try:
        return len(decode_message(term).body)
    except MessageError:
        return len(term)


def ask_store(s: QueueState, run: Run) -> None:
    """Have a run's messages, which lie in the store, sizes that can be: those of the payloads there."""
    sizes, batch = [run.batch.size(index) for index in range(run.low, run.high)], run.batch
    wrong = [place for place, size in enumerate(sizes) if size > MAX_MESSAGE_BYTES]
    if not wrong:
        return
    for place in wrong:
        at = 16 * (run.low + place)
        try:
            (term,) = s.store(run).store.read_many([bytes(batch.ids[at : at + 16])])
        except WarrenError:  # who fetches it is told
            term = b""
        sizes[place] = payload_bytes(term) if term else 0
    all_sizes = [batch.size(index) for index in range(batch.count)]
    all_sizes[run.low : run.high] = sizes
    run.batch = attrs.evolve(batch, sizes=all_sizes)


def follow_files(s: QueueState) -> None:
    """Have the counters of bytes fit what came out of delta, where that was more than was counted, or the last."""
    left = s.delta_persistent_bytes
    s.bytes -= left
    s.persistent_bytes -= left
    s.delta_persistent_bytes = 0
    if s.on_damage is not None:
        tell, s.on_damage = s.on_damage, None
        what = f"{-left:,} bytes more" if left < 0 else f"{left:,} bytes less"
        tell(DataError(s.index.path, None, f"the sizes of messages come to {what} than were counted at the stop"))
