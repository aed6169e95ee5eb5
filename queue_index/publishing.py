"""Publishing: a message enters the queue.

Into Q4 where Q3 is empty, else into Q1; in lazy mode to disk and into delta. A persistent message is written at once,
payload and position, and the payload goes into the index record where it is small.

A batch stays what it came as, an envelope and bodies. It is encoded where it is written
(:mod:`warren.queue_index.record_matrix`), and not kept that way: in RAM a message takes little more room than its body,
which its publisher has anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from warren.queue_index.message_format import MSG_ID_BYTES, Envelope, encode_message
from warren.queue_index.run import DELIVERED, EMBEDDED, IN_RAM, PERSISTENT, Batch, Run, UnencodedTerms, open_batch
from warren.queue_index.state import QueueState
from warren.storage.errors import MessageError

_SMALL_STRETCH = 8  # fewer messages than this are not worth a matrix


def flags_of(s: QueueState, envelope: Envelope, size: int) -> int:
    """The kind of a message of that size as it comes from its publisher."""
    limit = s.settings.queue_index_embed_msgs_below
    flags = IN_RAM
    if s.durable and envelope.persistent:
        flags |= PERSISTENT
    if size < limit and size + len(envelope.properties) < limit:
        flags |= EMBEDDED
    return flags


def publish(s: QueueState, envelope: Envelope, msg_id: bytes, body: bytes, expiry_us: int, *, delivered: bool) -> int:
    """One message; returns its seq_id."""
    seq_id, flags = s.next_seq_id, flags_of(s, envelope, len(body))
    term = encode_message(envelope, msg_id, body)
    run = Run(seq_id, open_batch(msg_id, len(body), expiry_us, term), 0, 1, flags)
    if delivered:
        s.note_delivered(seq_id, 1)
        run.flags |= DELIVERED
    _enter(s, run, envelope, batch=False)
    s.rates.in_count += 1
    return seq_id


def publish_delivered(s: QueueState, envelope: Envelope, msg_id: bytes, body: bytes, expiry_us: int) -> int:
    """One message that a consumer gets at once; the queue is empty. Returns its seq_id."""
    seq_id, flags = s.next_seq_id, flags_of(s, envelope, len(body)) | DELIVERED
    term = encode_message(envelope, msg_id, body)
    run = Run(seq_id, open_batch(msg_id, len(body), expiry_us, term), 0, 1, flags)
    s.next_seq_id += 1
    if run.persistent or s.mode == "lazy":
        s.write_payloads(run)
        s.write_position(run)
    s.hold_pending(run)
    s.count(run, before=False, after=True, unacked=1)
    s.note_delivered(seq_id, 1)
    s.rates.in_count += 1
    s.rates.out_count += 1
    return seq_id


def publish_many(
    s: QueueState, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes], expiries: int | list[int]
) -> range:
    """A batch of messages with one envelope; returns their seq_ids.

    Raises :class:`MessageError`, before anything is done, for what can be no messages.
    """
    if len(msg_ids) != MSG_ID_BYTES * len(bodies):
        raise MessageError(f"{len(msg_ids)} bytes of ids for {len(bodies)} bodies")
    if not set(map(type, bodies)) <= {bytes}:  # they are kept as they are: nobody may change them
        raise MessageError("a body that is not of type bytes")
    if not envelope.routing_keys:
        raise MessageError("a message without a routing key")
    first = s.next_seq_id
    sizes = list(map(len, bodies)) if len(set(map(len, bodies))) > 1 else None
    low = 0
    while low < len(bodies):
        high = min(len(bodies), low + s.index.next_segment_boundary(s.next_seq_id) - s.next_seq_id)
        size, same_size = len(bodies[low]), True
        if sizes is not None:
            high, same_size = _end_of_kind(s, envelope, sizes, low, high)
        flags = flags_of(s, envelope, size)
        ids = msg_ids[low * MSG_ID_BYTES : high * MSG_ID_BYTES]
        times = expiries if isinstance(expiries, int) else expiries[low:high]
        terms = UnencodedTerms(envelope, ids, bodies[low:high])
        batch = Batch(high - low, ids, size if same_size or sizes is None else sizes[low:high], times, terms)
        _enter(s, Run(s.next_seq_id, batch, 0, high - low, flags), envelope, batch=True)
        low = high
    s.end_batch()
    s.rates.in_count += len(bodies)
    return range(first, s.next_seq_id)


def _end_of_kind(s: QueueState, envelope: Envelope, sizes: list[int], low: int, high: int) -> tuple[int, bool]:
    """Where the run of one kind that begins at ``low`` ends, and whether all of it has one size."""
    size, flags, end = sizes[low], flags_of(s, envelope, sizes[low]), low + 1
    while end < high and sizes[end] == size:
        end += 1
    if end == high or end - low >= _SMALL_STRETCH:
        return end, True
    while end < high and flags_of(s, envelope, sizes[end]) == flags:
        end += 1
    return end, False


def _enter(s: QueueState, run: Run, envelope: Envelope, *, batch: bool) -> None:
    """Write a run where it has to be written, and put it in its place."""
    s.next_seq_id += run.count
    lazy = s.mode == "lazy"
    if lazy or run.persistent:
        s.write_payloads(run)
        (s.batch_positions if batch else s.write_position)(run)
    if lazy:
        s.delta.expand(run.start, run.count, transient=not envelope.persistent)
        s.count(run, before=False, after=False, ready=1, paged=True, to_delta=True)
        return
    queue = s.q1 if s.q3 else s.q4
    tail = queue.tail if queue else None
    if (
        run.count == 1
        and tail is not None
        and tail.end == run.start
        and tail.flags == run.flags
        and tail.high == tail.batch.count
        and isinstance(tail.batch.ids, bytearray)
        and run.start % s.index.segment_entry_count
    ):
        tail.batch.append(bytes(run.batch.ids), run.batch.size(0), run.batch.expiry(0), run.batch.term(0))
        queue.grow_tail()
    else:
        queue.append(run)
    s.count(run, before=False, after=True, ready=1)
