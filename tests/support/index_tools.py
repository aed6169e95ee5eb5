"""A queue index's parts for tests: messages by number, runs of them, their records, an index in memory.

Message ``n`` has the id ``msg_id(n)``, a size of 20 bytes and, if it is embedded, the message ``term(n)``. The
encoders here are a second opinion: they share nothing with the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import attrs

from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.recovery import DirtyRecovery
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.run import DELIVERED, EMBEDDED, IN_RAM, IN_STORE, PERSISTENT, Batch, Run, UnencodedTerms
from warren.queue_index.queue.variable_queue import QueueFiles
from warren.storage.filesystem import FileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.pieces import Whole
from warren.storage.settings import Settings

VHOST, QUEUE = b"/", b"q"
PATH = "/vhost/queues/Q"
JOURNAL = f"{PATH}/journal.jif"
NAME_FILE = f"{PATH}/.queue_name"
SIZE = 20
ENVELOPE = Envelope(b"/", b"", (b"q",), b"", True)
SETTINGS = Settings(segment_entry_count=8)
DELIVERING = attrs.evolve(SETTINGS, deliver_with_publish=True)


def segment(number: int) -> str:
    return f"{PATH}/{number}.idx"


# Messages and runs


def msg_id(n: int) -> bytes:
    return b"message " + n.to_bytes(8, "big")


def number_of(message_id: bytes) -> int:
    return int.from_bytes(message_id[8:], "big")


def body(n: int) -> bytes:
    return (b"<%d>" % n).ljust(SIZE, b".")


def term(n: int) -> bytes:
    return encode_message(ENVELOPE, msg_id(n), body(n))


TERM_BYTES = len(term(0))
JOURNAL_PUBLISH_BYTES = 8 + 32 + TERM_BYTES
SEGMENT_PUBLISH_BYTES = 2 + 32 + TERM_BYTES


def run_of(
    start: int,
    count: int = 1,
    *,
    persistent: bool = True,
    embedded: bool = True,
    delivered: bool = False,
    expiry_us: int | list[int] = 0,
    unencoded: bool = False,
) -> Run:
    """Messages ``start …`` as they come from a publisher, their messages encoded or not yet."""
    numbers = range(start, start + count)
    flags = IN_RAM | (PERSISTENT if persistent else 0) | (DELIVERED if delivered else 0)
    flags |= EMBEDDED if embedded else IN_STORE
    ids = b"".join(map(msg_id, numbers))
    terms: list[bytes] | UnencodedTerms = [term(n) for n in numbers]
    if unencoded:
        terms = UnencodedTerms(ENVELOPE, ids, [body(n) for n in numbers])
    batch = Batch(count, ids, SIZE, expiry_us, terms)
    return Run(start, batch, 0, count, flags)


def expiry_of(expiry_us: int | Sequence[int], index: int) -> int:
    return expiry_us if isinstance(expiry_us, int) else expiry_us[index]


@attrs.frozen
class Position:
    """What an index says of one message."""

    seq_id: int
    persistent: bool = True
    embedded: bool = True
    delivered: bool = False
    expiry_us: int = 0


def positions(runs: Iterable[Run]) -> list[Position]:
    """Runs, message by message; checks that each message has the id that belongs to it."""
    found = []
    for run in runs:
        ids = run.msg_ids()
        terms = run.terms() if run.in_ram else [b""] * run.count
        for index, seq_id in enumerate(range(run.start, run.end)):
            assert ids[index] == msg_id(seq_id)
            assert run.batch.size(run.low + index) == SIZE
            assert terms[index] == (term(seq_id) if run.embedded else b"")
            expiry_us = run.batch.expiry(run.low + index)
            found.append(Position(seq_id, run.persistent, run.embedded, bool(run.flags & DELIVERED), expiry_us))
    return found


# Records


def publish_body(n: int, *, embedded: bytes | None = None, expiry_us: int = 0, size: int = SIZE) -> bytes:
    message = term(n) if embedded is None else embedded
    return struct.pack(">16sQLL", msg_id(n), expiry_us, size, len(message)) + message


def journal_publish(n: int, *, persistent: bool = True, embedded: bytes | None = None, expiry_us: int = 0) -> bytes:
    head = struct.pack(">Q", n | (not persistent) << 62)
    return head + publish_body(n, embedded=embedded, expiry_us=expiry_us)


def journal_deliver(*numbers: int) -> bytes:
    return b"".join(struct.pack(">Q", n | 0b10 << 62) for n in numbers)


def journal_ack(*numbers: int) -> bytes:
    return b"".join(struct.pack(">Q", n | 0b11 << 62) for n in numbers)


def segment_publish(n: int, *, persistent: bool = True, embedded: bytes | None = None, expiry_us: int = 0) -> bytes:
    head = struct.pack(">H", n % SETTINGS.segment_entry_count | 0x8000 | persistent << 14)
    return head + publish_body(n, embedded=embedded, expiry_us=expiry_us)


def segment_short(*numbers: int) -> bytes:
    return b"".join(struct.pack(">H", n % SETTINGS.segment_entry_count | 0x4000) for n in numbers)


# An index, and what it lives with


def new_index(files: MemoryFileSystem, settings: Settings = SETTINGS, *, sync: bool = True) -> QueueIndex:
    return QueueIndex(files, PATH, settings, vhost=VHOST, queue=QUEUE, sync=sync)


def put(files: MemoryFileSystem, path: str, data: bytes) -> None:
    """Write a file as if it had always been there."""
    files.make_directories(PATH)
    handle = files.open_append(path)
    handle.append(data)
    handle.sync()
    handle.close()


def every_body(_: bytes) -> bool:
    return True


def recover(
    files: MemoryFileSystem,
    has_body: Callable[[bytes], bool] = every_body,
    settings: Settings = SETTINGS,
    *,
    sync: bool = True,
) -> QueueIndex:
    """An index brought back from its files alone, as a queue does it that does not work meanwhile."""
    index = new_index(files, settings, sync=sync)
    recovery = DirtyRecovery(files, index, has_body)
    while recovery.step():
        pass
    if recovery.needs_flush:
        index.flush(even_if_clean=True)
    index.check_invariants()
    return index


def unacked(index: QueueIndex) -> list[Position]:
    """Everything that the index says is there."""
    return positions(index.read(*index.bounds()))


@attrs.define
class Bodies:
    """A message store that is a dict; what was written is safe once it was synced."""

    bodies: dict[bytes, bytes] = attrs.Factory(dict)
    written_ticket: int = 0
    synced_ticket: int = 0

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        self.bodies.update(zip(msg_ids, map(bytes, messages), strict=True))
        self.written_ticket += len(msg_ids)

    def remove_many(self, msg_ids: Sequence[bytes]) -> None:
        for one in msg_ids:
            del self.bodies[one]

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        return [self.bodies[one] for one in msg_ids]

    def contains(self, message_id: bytes) -> bool:
        return message_id in self.bodies

    def sync(self) -> None:
        self.synced_ticket = self.written_ticket


def queue_files(files: FileSystem, settings: Settings = SETTINGS, *, durable: bool = True) -> QueueFiles:
    """What a queue on these files is made of; its clock stands still."""
    return QueueFiles(
        files=files,
        path=PATH,
        vhost=VHOST,
        queue=QUEUE,
        settings=settings,
        persistent_store=StoreClient(Bodies()) if durable else None,
        transient_store=StoreClient(Bodies()),
        clock=lambda: 0,
    )
