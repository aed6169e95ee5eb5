"""Entries of quorum queues: those that a real broker wrote, some made by hand, and random histories.

:func:`generate` makes the entries of a log from a seed. The holders of messages decide what may come next, so the
history is run on our own machine while it grows. Four processes on two nodes publish and consume; numbers, limits and
times are tiny, so that short histories meet all of them. They are wild, but a broker's processes could have caused
them.
"""

from __future__ import annotations

import random
import struct
import tarfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import attrs

from warren.salvage.quorum.fifo.commands import ConsumerKey, Pid
from warren.salvage.quorum.fifo.decoding import decode_entry
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, encode, pid_key

VERSION: Final = 2
"""The machine's version in RabbitMQ 3.10 and 3.11."""

PREAMBLE: Final = 2
"""Entries that each queue's log begins with: the machine's version, then the settings again. Before the second of them
the server's machine has but some of the settings, for version 0 did not know the others."""

_NODES: Final = (Atom("rabbit@one"), Atom("rabbit@two"))
_BEGIN_MS: Final = 1000
_UNDEFINED: Final = Atom("undefined")
_NONE: Final = Atom("none")
_PROPERTIES: Final = 15
"""Elements of ``P_basic``."""
_EXPIRATION: Final = 8


@attrs.frozen
class History:
    """A log from its first entry on, and the settings that the queue began with."""

    seed: int
    settings: Mapping[Term, Term]
    entries: list[tuple[int, bytes]]
    """With their indexes."""
    version: int = VERSION


def _pid(number: int) -> Opaque:
    node = encode(_NODES[number % len(_NODES)])[1:]
    return Opaque(b"X" + node + number.to_bytes(4, "big") + bytes(4) + (1).to_bytes(4, "big"))


_PIDS: Final = {number: _pid(number) for number in range(1, 5)}
_BY_KEY: Final[Mapping[Pid, Opaque]] = {pid_key(pid.encoded): pid for pid in _PIDS.values()}


def _settings(rng: random.Random, single_active: bool) -> dict[Term, Term]:
    at_least_once = rng.random() < 0.25
    at_most_once: Term = (Atom("at_most_once"), (Atom("module"), Atom("function"), []))
    values: dict[str, Term] = {
        "name": Atom("queue"),
        "queue_resource": (Atom("resource"), b"/", Atom("queue"), b"queue"),
        "dead_letter_handler": Atom("at_least_once") if at_least_once else rng.choice((_UNDEFINED, at_most_once)),
        "overflow_strategy": Atom("reject_publish" if at_least_once or rng.random() < 0.33 else "drop_head"),
        "max_length": rng.choice((_UNDEFINED, _UNDEFINED, _UNDEFINED, 3, 5)),
        "max_bytes": rng.choice((_UNDEFINED, _UNDEFINED, _UNDEFINED, 12)),
        "delivery_limit": rng.choice((_UNDEFINED, 0, 1, 3)),
        "msg_ttl": rng.choice((_UNDEFINED, _UNDEFINED, 10)),
        "single_active_consumer_on": single_active,
    }
    return {Atom(name): value for name, value in values.items()}


def _message(size: int, ttl_ms: int | None = None) -> Term:
    properties: Term = _NONE
    if ttl_ms is not None:
        fields: list[Term] = [Atom("P_basic"), *[_UNDEFINED] * (_PROPERTIES - 1)]
        fields[_EXPIRATION] = str(ttl_ms).encode()
        properties = tuple(fields)
    content = (Atom("content"), 60, properties, _NONE, _NONE, [b"x" * size])
    return (Atom("basic_message"), _UNDEFINED, [], content, _UNDEFINED, True)


