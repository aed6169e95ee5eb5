"""A node's ``quorum`` directory, written by hand: configs, write-ahead logs, segments, snapshots.

Paths are those below :attr:`QuorumNode.root`; bytes go through whatever :class:`FileSystem` is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from tests.support.erlang_text_writer import format_term
from warren.queue_index.index.dets_format import TableObject, encode_table
from warren.salvage.quorum.ra.file_names import CONFIG_NAME, META_FILE, NAMES_FILE, is_wal_name
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.wal_index import WalIndex
from warren.salvage.quorum.ra.segment_format import encode_segment
from warren.salvage.quorum.ra.snapshot_format import encode_indexes, encode_snapshot
from warren.salvage.quorum.ra.wal_format import WAL_HEADER, encode_record
from warren.storage.erlang_terms import Atom, Term, encode
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
        return QuorumLog.open(self.files, f"{self.root}/{uid.decode()}", self.scan().of(uid))
