"""Directories that a real RabbitMQ 3.10.8 left: what is read from them is what that broker reported."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.rabbitmq_golden import (
    V1,
    archives,
    check_digests,
    check_export,
    exported,
    manifest_of,
    name_of,
    numbers,
)
from warren.queue_index.index.facts import ACKED, DELIVERED
from warren.queue_index.message.message_format import decode_message
from warren.salvage.classic.classic_v1 import ClassicV1Directory
from warren.salvage.inspect import inspect_source
from warren.salvage.names import to_text
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.salvage.vhost import STORES

Json = dict[str, Any]

ARCHIVES = archives(V1)


@pytest.fixture(scope="module", params=ARCHIVES, ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    check_export(archive)


def test_every_body_digest_of_the_drain_adds_up(archive: Path) -> None:
    check_digests(archive)


def index_entries(queue: ClassicV1Directory) -> list[list[Any]]:
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


def digest(rows: list[list[Any]]) -> str:
    texts = (",".join("-" if value is None else str(value) for value in row[:8]) + ";" for row in rows)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


@pytest.mark.slow
def test_index_is_what_the_brokers_own_modules_read(archive: Path) -> None:
    views = manifest_of(archive)["broker_view"]["vhosts"]
    with open_source(str(archive)) as source:
        assert {vhost.directory for vhost in source.vhosts} == set(views)
        for vhost in source.vhosts:
            view = views[vhost.directory]
            assert to_text(vhost.name) == view["vhost"]
            assert vhost.segment_entry_count == view["segment_entry_count"]
            queues = {queue["dir"]: queue for queue in view["queues"]}
            assert {Path(queue.path).name for queue in vhost.queues} == set(queues)
            for queue in vhost.queues:
                assert isinstance(queue, ClassicV1Directory)
                expected = queues[Path(queue.path).name]
                assert to_text(queue.name) == expected["name"]
                rows = index_entries(queue)
                if "entries_digest" in expected:
                    assert [row[0] for row in rows] == list(numbers(expected["seq_id_ranges"]))
                    assert len(rows) == expected["entries_digest"]["count"]
                    assert digest(rows) == expected["entries_digest"]["sha256"]
                    rows = rows[:20] + rows[-20:]
                assert rows == expected["entries"]


def test_inspect_counts_what_the_broker_counts(archive: Path) -> None:
    manifest = manifest_of(archive)
    with open_source(str(archive)) as source:
        report = inspect_source(source)
    lines = exported(archive)
    for vhost in report["vhosts"]:
        view = manifest["broker_view"]["vhosts"][vhost["dir"]]
        terms = {term["key"]: term["terms"] for term in view["recovery_terms"]}
        views = {queue["dir"]: queue for queue in view["queues"]}
        for queue in vhost["queues"]:
            expected = views[queue["dir"]]
            files = {file["name"] for file in expected["files"]}
            assert {f"{segment['number']}.idx" for segment in queue["segments"]} >= {
                n for n in files if n[0] != "." and n[-1] == "x"
            }
            assert sum(segment["unacked"] for segment in queue["segments"]) == (
                expected["entries_digest"]["count"] if "entries_digest" in expected else len(expected["entries"])
            )
            if queue["dir"] in terms:
                unacked = [
                    [segment["number"], segment["unacked"]] for segment in queue["segments"] if segment["unacked"]
                ]
                assert unacked == [list(pair) for pair in terms[queue["dir"]]["segments"] if pair[1]]
                assert queue["ready"] == terms[queue["dir"]]["persistent_count"]
                assert queue["bytes"] == terms[queue["dir"]]["persistent_bytes"]
        for name in {queue["name"].partition("\0")[0] for queue in vhost["queues"]}:
            levels = [queue for queue in vhost["queues"] if queue["name"].partition("\0")[0] == name]
            messages = lines.get((vhost["name"], name), [])
            assert sum(queue["ready"] for queue in levels) == len(messages)
            assert sum(queue["bytes"] for queue in levels) == sum(message["size"] for message in messages)


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