class _Growing:
    """A history that is being made, and what its next commands may refer to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.single_active = self.rng.random() < 0.4
        self.history = History(seed, _settings(self.rng, self.single_active), [])
        self.now_ms = _BEGIN_MS
        self.published: dict[int, int] = {}
        """By process: the number it sent last."""
        self._machine = QuorumMachine.new(self.history.settings, VERSION)
        self._append(encode((Atom("noop"), {Atom("ts"): self.now_ms}, VERSION)))
        self.add((Atom("update_config"), self.history.settings))

    @property
    def next_index(self) -> int:
        return len(self.history.entries) + 1

    def add(self, command: Term) -> None:
        self._append(encode((Atom("$usr"), {Atom("ts"): self.now_ms}, command, Atom("noreply"))))

    def _append(self, data: bytes) -> None:
        index = self.next_index
        self.history.entries.append((index, data))
        self._machine.apply(index, *decode_entry(data))

    def held(self) -> list[tuple[ConsumerKey, int, QueuedMessage]]:
        return list(self._machine.outstanding())

    def pid(self) -> Opaque:
        return _PIDS[self.number()]

    def number(self) -> int:
        return self.rng.choice(list(_PIDS))

    def consumer(self) -> Term:
        """A consumer, present or not."""
        return (self.rng.choice((b"x", b"y")), self.pid())


def _consumer_id(key: ConsumerKey) -> Term:
    assert not isinstance(key, int)
    return (key[0], _BY_KEY[key[1]])


def _enqueue(g: _Growing) -> Term:
    """Mostly what the process was to send; now and then a number again, or one too high, or none at all."""
    number = g.number()
    seq = g.published.get(number, 0) + 1
    if g.rng.random() < 0.1:
        seq = max(1, seq + g.rng.choice((-1, 1)))
    else:
        g.published[number] = seq
    message = _message(g.rng.randrange(5), g.rng.choice((None, None, None, 0, 7, 20)))
    if g.rng.random() < 0.15:
        return (Atom("enqueue"), _UNDEFINED, _UNDEFINED, message)
    return (Atom("enqueue"), _PIDS[number], seq, message)


def _checkout(g: _Growing) -> Term:
    rng = g.rng
    arguments: Term = [(b"x-priority", Atom("long"), rng.randrange(-1, 2))] if rng.random() < 0.5 else []
    told: dict[str, Term] = {"args": arguments, "prefetch": 1, "ack": True, "username": b"guest"}
    mode = rng.choice(("simple_prefetch", "simple_prefetch", "credited"))
    spec = (Atom(rng.choice(("auto", "auto", "once"))), rng.randrange(4), Atom(mode))
    return (Atom("checkout"), g.consumer(), spec, {Atom(name): value for name, value in told.items()})


def _get(g: _Growing) -> Term:
    tag = b"x" if g.rng.random() < 0.2 else str(g.next_index).encode()
    kind = g.rng.choice(("settled", "unsettled", "unsettled"))
    return (Atom("checkout"), (tag, g.pid()), (Atom("dequeue"), Atom(kind)), {})


def _cancel(g: _Growing) -> Term:
    return (Atom("checkout"), g.consumer(), Atom("cancel"), {})


def _answer(g: _Growing) -> Term:
    """For some of what a consumer holds, in any order; now and then for an unused number, or for one twice.

    Not for one twice in a discard, which no channel sends: the server would have two dead letters of one message.
    """
    rng = g.rng
    name = Atom(rng.choice(("settle", "settle", "return", "discard")))
    held = g.held()
    if not held or rng.random() < 0.2:
        return (name, g.consumer(), [rng.randrange(4)])
    key = rng.choice(held)[0]
    msg_ids = [msg_id for holder, msg_id, _ in held if holder == key]
    chosen = rng.sample(msg_ids, rng.randint(0 if rng.random() < 0.1 else 1, len(msg_ids)))
    if rng.random() < 0.15:
        chosen.append(rng.randrange(9))
    return (name, _consumer_id(key), list(dict.fromkeys(chosen)) if name == "discard" else chosen)


def _requeue(g: _Growing) -> Term:
    held = g.held()
    if not held:
        return (Atom("purge"),)
    key, msg_id, message = g.rng.choice(held)
    return (Atom("requeue"), _consumer_id(key), msg_id, message.index, _header(message), _message(message.size))


def _header(message: QueuedMessage) -> Term:
    if message.delivery_count:
        header: dict[Term, Term] = {Atom("size"): message.size, Atom("delivery_count"): message.delivery_count}
        return header if message.expiry_ms is None else header | {Atom("expiry"): message.expiry_ms}
    return message.size if message.expiry_ms is None else ImproperList((message.size,), message.expiry_ms)


def _credit(g: _Growing) -> Term:
    return (Atom("credit"), g.consumer(), g.rng.randrange(4), g.rng.randrange(4), g.rng.random() < 0.4)


def _down(g: _Growing) -> Term:
    number, reason = g.number(), g.rng.choice(("noconnection", "normal", "noproc"))
    if reason != "noconnection":
        g.published.pop(number, None)
    return (Atom("down"), _PIDS[number], Atom(reason))


def _of_node(name: str) -> Callable[[_Growing], Term]:
    return lambda g: (Atom(name), g.rng.choice(_NODES))


def _purge_nodes(g: _Growing) -> Term:
    return (Atom("purge_nodes"), [g.rng.choice(_NODES)])


def _register_enqueuer(g: _Growing) -> Term:
    return (Atom("register_enqueuer"), g.pid())


def _update_config(g: _Growing) -> Term:
    """A policy changes all but whether there is a single active consumer."""
    return (Atom("update_config"), _settings(g.rng, g.single_active))


def _worker(g: _Growing) -> Term:
    return (Atom("dlx"), (Atom("checkout"), g.pid(), g.rng.randrange(1, 4)))


def _worker_settles(g: _Growing) -> Term:
    return (Atom("dlx"), (Atom("settle"), [g.rng.randrange(4)]))


def _plain(*command: Term) -> Callable[[_Growing], Term]:
    return lambda g: command


_COMMANDS: Final[Mapping[Callable[[_Growing], Term], float]] = {
    _enqueue: 30,
    _checkout: 12,
    _get: 8,
    _answer: 22,
    _requeue: 5,
    _credit: 4,
    _cancel: 5,
    _down: 5,
    _of_node("nodeup"): 2.5,
    _of_node("nodedown"): 1,
    _purge_nodes: 1,
    _plain(Atom("purge")): 0.5,
    _plain(Atom("timeout"), Atom("expire_msgs")): 1,
    _plain(Atom("garbage_collection")): 0.5,
    _register_enqueuer: 0.5,
    _update_config: 0.5,
    _worker: 1.5,
    _worker_settles: 1.5,
}
"""How often each comes, of a hundred; where a history favours it, more often."""
_FAVOURED: Final = 4
_FAVOUR: Final = 5


def generate(seed: int, steps: int) -> History:
    """The history of a seed, of ``steps`` entries."""
    growing = _Growing(seed)
    weights = dict(_COMMANDS)
    for make in growing.rng.sample(list(weights), _FAVOURED):
        weights[make] *= _FAVOUR
    while len(growing.history.entries) < steps:
        growing.now_ms += growing.rng.choice((0, 0, 0, 1, 5))
        (make,) = growing.rng.choices(list(weights), list(weights.values()))
        growing.add(make(growing))
    return growing.history


UNDEFINED, NONE, NO_REPLY = Atom("undefined"), Atom("none"), Atom("noreply")


# ── what a broker wrote ──────────────────────────────────────────────────────────────────────────────────────────────


@cache
def entries_of(archive: Path) -> list[bytes]:
    """Every entry in the write-ahead logs and segments of a node that is whole, in no order."""
    entries = []
    for name, data in _files(archive):
        if name.endswith(".wal"):
            entries += _of_wal(data)
        elif name.endswith(".segment"):
            entries += _of_segment(data)
    return entries


@cache
def snapshot_states(archive: Path) -> list[bytes]:
    """The machines' states in the snapshots, as terms."""
    states = []
    for name, data in _files(archive):
        if name.endswith("snapshot.dat"):
            (meta_size,) = struct.unpack_from(">I", data, 9)
            states.append(data[13 + meta_size :])
    return states


