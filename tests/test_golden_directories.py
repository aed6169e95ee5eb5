"""Directories that a real RabbitMQ 3.10.8 left behind: what is read from them is what that broker said of them.

``after_restart`` of a manifest is what the broker delivered when it was started on a copy, ``broker_view`` what its own
modules read from the files (tests/golden/README.md). Further sets of the same kind are taken in where they lie beside
the project.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from queue_index.entries import ACKED, DELIVERED
from queue_index.message_format import decode_message
from warren.salvage.classic_v1 import ClassicV1Directory
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source
from warren.salvage.names import to_text
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.salvage.vhost import STORES

Json = dict[str, Any]

PROJECT = Path(__file__).parent.parent
SETS = (PROJECT / "tests" / "golden", PROJECT / ".." / "shared" / "golden" / "rabbitmq-3.10.8")


def archives() -> list[Path]:
    """One of each: a set beside the project may repeat what is here."""
    found: dict[bytes, Path] = {}
    for path in (path for directory in SETS for path in sorted(directory.glob("*.tar.gz"))):
        found.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return list(found.values())


ARCHIVES = archives()


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def archive(request: pytest.FixtureRequest) -> Path:
    return request.param


@cache
def manifest_of(archive: Path) -> Json:
    return json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())


@cache
def exported(archive: Path) -> dict[tuple[str, str], list[Json]]:
    """The exported messages of each queue, in order."""
    lines: list[bytes] = []
    with open_source(str(archive)) as source:
        result = export_source(source, Selection(), lines.append, lambda finding: pytest.fail(str(finding)))
    queues: dict[tuple[str, str], list[Json]] = {}
    for line in b"".join(lines).decode().splitlines():
        message = json.loads(line)
        queues.setdefault((message["vhost"], message["queue"]), []).append(message)
    assert result.messages == sum(map(len, queues.values()))
    return queues


def numbers(ranges: list[list[int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def expected_messages(manifest: Json, queue: Json) -> list[tuple[Json, str, bool]]:
    """What a queue delivered: the message as it was delivered, its body's sha256, and whether it was redelivered."""
    after = queue["after_restart"]
    if not after["exists"]:
        return []
    if "rows" not in after:
        redelivered = set(numbers(after["redelivered_n_ranges"]))
        large = [large_message(manifest, n) for n in numbers(after["n_ranges"])]
        return [(message, message["sha256"], message["n"] in redelivered) for message in large]
    rows = []
    changes = after.get("delivered_as", [None] * len(after["rows"]))
    for (n, size, sha256, redelivered, *_), changed in zip(after["rows"], changes, strict=True):
        rows.append((manifest["messages"][n] | {"size": size} | (changed or {}), sha256, redelivered))
    return rows


def large_message(manifest: Json, n: int) -> Json:
    run = next(run for run in manifest["message_runs"] if run["n"][0] <= n <= run["n"][1])
    message = dict(zip(manifest["message_runs_key"], run["key"], strict=True))
    assert message["kind"] == "rep"
    size = manifest["message_sizes"][n]
    unit = f"{manifest['seed']}/{n};".encode()
    body = (unit * (size // len(unit) + 1))[:size]
    mode = 2 if message["persistent"] else 1
    properties = {"message_id": str(n), "delivery_mode": mode} | manifest["extra_properties"].get(str(n), {})
    return message | {"n": n, "size": size, "sha256": hashlib.sha256(body).hexdigest(), "properties": properties}


def properties_of(message: Json) -> Json:
    """With the headers among them, as the manifests have it."""
    return message["properties"] | ({} if message["headers"] is None else {"headers": message["headers"]})


def without_expired(found: list[Json], expected: list[tuple[Json, str, bool]]) -> list[Json]:
    """Less the messages that had expired by the time of the drain: they are in the files all the same."""
    if len(found) == len(expected):
        return found
    delivered = []
    for message in found:
        original, sha256, _ = expected[len(delivered)] if len(delivered) < len(expected) else ({}, "", False)
        if message["body_sha256"] == sha256 and properties_of(message) == original["properties"]:
            delivered.append(message)
        else:
            assert message["expiry_us"] is not None, message
    return delivered


def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    manifest = manifest_of(archive)
    queues = exported(archive)
    for queue in manifest["queues"]:
        name = queue["vhost"], queue["name"]
        expected = expected_messages(manifest, queue)
        found = without_expired(queues.get(name, []), expected)
        assert [message["body_sha256"] for message in found] == [sha256 for _, sha256, _ in expected], name
        assert [message["redelivered"] for message in found] == [redelivered for _, _, redelivered in expected], name
        for message, (original, sha256, _) in zip(found, expected, strict=True):
            body = base64.b64decode(message["body"], validate=True)
            assert (len(body), hashlib.sha256(body).hexdigest()) == (original["size"], sha256)
            assert message["size"] == original["size"]
            assert message["exchange"] == original["exchange"]
            assert message["routing_keys"][0] == original["routing_key"]
            assert properties_of(message) == original["properties"], message
            assert message["persistent"] is True
    assert set(queues) <= {(queue["vhost"], queue["name"]) for queue in manifest["queues"]}


def test_every_body_digest_of_the_drain_adds_up(archive: Path) -> None:
    queues = exported(archive)
    for queue in manifest_of(archive)["queues"]:
        after = queue["after_restart"]
        found = queues.get((queue["vhost"], queue["name"]), [])
        if after["exists"] and len(found) == after["count"]:
            digests = b"".join(bytes.fromhex(message["body_sha256"]) for message in found)
            assert hashlib.sha256(digests).hexdigest() == after["sha256_of_concatenated_body_sha256"]


def index_entries(queue: ClassicV1Directory) -> list[list[Any]]:
    """A queue's unacked entries in the form of the broker's own view."""
    rows = []
    with queue.journal() as journal:
        for positions in queue.segments(journal):
            rel_seqs = np.flatnonzero(positions.unacked)
            columns = rel_seqs.tolist(), positions.bodies(rel_seqs), *positions.records(rel_seqs)
            for rel_seq, body, file, _, embedded_at in zip(*columns, strict=True):
                fact, embedded_size = positions.facts[rel_seq], int(body["embedded_size"])
                message = decode_message(file.read(embedded_size, embedded_at)) if embedded_size else None
                rows.append(
                    [
                        positions.first_seq_id + rel_seq,
                        body["msg_id"].tobytes().hex(),
                        int(embedded_size > 0),
                        int(positions.persistent[rel_seq]),
                        "del" if fact & DELIVERED else "no_del",
                        "ack" if fact & ACKED else "no_ack",
                        int(body["expiry_us"]) or None,
                        int(body["size"]),
                        hashlib.sha256(message.body).hexdigest() if message else None,
                    ]
                )
    return rows


def digest(rows: list[list[Any]]) -> str:
    texts = (",".join("-" if value is None else str(value) for value in row[:8]) + ";" for row in rows)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


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
