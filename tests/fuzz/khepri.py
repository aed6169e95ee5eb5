"""Targets of Khepri's log: an entry after the others of its log, and a snapshot's state, their checksums right."""

from __future__ import annotations

import functools
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz.target import Target
from tests.support.quorum_tools import records, wal_bytes
from warren.salvage.metadata.broker_definitions import read_definitions
from warren.salvage.quorum.ra.entry_runs import LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.snapshot_format import META_LENGTH, SNAPSHOT_HEADER, encode_snapshot
from warren.salvage.quorum.ra.wal_index import WalIndex
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.filesystem import write_file
from warren.storage.memory import MemoryFileSystem

_DATA: Final = Path(__file__).parents[1] / "data" / "khepri"
_UID: Final = b"META"
_CONFIG: Final = b'#{id => {rabbitmq_metadata,n@h},machine => {module,khepri_machine,#{}},uid => <<"META">>}.\n'
_FEW: Final = 6
"""Entries of a kind that are damaged."""


def _read(files: dict[str, bytes]) -> None:
    memory, node = MemoryFileSystem(), f"node/coordination/n@h/{_UID.decode()}"
    for path, data in {f"{node}/config": _CONFIG, **files}.items():
        memory.make_directories(path.rpartition("/")[0])
        write_file(memory, path, data, sync=False)
    json.dumps(read_definitions(ReadOnlyFileSystem(memory), "node", str))


def _entry(data: bytes) -> None:
    _read({"node/coordination/n@h/00000001.wal": wal_bytes(records(_UID, [*_entries(), data]))})


def _state(data: bytes) -> None:
    meta: dict[Term, Term] = {Atom("index"): 1, Atom("term"): 1, Atom("machine_version"): 3, Atom("cluster"): {}}
    whole = encode_snapshot(meta, decode(data))
    _read({f"node/coordination/n@h/{_UID.decode()}/snapshots/{1:016X}_{1:016X}/snapshot.dat": whole})


def _file(archive: str, suffix: str) -> bytes:
    with tarfile.open(_DATA / archive) as files:
        (name,) = (name for name in files.getnames() if name.endswith(suffix))
        member = files.extractfile(name)
        return b"" if member is None else member.read()


@functools.cache
def _entries() -> Sequence[bytes]:
    """Of each kind a few: entries of the same length, nearly, are of a kind."""
    memory = MemoryFileSystem()
    write_file(memory, "00000001.wal", _file("rabbitmq-4.3.5.tar.xz", ".wal"), sync=False)
    index = WalIndex.scan(memory, ["00000001.wal"])
    (uid,) = index.uids
    memory.make_directories("none")
    kinds: dict[int, list[bytes]] = {}
    for entry in QuorumLog(memory, "none", index.of(uid)).entries():
        if isinstance(entry, LogEntry):
            kinds.setdefault(len(entry.data) // 256, []).append(bytes(entry.data))
    return [data for kind in kinds.values() for data in kind[:_FEW]]


def _states() -> Sequence[bytes]:
    data = _file("rabbitmq-4.3.5-snapshot.tar.xz", "snapshot.dat")
    meta_at = SNAPSHOT_HEADER.size + META_LENGTH.size
    return [data[meta_at + META_LENGTH.unpack_from(data, SNAPSHOT_HEADER.size)[0] :]]


KHEPRI: Final[tuple[Target, ...]] = (
    Target("khepri-entry", _entry, _entries, is_slow=True),
    Target("khepri-state", _state, _states, is_slow=True),
)
