"""A node's ``quorum`` directory, written by hand: configs, write-ahead logs and their commands, segments, snapshots.

Paths are those below :attr:`QuorumNode.root`; bytes go through whatever :class:`FileSystem` is handed in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from warren.queue_index.index.dets_format import TableObject, encode_table
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.quorum.ra.file_names import CONFIG_NAME, META_FILE, NAMES_FILE, is_wal_name
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.segment_format import encode_segment
from warren.salvage.quorum.ra.snapshot_format import encode_indexes, encode_snapshot
from warren.salvage.quorum.ra.wal_format import WAL_HEADER, encode_record
from warren.salvage.quorum.ra.wal_index import WalIndex
from warren.storage.erlang_terms import Atom, Opaque, Term, decode, encode
from warren.storage.erlang_text import binary_text, is_printable, quoted
from warren.storage.filesystem import FileSystem

UNDEFINED = Atom("undefined")
OPENING = encode(UNDEFINED)
"""Entry 0 of a log."""


class Record(NamedTuple):
    """An entry of a queue, as a write-ahead log has it."""

    uid: bytes
    index: int  # type: ignore[assignment]
    term: int
    entry: bytes
    truncates: bool = False


def settings_of(vhost: bytes, name: bytes, changed: Mapping[str, Term]) -> dict[Term, Term]:
    """A queue machine's settings, as a 3.10 broker writes them."""
    resource = (Atom("resource"), vhost, Atom("queue"), name)
    handler = (Atom("rabbit_quorum_queue"), Atom("become_leader"), [resource])
    settings: dict[Term, Term] = {
        Atom("become_leader_handler"): handler,
        Atom("created"): 1795250457533,
        Atom("name"): Atom(server_name_of(vhost, name)),
        Atom("overflow_strategy"): Atom("drop_head"),
        Atom("queue_resource"): resource,
        Atom("single_active_consumer_on"): False,
    }
    for key in ("dead_letter_handler", "delivery_limit", "expires", "max_bytes", "max_length", "msg_ttl"):
        settings[Atom(key)] = UNDEFINED
    return settings | {Atom(key): value for key, value in changed.items()}


def server_name_of(vhost: bytes, name: bytes) -> str:
    return f"{'%2F' if vhost == b'/' else vhost.decode()}_{name.decode()}"


def config_text(
    vhost: bytes,
    name: bytes,
    uid: bytes,
    changed: Mapping[str, Term] | None = None,
    *,
    node: str = "rabbit@localhost",
    machine: str = "rabbit_fifo",
) -> bytes:
    """``config`` of a queue's directory."""
    member = (Atom(server_name_of(vhost, name)), Atom(node))
    return format_term(
        {
            Atom("cluster_name"): member[0],
            Atom("id"): member,
            Atom("initial_members"): [member],
            Atom("log_init_args"): {Atom("snapshot_interval"): 8192, Atom("uid"): uid},
            Atom("machine"): (Atom("module"), Atom(machine), settings_of(vhost, name, changed or {})),
            Atom("metrics_key"): (Atom("resource"), vhost, Atom("queue"), name),
            Atom("uid"): uid,
        }
    )


def wal_bytes(records: Iterable[Record], *, zeros: int = 0, checksums: bool = True) -> bytes:
    """A write-ahead log: ids are numbered in order of appearance; ``zeros`` bytes follow, as in a preallocated file."""
    numbers: dict[bytes, int] = {}
    parts = [WAL_HEADER]
    for record in records:
        number = numbers.get(record.uid)
        parts.append(
            encode_record(
                len(numbers) if number is None else number,
                record.index,
                record.term,
                record.entry,
                uid=record.uid if number is None else None,
                truncates=record.truncates,
                checksum=checksums,
            )
        )
        numbers.setdefault(record.uid, len(numbers))
    return b"".join(parts) + bytes(zeros)


