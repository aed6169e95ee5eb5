"""The sizes of payloads according to an index, and the handling of impossible ones.

A size is stored with each position, for the counters of bytes; it is not used to find messages. Files of an index have
no checksums, so a damaged size is believed as long as it is possible:

* A size beyond the message itself, if the index holds it, is replaced by the payload's length.
* A size beyond what a broker takes (``MAX_MESSAGE_BYTES``) is replaced by the length of the payload in the store.
* Any other one shows when the counts do not fit: when the bytes in delta fall below zero, or remain without messages
  (:func:`follow_files`). Then the counters follow the files, and the queue's owner is notified, once.
"""

from __future__ import annotations

import attrs

from warren.queue_index.index.record_format import MAX_MESSAGE_BYTES
from warren.queue_index.message.message_format import payload_bytes
from warren.queue_index.queue.run import Run
from warren.queue_index.queue.state import QueueState
from warren.storage.errors import DataError, WarrenError


def ask_store(s: QueueState, run: Run) -> None:
    """Replace impossible sizes of a run's stored messages by the sizes of the payloads in the store."""
    sizes, batch = [run.batch.size(index) for index in range(run.low, run.high)], run.batch
    wrong = [place for place, size in enumerate(sizes) if size > MAX_MESSAGE_BYTES]
    if not wrong:
        return
    for place in wrong:
        at = 16 * (run.low + place)
        try:
            (term,) = s.store(run).store.read_many([bytes(batch.ids[at : at + 16])])
        except WarrenError:  # a fetch raises it
            term = b""
        sizes[place] = payload_bytes(term) if term else 0
    all_sizes = [batch.size(index) for index in range(batch.count)]
    all_sizes[run.low : run.high] = sizes
    run.batch = attrs.evolve(batch, sizes=all_sizes)


def follow_files(s: QueueState) -> None:
    """Correct the counters of bytes if more came out of delta than was counted, or if it is empty and they are not."""
    left = s.delta_persistent_bytes
    s.bytes -= left
    s.persistent_bytes -= left
    s.delta_persistent_bytes = 0
    if s.on_damage is not None:
        tell, s.on_damage = s.on_damage, None
        difference = f"{-left:,} bytes more" if left < 0 else f"{left:,} bytes less"
        tell(DataError(s.index.path, None, f"the sizes of messages come to {difference} than were counted at the stop"))
