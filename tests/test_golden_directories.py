"""Directories that a real RabbitMQ 3.10.8 left, with classic queues of both versions: what is read is what it said.

``after_restart`` of a manifest is what the broker delivered when it was started on a copy, ``broker_view`` what its own
modules read from the files (tests/golden/rabbitmq-3.10.8-cqv2/README.md). Further sets of the same kind are used if
they lie beside the project.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.rabbitmq_golden import (
    V1,
    V2,
    archives,
    check_digests,
    check_export,
    exported,
    manifest_of,
    name_of,
    numbers,
)
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.facts import ACKED, DELIVERED
from warren.queue_index.message.message_format import decode_message
from warren.salvage.classic.classic_v1 import ClassicV1Directory
from warren.salvage.classic.classic_v2 import ClassicV2Directory
from warren.salvage.classic.segment_v2 import read_message
from warren.salvage.inspect import inspect_source
from warren.salvage.names import to_text
from warren.salvage.queue_directory import Finding, MessageRun, StoredMessage
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.salvage.vhost import STORES

Json = dict[str, Any]
Rows = list[list[Any]]

ARCHIVES_V2 = archives(V2)
ARCHIVES = [*archives(V1), *ARCHIVES_V2]
SEGMENTS = next(path for path in ARCHIVES_V2 if path.name == "03-clean-segments-4096.tar.gz")


def id_of(archive: Path) -> str:
    return f"v2-{name_of(archive)}" if archive in ARCHIVES_V2 else name_of(archive)


@pytest.fixture(scope="module", params=ARCHIVES, ids=id_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    check_export(archive)


def test_every_body_digest_of_the_drain_adds_up(archive: Path) -> None:
    check_digests(archive)


def index_entries(queue: ClassicV1Directory) -> Rows:
    """A queue's unacked entries in the form of the broker's own view."""
    rows = []
    with queue.index.journal() as journal:
        for positions in queue.index.segments(journal):
            columns = queue.index.columns_of(positions)
            columns = columns.rows(np.flatnonzero(columns.live))
            own = positions.read_each(columns.rows(np.flatnonzero(columns.embedded)))
            rel_seqs = (columns.seq_ids - positions.first_seq_id).tolist()
            bodies = columns.msg_ids, columns.embedded.tolist(), columns.expiries_us.tolist(), columns.sizes.tolist()
            for rel_seq, msg_id, embedded, expiry_us, size in zip(rel_seqs, *bodies, strict=True):
                fact, encoded = positions.facts[rel_seq], next(own) if embedded else None
                message = decode_message(encoded) if isinstance(encoded, bytes) else None
                rows.append(
                    [
                        positions.first_seq_id + rel_seq,
                        msg_id.tobytes().hex(),
                        int(embedded),
                        int(positions.persistent[rel_seq]),
                        "del" if fact & DELIVERED else "no_del",
                        "ack" if fact & ACKED else "no_ack",
                        expiry_us or None,
                        size,
                        hashlib.sha256(message.body).hexdigest() if message else None,
                    ]
                )
    return rows


def digest_v1(rows: Rows) -> str:
    texts = (",".join("-" if value is None else str(value) for value in row[:8]) + ";" for row in rows)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def live_entries(queue: ClassicV2Directory) -> Rows:
    """A queue's live entries in the form of the broker's own view."""
    places = {v2.IN_MEMORY: "memory", v2.IN_VHOST_STORE: "vhost_store", v2.IN_QUEUE_STORE: "queue_store"}
    rows: Rows = []
    for segment in queue.index.segments():
        for rel_seq in np.flatnonzero(segment.live).tolist():
            entry = segment.entries[rel_seq]
            place: list[Any] = [None, None]
            msg_id, sha256 = entry["msg_id"].tobytes().hex(), None
            if entry["location"] == v2.IN_QUEUE_STORE:
                encoded = read_message(segment, rel_seq)
                assert isinstance(encoded, bytes)
                message = decode_message(encoded)
                place = [int(entry["offset"]), int(entry["length"])]
                msg_id, sha256 = message.msg_id.hex(), hashlib.sha256(message.body).hexdigest()
            numbers = [int(segment.persistent[rel_seq]), int(entry["expiry_us"]) or None, int(entry["size"])]
            seq_id = segment.first_seq_id + rel_seq
            rows.append([seq_id, msg_id, places[int(entry["location"])], *place, *numbers, sha256])
    return rows


def digest_v2(rows: Rows) -> str:
    return hashlib.sha256("\n".join(json.dumps(row, separators=(",", ":")) for row in rows).encode()).hexdigest()


@pytest.mark.parametrize(
    "archive",
    [pytest.param(path, id=id_of(path), marks=[] if path in ARCHIVES_V2 else pytest.mark.slow) for path in ARCHIVES],
)
def test_index_is_what_the_brokers_own_modules_read(archive: Path) -> None:
    views = manifest_of(archive)["broker_view"]["vhosts"]
    with open_source(str(archive)) as source:
        assert {vhost.directory for vhost in source.vhosts} == set(views)
        for vhost in source.vhosts:
            view = views[vhost.directory]
            queues = {queue["dir"]: queue for queue in view["queues"]}
            assert {Path(queue.path).name for queue in vhost.queues} == set(queues)
            for queue in vhost.queues:
                expected = queues[Path(queue.path).name]
                assert to_text(queue.name) == expected["name"]
                if isinstance(queue, ClassicV2Directory):
                    assert expected["index_version"] == 2
                    check_entries(live_entries(queue), expected, digest_v2)
                elif archive in ARCHIVES_V2:
                    assert isinstance(queue, ClassicV1Directory)
                    assert expected["index_version"] == 1
                else:
                    assert isinstance(queue, ClassicV1Directory)
                    assert to_text(vhost.name) == view["vhost"]
                    assert vhost.segment_entry_count == view["segment_entry_count"]
                    check_entries(index_entries(queue), expected, digest_v1)


def check_entries(rows: Rows, expected: Json, digest: Callable[[Rows], str]) -> None:
    if "entries_digest" in expected:
        assert [row[0] for row in rows] == list(numbers(expected["seq_id_ranges"]))
        if "persistent_seq_id_ranges" in expected:
            assert [row[0] for row in rows if row[5]] == list(numbers(expected["persistent_seq_id_ranges"]))
        sha256 = expected["entries_digest"]
        assert digest(rows) == (sha256 if isinstance(sha256, str) else sha256["sha256"])
        rows = rows[:20] + rows[-20:]
    assert rows == expected["entries"]


def test_inspect_counts_what_the_broker_counts(archive: Path) -> None:
    manifest, lines = manifest_of(archive), exported(archive)
    with open_source(str(archive)) as source:
        report = inspect_source(source)
    for vhost in report["vhosts"]:
        view = manifest["broker_view"]["vhosts"][vhost["dir"]]
        terms = {term["key"]: term["terms"] for term in view["recovery_terms"]}
        views = {queue["dir"]: queue for queue in view["queues"]}
        for queue in vhost["queues"]:
            counted: dict[int, int] | None = None
            if queue["version"] == 2:
                counted = check_segments_v2(queue, views[queue["dir"]])
            elif archive not in ARCHIVES_V2:
                counted = check_segments_v1(queue, views[queue["dir"]])
            if queue["dir"] in terms and counted is not None:
                of_queue = terms[queue["dir"]]
                segments = of_queue["v2_index_state"]["segments"] if queue["version"] == 2 else of_queue["segments"]
                assert [[number, count] for number, count in counted.items() if count] == [
                    list(pair) for pair in segments if pair[1]
                ]
                assert queue["ready"] == of_queue["persistent_count"]
                assert queue["bytes"] == of_queue["persistent_bytes"]
        for name in {queue["name"].partition("\0")[0] for queue in vhost["queues"]}:
            levels = [queue for queue in vhost["queues"] if queue["name"].partition("\0")[0] == name]
            messages = lines.get((vhost["name"], name), [])
            assert sum(queue["ready"] for queue in levels) == len(messages)
            assert sum(queue["bytes"] for queue in levels) == sum(message["size"] for message in messages)


def check_segments_v1(queue: Json, expected: Json) -> dict[int, int]:
    """The unacked messages of each segment."""
    files = {file["name"] for file in expected["files"]}
    assert {f"{segment['number']}.idx" for segment in queue["segments"]} >= {
        name for name in files if name[0] != "." and name[-1] == "x"
    }
    counted = {segment["number"]: segment["unacked"] for segment in queue["segments"]}
    entries = expected["entries_digest"]["count"] if "entries_digest" in expected else len(expected["entries"])
    assert sum(counted.values()) == entries
    return counted


def check_segments_v2(queue: Json, expected: Json) -> dict[int, int]:
    """The live messages of each segment."""
    sizes = {file["name"]: file["size"] for file in expected["files"]}
    for segment in queue["segments"]:
        assert segment["qi_bytes"] == sizes.pop(f"{segment['number']}.qi", 0)
        assert segment["qs_bytes"] == sizes.pop(f"{segment['number']}.qs", 0)
        assert segment["entries"] == segment["live"] + segment["acked"]
    assert set(sizes) == {".queue_name"}
    return {segment["number"]: segment["live"] for segment in queue["segments"]}


def test_stores_are_what_the_brokers_own_modules_read(archive: Path) -> None:
    views = manifest_of(archive)["broker_view"]["vhosts"]
    with open_source(str(archive)) as source:
        report = {vhost["dir"]: vhost["stores"] for vhost in inspect_source(source)["vhosts"]}
        for vhost in source.vhosts:
            for name in STORES:
                view, store = views[vhost.directory][name], vhost.store(name)
                found: dict[str, list[list[Any]]] = {file: [] for file in store.ends}
                for file, record in store.records():
                    body = decode_message(store.read(record.msg_id)).body
                    sha256 = hashlib.sha256(body).hexdigest()
                    found[file].append([record.msg_id.hex(), record.offset, record.size, sha256, len(body)])
                assert found == {file["file"]: file["entries"] for file in view["rdq"]}
                ends = {file: (end.offset, end.file_size) for file, end in store.ends.items()}
                assert ends == {file["file"]: (file["scanned_to"], file["size"]) for file in view["rdq"]}
                files = report[vhost.directory][name]["files"]
                assert [file["messages"] for file in files] == [len(file["entries"]) for file in view["rdq"]]
                if view["file_summary"] is not None:
                    valid = [[file["number"], file["valid_bytes"]] for file in files]
                    assert valid == sorted(row[:2] for row in view["file_summary"])


def test_only_what_was_damaged_on_purpose_is_damage(archive: Path) -> None:
    manifest = manifest_of(archive)
    with open_source(str(archive)) as source:
        damage = {finding.path for finding in verify_source(source) if finding.severity == "damage"}
    cut = {change["file"] for change in manifest.get("damage_after_stop", []) if change["what"] == "truncated"}
    assert damage == cut


@pytest.mark.parametrize("archive", ARCHIVES_V2, ids=name_of)
def test_parts_of_a_queue_are_the_whole(archive: Path) -> None:
    with open_source(str(archive)) as source:
        for queue in (queue for vhost in source.vhosts for queue in vhost.queues):
            whole = [one for one in queue.messages() if isinstance(one, StoredMessage)]
            cuts = [*queue.extent().pieces, 1 << 40]
            parts = [range(low, high) for low, high in zip([0, *cuts], cuts, strict=False)]
            found = [one for part in parts for one in _messages(queue, part)]
            assert found == whole
            assert sum(queue.count(part) for part in parts) == len(whole)
            both = [found for part in parts for found in queue.deliverable(part)]
            assert sum(embedded + len(stored) for embedded, stored in both) == len(whole)


def _messages(queue: Any, only: range) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for one in queue.message_runs(only=only):
        assert not isinstance(one, Finding)
        found += one.messages() if isinstance(one, MessageRun) else [one]
    return found


def test_acked_messages_that_are_still_there_come_marked() -> None:
    with open_source(str(SEGMENTS)) as source:
        for queue in source.vhosts[0].queues:
            assert isinstance(queue, ClassicV2Directory)
            found = [one for one in queue.messages(include_acked=True) if isinstance(one, StoredMessage)]
            assert [one for one in found if not one.acked] == list(queue.messages())
            acked = {
                segment.first_seq_id + rel_seq
                for segment in queue.index.segments()
                for rel_seq in np.flatnonzero(segment.acked & segment.persistent & segment.here).tolist()
            }
            assert acked <= {one.seq_id for one in found if one.acked}
            assert [one.seq_id for one in found] == sorted({one.seq_id for one in found})