@attrs.frozen
class QuorumNode:
    """One node's directory."""

    files: FileSystem
    root: str

    def write(self, path: str, data: bytes) -> str:
        """Write a new file in place of an old one; return its whole path."""
        whole = f"{self.root}/{path}"
        self.files.make_directories(whole.rpartition("/")[0])
        if self.files.exists(whole):
            self.files.delete(whole)
        handle = self.files.open_append(whole)
        handle.append(data)
        handle.close()
        return whole

    def queue(self, vhost: bytes, name: bytes, uid: bytes, changed: Mapping[str, Term] | None = None) -> str:
        """A queue's directory, with its config; ``changed``: settings that are not the default ones."""
        return self.write(f"{uid.decode()}/{CONFIG_NAME}", config_text(vhost, name, uid, changed)).rpartition("/")[0]

    def names(self, uids: Mapping[str, bytes]) -> str:
        """What the node knows of: a server's name → a directory's; in any slots, for readers go through them all."""
        objects = [TableObject(b"", slot, encode((Atom(name), uid))) for slot, (name, uid) in enumerate(uids.items())]
        return self.write(NAMES_FILE, encode_table(objects))

    def meta(self, applied: Mapping[bytes, int]) -> str:
        """How far the node says it has come with a queue's log, by directory."""
        rows = [(uid, 1, (Atom("q"), Atom("rabbit@localhost")), index) for uid, index in applied.items()]
        return self.write(META_FILE, encode_table(TableObject(b"", slot, encode(row)) for slot, row in enumerate(rows)))

    def wal(self, number: int, records: Iterable[Record], *, zeros: int = 0, digits: int = 8) -> str:
        return self.write(f"{number:0{digits}}.wal", wal_bytes(records, zeros=zeros))

    def segment(
        self, uid: bytes, number: int, entries: Iterable[tuple[int, int, bytes]], *, room: int = 16, version: int = 2
    ) -> str:
        return self.write(f"{uid.decode()}/{number:08}.segment", encode_segment(entries, room=room, version=version))

    def snapshot(
        self,
        uid: bytes,
        index: int,
        term: int,
        state: Term = UNDEFINED,
        *,
        machine_version: int = 2,
        members: Sequence[tuple[str, str]] = (),
        indexes: Sequence[tuple[int, int]] | None = None,
        place: str = "snapshots",
    ) -> str:
        """A snapshot, or (``place``) a checkpoint; ``indexes``: RabbitMQ 4.3's list beside it."""
        meta: Mapping[Term, Term] = {
            Atom("index"): index,
            Atom("term"): term,
            Atom("cluster"): [(Atom(name), Atom(node)) for name, node in members],
            Atom("machine_version"): machine_version,
        }
        directory = f"{uid.decode()}/{place}/{term:016X}_{index:016X}"
        if indexes is not None:
            self.write(f"{directory}/indexes", encode_indexes(indexes))
        return self.write(f"{directory}/snapshot.dat", encode_snapshot(meta, state))

    def wals(self) -> list[str]:
        return [f"{self.root}/{name}" for name in self.files.list(self.root) if is_wal_name(name)]

    def uids(self) -> list[str]:
        """The names of the queues' directories."""
        return [name for name in self.files.list(self.root) if self.files.is_directory(f"{self.root}/{name}")]

    def scan(self) -> WalIndex:
        return WalIndex.scan(self.files, self.wals(), [uid.encode() for uid in self.uids()])

    def log(self, uid: bytes) -> QuorumLog:
        return QuorumLog(self.files, f"{self.root}/{uid.decode()}", self.scan().of(uid))


_PLAIN_ATOM = re.compile(r"[a-zß-öø-ÿ][0-9A-Za-zÀ-ÖØ-öø-ÿ_@]*")
_RESERVED = re.compile(
    "after|and|andalso|band|begin|bnot|bor|bsl|bsr|bxor|case|catch|cond|div|else|end|fun|if|let|maybe|not|of|or|orelse"
    "|receive|rem|try|when|xor"
)


