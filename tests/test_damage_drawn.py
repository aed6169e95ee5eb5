"""One damage at a time, drawn from a seed, in what real brokers left: no message is missing without a word.

Either everything is exported that was exported before, or the exit code is 1 and stderr names the file or the loss (or
says how many of its kind there are); an entirely unreadable directory gives one line and exit code 2. Nothing ends in a
traceback.

What cannot be known is left out: bytes of index files have no checksum in version 1, and after a crash no terms say how
many messages there were. There a change of a few bytes may cost or alter :data:`FEW` messages unseen, and whole files
that are gone, or cut between two records, are not drawn. In version 2 an entry of zeros is also what a message leaves
that was acked before its entry was written: after a crash a hole that covers whole entries costs their messages, and
verify says that no entry points to their records (docs/how-it-is-tested.md). After a crash a damaged CommitLog
can look like one that ends there: the entries that point past its end are reported.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from tests.support.cli_tools import warren
from tests.support.disk_fault_tools import RefusingFileSystem
from tests.support.effort import EFFORT, new_seed, times
from tests.support.rabbitmq_golden import PROJECT, STREAMS
from tests.support.tried import Count, Tried
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.index_v2_format import Entries
from warren.salvage import source
from warren.salvage.archives.archive import unpack

FEW = 1

GOLDEN = PROJECT / "tests" / "golden"
CLASSIC = (
    "02-crash-small-mixed",
    "03-clean-fanout-refcount",
    "05-clean-segments-2048",
    "13-clean-dead-letter-cc",
    "rabbitmq-3.10.8-cqv2/01-clean-small-mixed",
    "rabbitmq-3.10.8-cqv2/04-crash-segments-4096",
)
QUORUM = (
    "01-clean-small-mixed",
    "03-clean-wal-segments-snapshot",
    "05-clean-consumers",
    "06-crash-delivery-limit",
    "09-crash-restart-clean",
)
STREAM_NODES = ("01-clean-small", "02-crash-small", "04-clean-retention", "08-crash-unicode-restarted")
TOPICS = ("basic-clean", "crash-recovery", "ipv6-txn-batch-edge")
KINDS = ("truncate", "rename", "delete", "overwrite", "flip", "refuse")
PLACES = ("password", "loop", "nowhere", "fifo", "device", "directory", "hole", "insert", "cut out", "swap")
"""Something else in a file's place, and what changes where things stand in it."""
GONE = ("rename", "delete", "password", "loop", "nowhere", "fifo", "device", "directory")
"""Nothing of the file is left."""
LINKS = {"password": "/etc/passwd", "loop": ".", "nowhere": "nobody", "device": "/dev/zero"}
LOGS = (".wal", ".segment")
QUORUM_FILES = (*LOGS, "snapshot.dat", "config")
STREAM_FILES = (".segment", ".index")
INDEXES = (".idx", ".jif", ".qi", ".qs", ".rdq", "recovery.dets", ".queue_name", ".vhost", ".config")


@cache
def bodies_of(archive: Path, *command: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted(messages(warren(*command, archive))))


def messages(result: Result) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [
        (one.get("vhost", ""), one.get("queue", one.get("topic")), one["body_sha256"])
        for one in found
        if not one.get("blank")
    ]


