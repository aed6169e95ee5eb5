"""Publishing: a message enters the queue.

Into Q4 if Q3 is empty, else into Q1; in lazy mode to disk and into delta. A persistent message is written at once,
payload and position; a small payload goes into the index record.

A batch stays an envelope and bodies. It is encoded when it is written
(:mod:`warren.queue_index.index.record_matrix`), and not kept that way: in RAM a message takes little more room than its
body, which its publisher has anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from warren.queue_index.message.message_format import (
    CONTENT_OVERHEAD_BYTES,
    MSG_ID_BYTES,
    Envelope,
    body_at_in,
    encode_many,
    encode_message,
    properties_sizes,
)
from warren.queue_index.queue.run import (
    DELIVERED,
    EMBEDDED,
    IN_RAM,
    PERSISTENT,
    Batch,
    Run,
    UnencodedTerms,
    open_batch,
)
from warren.queue_index.queue.state import QueueState, WrittenAhead
from warren.storage.errors import MessageError


def _sizes(envelope: Envelope, given: bytes) -> tuple[int, int]:
    """The sizes of one message's body and properties."""
    if not envelope.of_contents:
        return len(given), len(envelope.properties)
    at = body_at_in(given)
    return max(len(given) - at, 0), at - CONTENT_OVERHEAD_BYTES


def _single(s: QueueState, envelope: Envelope, msg_id: bytes, body: bytes, expiry_us: int) -> Run:
    """One message as a run of its kind."""
    limit = s.settings.queue_index_embed_msgs_below
    size, properties_size = _sizes(envelope, body)
    flags = IN_RAM
    if s.durable and envelope.persistent:
        flags |= PERSISTENT
    if size < limit and size + properties_size < limit:
        flags |= EMBEDDED
    term = encode_message(envelope, msg_id, body)
    return Run(s.next_seq_id, open_batch(msg_id, size, expiry_us, term), 0, 1, flags)


def publish(s: QueueState, envelope: Envelope, msg_id: bytes, body: bytes, expiry_us: int, *, delivered: bool) -> int:
    """One message; returns its seq_id."""
    run, seq_id = _single(s, envelope, msg_id, body, expiry_us), s.next_seq_id
    if delivered:
        s.next_deliver_seq_id += seq_id == s.next_deliver_seq_id
        run.flags |= DELIVERED
    _enter(s, run, envelope, batch=False)
    s.rates.in_count += 1
    return seq_id