def format_term(term: Term) -> bytes:
    """Return ``term`` as Latin-1 text on one line, followed by a full stop.

    Lists of printable characters become strings, binaries of printable bytes ``<<"…">>``, as the shell prints them.
    """
    parts: list[str] = []
    _write(term, parts)
    return ("".join(parts) + ".").encode("latin-1")


def _write(term: Term, parts: list[str]) -> None:
    match term:
        case tuple():
            _write_all(list(term), "{", "}", parts)
        case list():
            if term and all(type(element) is int and is_printable(element) for element in term):
                parts.append(quoted("".join(map(chr, term)), '"'))
            else:
                _write_all(term, "[", "]", parts)
        case dict():
            parts.append("#{")
            for position, (key, value) in enumerate(term.items()):
                parts.append("," if position else "")
                _write(key, parts)
                parts.append(" => ")
                _write(value, parts)
            parts.append("}")
        case _:
            parts.append(_leaf(term))


def _write_all(elements: list[Term], opening: str, closing: str, parts: list[str]) -> None:
    parts.append(opening)
    for position, element in enumerate(elements):
        parts.append("," if position else "")
        _write(element, parts)
    parts.append(closing)


def _leaf(term: Term) -> str:
    match term:
        case bool():
            return "true" if term else "false"
        case int():
            return str(term)
        case float() if math.isfinite(term):
            text = repr(term)
            mantissa, exponent_mark, exponent = text.partition("e")
            return text if "." in mantissa else f"{mantissa}.0{exponent_mark}{exponent}"
        case Atom():
            plain = _PLAIN_ATOM.fullmatch(term) and not _RESERVED.fullmatch(term)
            return str(term) if plain else quoted(term, "'")
        case bytes():
            return binary_text(term)
        case _:
            raise ValueError(f"{term!r} has no text")


ORDERS = b"2F_ORDAAAAAAAAAAAA"
NODE = "rabbit@a"


def pid(number: int) -> Opaque:
    return Opaque(b"Xs" + bytes([len(NODE)]) + NODE.encode() + number.to_bytes(4, "big") + bytes(4) + b"\0\0\0\1")


PUBLISHER, CONSUMER = pid(100), pid(200)


def usr(command: Term, ts_ms: int = 1_700_000_000_000) -> bytes:
    return encode((Atom("$usr"), {Atom("ts"): ts_ms}, command, Atom("noreply")))


def noop(version: int = 2) -> bytes:
    return encode((Atom("noop"), {Atom("ts"): 1_700_000_000_000}, version))


def message(body: bytes, headers: dict[str, Any] | None = None) -> Term:
    """As quorum queues have it: without an id."""
    properties = encode_properties(Properties(delivery_mode=2, headers=headers))
    term = decode(encode_message(Envelope(b"/", b"", (b"orders",), properties, True), bytes(16), body))
    assert isinstance(term, tuple)
    return (*term[:4], b"", term[5])


def enqueue(seq: int, body: bytes) -> bytes:
    return usr((Atom("enqueue"), PUBLISHER, seq, message(body)))


def checkout(credit: int = 100) -> bytes:
    spec = (Atom("auto"), credit, Atom("simple_prefetch"))
    return usr((Atom("checkout"), (b"tag", CONSUMER), spec, {Atom("ack"): True}))


def settle(*msg_ids: int) -> bytes:
    return usr((Atom("settle"), (b"tag", CONSUMER), list(msg_ids)))


def plain_log(count: int) -> list[bytes]:
    """``count`` messages, one after the other."""
    return [OPENING, noop(), *(enqueue(number + 1, b"body %d" % number) for number in range(count))]


def records(uid: bytes, entries: Sequence[bytes], *, term: int = 1, without: Sequence[int] = ()) -> list[Record]:
    return [Record(uid, index, term, entry) for index, entry in enumerate(entries) if index not in without]