def spoil(
    chance: random.Random, node: Path, kind: str, suffixes: tuple[str, ...], *, is_clean: bool
) -> tuple[Path, bytes]:
    """Do it, and say to which file, or directory, and what the file was before."""
    files = [path for path in sorted(node.rglob("*")) if path.is_file() and path.name.endswith(suffixes)]
    files = [path for path in files if path.stat().st_size > 4 and "transient" not in str(path)]
    if kind in GONE and not is_clean:
        files = [path for path in files if path.suffix not in (".idx", ".jif", ".qi")]
    if kind in GONE and node.name == "commitlog":
        files = files[1:]  # without its first file a CommitLog is one whose oldest messages have expired
    if kind in GONE:
        files = [path for path in files if path.suffix not in LOGS]  # nothing says how far a log went
    path = chance.choice(files)
    sound = path.read_bytes()
    data = bytearray(sound)
    match kind:
        case "truncate":
            path.write_bytes(data[: chance.randrange(1, len(data))])
        case "rename":
            path.rename(path.with_name(path.name + ".old"))
        case "delete":
            path.unlink()
        case "overwrite":
            at = chance.randrange(len(data) - 3)
            data[at : at + 3] = chance.randbytes(3)
            path.write_bytes(data)
        case "flip":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        case "hole":
            at = chance.randrange(len(data))
            length = min(chance.choice((1, 64, 4096)), len(data) - at)
            data[at : at + length] = bytes(length)
            path.write_bytes(data)
        case "insert":
            at = chance.randrange(len(data))
            data[at:at] = chance.randbytes(chance.choice((1, 7, 300)))
            path.write_bytes(data)
        case "cut out":
            at = chance.randrange(len(data))
            del data[at : at + chance.choice((1, 7, 300))]
            path.write_bytes(data)
        case "swap":
            other = chance.choice([one for one in files if one.suffix == path.suffix])
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "directory":
            path.unlink()
            path.mkdir()
        case "password" | "loop" | "nowhere" | "device":
            path.unlink()
            path.symlink_to(path if kind == "loop" else LINKS[kind])
        case "refuse":
            inside = {one for one in path.parents if node in one.parents and len(one.relative_to(node).parts) > 1}
            return chance.choice(sorted(inside) or [node]), sound
    return path, sound


def erased_entries(sound: bytes, spoilt: Path) -> Entries:
    """Return the original entries of messages in a ``.qi`` file that a hole made into what a broker may have written.

    Such are zeros alone, and, at the two ends of the hole, an acked entry or one of an empty transient message in RAM.
    """
    before, now = (v2.decode_entries(data[v2.HEADER_SIZE :]) for data in (sound, spoilt.read_bytes()))
    acked, in_memory = before.copy(), np.zeros(1, v2.ENTRY)
    acked["status"], in_memory["status"] = v2.NOTHING, v2.MESSAGE
    is_erased = (now == np.zeros(1, v2.ENTRY)) | (now == acked) | (now == in_memory)
    erased: Entries = before[(before["status"] == v2.MESSAGE) & is_erased]
    return erased


def untold_records(place: Path) -> int:
    """How many messages in queues' own stores ``warren verify`` finds no entry of."""
    findings = json.loads(warren("verify", place, "--json").stdout)["findings"]
    return sum(int(one["detail"].split()[0]) for one in findings if one["kind"] == "orphan records")


def told_behind_the_end(stderr: str) -> int:
    """Return how many messages have entries past the present end of a CommitLog: a crash may leave that."""
    told = r"leftover entry that points nowhere: .* after the CommitLog's end at \d+(?:; ([\d,]+))?"
    rows = re.findall(told, stderr)
    return sum(int(row.replace(",", "") or 1) for row in rows)


