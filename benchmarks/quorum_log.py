"""A quorum queue's log as a broker leaves one, of any size: nearly all of its messages are acked, and it cannot be cut.

One message at the head was never acked, so no snapshot could be taken, and every entry since has stayed. That is the
longest way to the fewest messages: a reader replays all of it. Three quarters lie in segments, as a restart leaves
them, the rest in the write-ahead log of the run that was killed.

The commands are those of a publisher with confirms and of a consumer that acks each message, as RabbitMQ 3.10 writes
them: ``{'$usr', #{ts => _}, Command, ReplyMode}``, atoms with a length of two bytes, processes of a node of the time.
Each message that is delivered and acked is two entries.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final

import attrs

from benchmarks.scenarios import PERSISTENT
from warren.queue_index.message.message_format import encode_message
from warren.salvage.quorum.ra.segment_format import encode_segment
from warren.salvage.quorum.ra.wal_format import WAL_HEADER, encode_record

NODE: Final = b"rabbit@bench"
UID: Final = b"2F_BENBENCHMARKLOG"
TERM: Final = 1
SEGMENT_ENTRIES: Final = 4096
SEGMENT_SHARE: Final = 0.75
"""The part of the entries that is in segments."""

NEVER_ACKED: Final = 100
"""Messages at the head; the first consumer still holds them."""
PREFETCH: Final = 500
LAST: Final = 1000
"""Unacked messages at the end."""

BODY_BYTES: Final = 1024
START_MS: Final = 1_700_000_000_000

_U32 = struct.Struct(">I")
_CONFIG = """#{{cluster_name => '%2F_bench',
  id => {{'%2F_bench','{node}'}},
  initial_members => [{{'%2F_bench','{node}'}}],
  log_init_args => #{{snapshot_interval => 8192,uid => <<"{uid}">>}},
  machine =>
      {{module,rabbit_fifo,
          #{{created => {now},dead_letter_handler => undefined,delivery_limit => undefined,
            expires => undefined,max_bytes => undefined,max_in_memory_bytes => undefined,
            max_in_memory_length => undefined,max_length => undefined,msg_ttl => undefined,
            name => '%2F_bench',overflow_strategy => drop_head,
            queue_resource => {{resource,<<"/">>,queue,<<"bench">>}},
            single_active_consumer_on => false}}}},
  tick_timeout => 5000,uid => <<"{uid}">>}}."""


@attrs.frozen
class Written:
    """What lies there."""

    published: int
    left: int
    """Messages that a restarted broker would deliver."""
    entries: int


def write_quorum_log(directory: str, log_bytes: int) -> Written:
    """Write a node's data directory with one quorum queue, ``bench``, whose log has about ``log_bytes`` bytes."""
    per_message = BODY_BYTES + 450  # of both entries
    messages = max(2 * LAST, log_bytes // per_message)
    home = os.path.join(directory, "quorum", NODE.decode())
    queue = os.path.join(home, UID.decode())
    os.makedirs(queue)
    config = _CONFIG.format(node=NODE.decode(), uid=UID.decode(), now=START_MS)
    with open(os.path.join(queue, "config"), "w", encoding="latin-1") as file:
        file.write(config)
    entries = enumerate(_entries(messages), start=1)
    count = _write_segments(queue, entries, int(2 * messages * SEGMENT_SHARE) // SEGMENT_ENTRIES)
    count += _write_wal(os.path.join(home, "00000002.wal"), entries)
    return Written(messages, NEVER_ACKED + LAST, count)


def _write_segments(queue: str, entries: Iterator[tuple[int, bytes]], segments: int) -> int:
    for number in range(1, segments + 1):
        batch = [(index, TERM, entry) for index, entry in islice(entries, SEGMENT_ENTRIES)]
        with open(os.path.join(queue, f"{number:08}.segment"), "wb") as file:
            file.write(encode_segment(batch, room=SEGMENT_ENTRIES))
    return segments * SEGMENT_ENTRIES


def _write_wal(path: str, entries: Iterator[tuple[int, bytes]]) -> int:
    count = 0
    with open(path, "wb") as file:
        file.write(WAL_HEADER)
        for count, (index, entry) in enumerate(entries, start=1):
            file.write(encode_record(0, index, TERM, entry, uid=UID if count == 1 else None))
    return count


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _atom(name: bytes) -> bytes:
    return b"d" + len(name).to_bytes(2, "big") + name


def _binary(data: bytes) -> bytes:
    return b"m" + _U32.pack(len(data)) + data


def _integer(value: int) -> bytes:
    return b"a" + bytes([value]) if value < 1 << 8 else b"b" + _U32.pack(value)


def _list_of(value: int) -> bytes:
    """A list of one number: a small one makes it a string."""
    return b"k\0\1" + bytes([value]) if value < 1 << 8 else b"l" + _U32.pack(1) + _integer(value) + b"j"


def _pid(number: int) -> bytes:
    return b"X" + _atom(NODE) + struct.pack(">III", number, 0, START_MS // 1000)


_PUBLISHER, _CONSUMER = _pid(0x25B), _pid(0x274)
_CONSUMER_ID = b"h\2" + _binary(b"ctag") + _CONSUMER
_CHECKOUT = (
    b"h\4" + _atom(b"checkout") + _CONSUMER_ID
    + b"h\3" + _atom(b"auto") + _integer(PREFETCH) + _atom(b"simple_prefetch")
    + b"t" + _U32.pack(3) + _atom(b"ack") + _atom(b"true") + _atom(b"args") + b"j"
    + _atom(b"prefetch") + _integer(PREFETCH)
)  # fmt: skip
_REGISTER = b"h\2" + _atom(b"register_enqueuer") + _PUBLISHER


def _user(now_ms: int, command: bytes, reply_mode: bytes) -> bytes:
    meta = b"t" + _U32.pack(1) + _atom(b"ts") + b"n\6\0" + now_ms.to_bytes(6, "little")
    return b"\x83h\4" + _atom(b"$usr") + meta + command + reply_mode


def _notify(number: int, pid: bytes) -> bytes:
    return b"h\3" + _atom(b"notify") + _integer(number) + pid


def _entries(messages: int) -> Iterator[bytes]:
    """Publish and ack in turn; the first and the last messages stay unacked."""
    draw = random.Random(3)
    pool = draw.randbytes(BODY_BYTES + (1 << 16))
    consensus, no_id = _atom(b"await_consensus"), bytes(16)
    yield (
        b"\x83h\3"
        + _atom(b"noop")
        + b"t"
        + _U32.pack(1)
        + _atom(b"ts")
        + b"n\6\0"
        + START_MS.to_bytes(6, "little")
        + _integer(2)
    )
    yield _user(START_MS, _REGISTER, consensus)
    yield _user(START_MS, _CHECKOUT, consensus)
    acked = 0
    for number in range(messages):
        now_ms = START_MS + number // 10
        at = draw.randrange(1 << 16)
        # As the queue keeps it: without an id, and without the version byte in front.
        before, _, behind = encode_message(PERSISTENT, no_id, pool[at : at + BODY_BYTES]).rpartition(_binary(no_id))
        message = before[1:] + _binary(b"") + behind
        enqueue = b"h\4" + _atom(b"enqueue") + _PUBLISHER + _integer(number + 1) + message
        yield _user(now_ms, enqueue, _notify(number, _PUBLISHER))
        if NEVER_ACKED <= number < messages - LAST:
            settle = b"h\3" + _atom(b"settle") + _CONSUMER_ID + _list_of(number)
            yield _user(now_ms, settle, _notify(acked, _CONSUMER))
            acked += 1