def _files(archive: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and "/quorum/" in member.name]
        return [(member.name, file.read()) for member in members if (file := tar.extractfile(member)) is not None]


def _of_wal(data: bytes) -> list[bytes]:
    entries = []
    at = 5
    while at + 27 <= len(data):
        if not data[at] & 0x40:
            at += 2 + int.from_bytes(data[at + 3 : at + 5])
        at += 3
        _, size, _, _ = struct.unpack_from(">IIQQ", data, at)
        at += 24
        if not size or at + size > len(data):
            break
        entries.append(data[at : at + size])
        at += size
    return entries


def _of_segment(data: bytes) -> list[bytes]:
    (room,) = struct.unpack_from(">H", data, 6)
    records = [struct.unpack_from(">QQQII", data, 8 + 32 * number) for number in range(room)]
    return [data[offset : offset + size] for _, _, offset, size, _ in records if offset]


# ── made by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pid(number: int, serial: int = 0, node: bytes = b"d\0\3n@h", creation: int = 7) -> Opaque:
    """A pid; ``node``: the encoded atom."""
    return Opaque(b"X" + node + struct.pack(">III", number, serial, creation))


def content(body: list[Term], properties: Term = NONE, encoded: Term = b"\x10\0\2") -> Term:
    """AMQP 0.9.1's."""
    return (Atom("content"), 60, properties, encoded, Atom("rabbit_framing_amqp_0_9_1"), body)


def basic_message(
    body: list[Term],
    properties: Term = NONE,
    encoded: Term = b"\x10\0\2",
    key: bytes = b"orders",
    *,
    persistent: bool = True,
) -> Term:
    """A message as a quorum queue has it: without an id."""
    exchange = (Atom("resource"), b"/", Atom("exchange"), b"")
    return (Atom("basic_message"), exchange, [key], content(body, properties, encoded), b"", persistent)


def p_basic(expiration: Term = UNDEFINED, headers: Term = UNDEFINED, priority: Term = UNDEFINED) -> Term:
    """Properties that stand decoded."""
    rest = (UNDEFINED,) * 6
    return (Atom("P_basic"), UNDEFINED, UNDEFINED, headers, 2, priority, UNDEFINED, UNDEFINED, expiration, *rest)


def usr(command: Term, reply_mode: Term = NO_REPLY, ts: int = 1_795_250_432_574) -> bytes:
    """An entry with a command to the queue."""
    return encode((Atom("$usr"), {Atom("ts"): ts}, command, reply_mode))


def notify(correlation: int, publisher: Opaque) -> Term:
    """The reply mode of what a channel sends."""
    return (Atom("notify"), correlation, publisher)


def called(command: Term, caller: Opaque) -> bytes:
    """An entry with a command whose sender waits for the answer."""
    reference = Opaque(b"Z\0\3d\0\3n@h" + struct.pack(">IIII", 7, 1, 2, 3))
    origin = (caller, ImproperList((Atom("alias"),), reference))
    meta: Term = {Atom("from"): origin, Atom("ts"): 1_795_250_432_574}
    return encode((Atom("$usr"), meta, command, Atom("await_consensus")))