def check(
    archive: Path,
    seed: int,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    *,
    indexes: tuple[str, ...] = INDEXES,
    kinds: tuple[str, ...] = KINDS,
) -> None:
    chance = random.Random(f"{archive.name} {seed}")
    kind, is_topic = chance.choice(kinds), command[0] == "topic"
    place.mkdir()
    unpack(str(archive), str(place))
    if indexes is QUORUM_FILES:
        place = next(place.rglob("quorum")).parent
    is_clean = "clean" in archive.name
    suffixes = tuple("0123456789") if is_topic else indexes
    root = next(place.rglob("commitlog")) if is_topic else place
    root = next(place.rglob("stream")) if indexes is STREAM_FILES else root
    spoilt, sound = spoil(chance, root, kind, suffixes, is_clean=is_clean)
    if kind == "refuse":
        monkeypatch.setattr(RefusingFileSystem, "refused", str(spoilt))
    monkeypatch.setattr(source, "RealFileSystem", RefusingFileSystem)
    result = warren(*command, place)
    if kind == "truncate" and not is_clean and spoilt.suffix in (".idx", ".jif", ".qi") and not result.exit_code:
        os.truncate(spoilt, spoilt.stat().st_size - 1)  # perhaps it was cut between two records
        result = warren(*command, place)
    said = f"seed {seed}: {kind} of {spoilt.relative_to(place)}: {result.exit_code}, {result.stderr[:2000]}"
    assert result.exit_code in (0, 1, 2), said
    assert result.exception is None or isinstance(result.exception, SystemExit), said
    expected, found = Counter(bodies_of(archive, *command)), Counter(messages(result))
    if kind == "swap":  # nothing in a queue's index says whose it is
        expected, found = (Counter(("", "", body) for *_, body in one.elements()) for one in (expected, found))
    missing, added = expected - found, found - expected
    few = FEW if kind in ("overwrite", "flip", "hole") and spoilt.suffix in (".idx", ".jif", ".qi", ".rdq") else 0
    if kind == "swap" and spoilt.suffix == ".idx":  # nor whose messages a journal's acks are of
        few += len(bodies_of(archive, *command, "--include-acked")) - expected.total()
    if is_topic and not is_clean:
        few += told_behind_the_end(result.stderr)
    if kind == "hole" and spoilt.suffix == ".qi" and not result.exit_code and not is_clean:
        erased = erased_entries(sound, spoilt)
        few += len(erased)
        here = int((erased["location"] == v2.IN_QUEUE_STORE).sum())
        assert untold_records(place) >= here - FEW + untold_records(archive), said  # an acked one tells of its record
        saved = {body for *_, body in messages(warren(*command, place, "--orphans"))}
        assert len({body for *_, body in missing} - saved) <= few - here, said
    cut = kind == "truncate" and spoilt.suffix in LOGS  # perhaps between two records
    cut = cut or (
        kind in ("hole", "cut out", "insert") and spoilt.suffix == ".segment" and indexes is STREAM_FILES
    )  # at its end
    back = Counter(body for *_, body in found.elements()) - Counter(body for *_, body in expected.elements())
    is_moved = kind in ("insert", "cut out")  # which entries after it settle what cannot be known
    if indexes is QUORUM_FILES and back and not cut and not (is_moved and result.exit_code == 1):
        assert "may be back" in result.stderr or "uncertain" in result.stderr, said
    if result.exit_code == 0 and not cut:
        assert len({body for *_, body in missing}) <= few, said  # a body may be in several queues
        assert len({body for *_, body in added}) <= few, said
    elif result.exit_code == 0:
        written = {body for *_, body in bodies_of(archive, *command, "--include-acked")}
        assert {body for *_, body in added} <= written, said
    else:
        names = [spoilt.name.removesuffix(".old"), str(spoilt.parent), "missing body", "consumequeue"]
        if spoilt.name == "snapshot.dat" or kind == "swap":
            names.append("hole in the log")  # what is not there has no name
        if kind == "swap" and indexes is STREAM_FILES:
            names.append("missing index records")  # of the other stream, if this one got an empty segment
        if spoilt.suffix == ".rdq":
            names.append("unreadable message")  # named by its place in the queue
        assert any(name in result.stderr for name in names), said


Case = tuple[Path, tuple[str, ...], tuple[str, ...]]
"""An archive, the command that reads it, and the names of its indexes."""
EVERY: list[Case] = [
    *((GOLDEN / f"{name}.tar.gz", ("export",), INDEXES) for name in CLASSIC),
    *((GOLDEN / "rabbitmq-3.10.8-quorum" / f"{name}.tar.gz", ("export",), QUORUM_FILES) for name in QUORUM),
    *((GOLDEN / STREAMS / f"{name}.tar.gz", ("export",), STREAM_FILES) for name in STREAM_NODES),
    *((GOLDEN / "rocketmq" / f"{name}.tar.gz", ("topic", "scan", "--salvage"), INDEXES) for name in TOPICS),
]
every = pytest.mark.parametrize("case", EVERY, ids=[archive.name[:-7] for archive, *_ in EVERY])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@every
def test_queues_and_topics_lose_nothing_without_a_word(
    case: Case, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, command, indexes = case
    check(archive, seed, tmp_path / "node", monkeypatch, command, indexes=indexes)


@pytest.mark.slow
@every
def test_what_stands_in_a_files_place_costs_no_message_without_a_word(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Count
) -> None:
    archive, command, indexes = case
    first, seeds = (new_seed() if EFFORT == "nightly" else 0), times(2, nightly=40)
    for seed in range(first, first + seeds):
        for kinds in (PLACES, KINDS) if EFFORT == "nightly" else (PLACES,):
            place = tmp_path / f"{seed}{kinds[0]}"
            check(archive, seed, place, monkeypatch, command, indexes=indexes, kinds=kinds)
            monkeypatch.undo()
            shutil.rmtree(place)
            tried(Tried.DAMAGED_FILES, 1)