def write_ahead(s: QueueState, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
    """Write some small messages to the journal, and make them safe; :func:`enter_written` publishes them.

    Nothing else may be published meanwhile, and no journal flushed. ``False``, and nothing is done: these cannot be
    written so. Raises what a sync raises; then they are not written.
    """
    if s.mode != "default" or s.recovery is not None or not (s.durable and envelope.persistent):
        return False
    ahead, count, per_segment = s.written_ahead, len(bodies), s.index.segment_entry_count
    first = s.next_seq_id if ahead is None else s.next_seq_id + len(ahead.sizes)
    if s.next_seq_id // per_segment != (first + count - 1) // per_segment:  # a run is of one segment
        return False
    sizes: list[int] = []
    for body in bodies:
        size, properties_size = _sizes(envelope, body)
        if size + properties_size >= s.settings.queue_index_embed_msgs_below:
            return False
        sizes.append(size)
    terms = encode_many(envelope, msg_ids, bodies)
    s.index.write_ahead(first, msg_ids, sizes, terms)
    if ahead is None:
        s.written_ahead = WrittenAhead(s.next_seq_id, bytearray(msg_ids), sizes, terms)
    else:
        ahead.msg_ids += msg_ids
        ahead.sizes += sizes
        ahead.terms += terms
    return True


def enter_written(s: QueueState, envelope: Envelope) -> range:
    """Publish what was written ahead; returns the seq_ids."""
    ahead, s.written_ahead = s.written_ahead, None
    if ahead is None:
        return range(s.next_seq_id, s.next_seq_id)
    count = len(ahead.sizes)
    batch = Batch(count, ahead.msg_ids, ahead.sizes, [0] * count, ahead.terms)
    run = Run(s.next_seq_id, batch, 0, count, IN_RAM | PERSISTENT | EMBEDDED)
    _enter(s, run, envelope, batch=False, written=True)
    s.rates.in_count += count
    return range(s.next_seq_id - count, s.next_seq_id)


def publish_delivered(s: QueueState, envelope: Envelope, msg_id: bytes, body: bytes, expiry_us: int) -> int:
    """One message that a consumer gets at once; the queue is empty. Returns its seq_id."""
    run, seq_id = _single(s, envelope, msg_id, body, expiry_us), s.next_seq_id
    run.flags |= DELIVERED
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

    Raises :class:`MessageError`, before anything is done, for invalid messages.
    """
    if len(msg_ids) != MSG_ID_BYTES * len(bodies):
        raise MessageError(f"{len(msg_ids)} bytes of ids for {len(bodies)} bodies")
    if not set(map(type, bodies)) <= {bytes}:  # they are kept as they are, and must be immutable
        raise MessageError("a body that is not of type bytes")
    if not envelope.routing_keys:
        raise MessageError("a message without a routing key")
    first = s.next_seq_id
    sizes, embedded = _measure(s, envelope, bodies)
    flags = IN_RAM | (PERSISTENT if s.durable and envelope.persistent else 0)
    low = 0
    while low < len(bodies):
        high = min(len(bodies), low + s.index.next_segment_boundary(s.next_seq_id) - s.next_seq_id)
        if isinstance(embedded, bool):
            embeds = embedded
        else:  # a run is of one kind
            embeds, high = embedded[low], _end_of_kind(embedded, low, high)
        ids = msg_ids[low * MSG_ID_BYTES : high * MSG_ID_BYTES]
        times = expiries if isinstance(expiries, int) else expiries[low:high]
        terms = UnencodedTerms(envelope, ids, bodies[low:high])
        batch = Batch(high - low, ids, sizes if isinstance(sizes, int) else sizes[low:high], times, terms)
        run = Run(s.next_seq_id, batch, 0, high - low, flags | EMBEDDED if embeds else flags)
        _enter(s, run, envelope, batch=True)
        low = high
    s.end_batch()
    s.rates.in_count += len(bodies)
    return range(first, s.next_seq_id)


def _measure(s: QueueState, envelope: Envelope, bodies: Sequence[bytes]) -> tuple[int | list[int], bool | list[bool]]:
    """Return the bodies' sizes, and which of the messages go into the index; one for all, or one each."""
    limit, sizes = s.settings.queue_index_embed_msgs_below, list(map(len, bodies))
    if not envelope.of_contents:
        size = sizes[0] if sizes else 0
        if sizes.count(size) == len(sizes):
            return size, size < limit and size + len(envelope.properties) < limit
        below = min(limit, limit - len(envelope.properties))
        return sizes, [size < below for size in sizes]
    heads = properties_sizes(bodies)
    sizes = [max(size - CONTENT_OVERHEAD_BYTES - head, 0) for size, head in zip(sizes, heads, strict=True)]
    embedded = [size < limit and size + head < limit for size, head in zip(sizes, heads, strict=True)]
    return sizes, embedded[0] if embedded.count(embedded[0]) == len(embedded) else embedded


def _end_of_kind(embedded: list[bool], low: int, high: int) -> int:
    """Return where the messages from ``low`` on that are of one kind end, at most ``high``."""
    try:
        return embedded.index(not embedded[low], low, high)
    except ValueError:
        return high


def _enter(s: QueueState, run: Run, envelope: Envelope, *, batch: bool, written: bool = False) -> None:
    """Write a run if it has to be written, and add it to its queue. ``written``: ahead, by :func:`write_ahead`."""
    s.next_seq_id += run.count
    lazy = s.mode == "lazy"
    if lazy or run.persistent:
        s.write_payloads(run)
        if written:
            s.index.enter_written(run, s.target_ram_count)
            s.note_indexed(run)
        elif batch:
            s.batch_positions(run)
        else:
            s.write_position(run)
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
        tail.batch.join(run.batch)
        queue.grow_tail()
    else:
        queue.append(run)
    s.count(run, before=False, after=True, ready=1)
