"""Classic queues of version 2 that a real RabbitMQ 3.10.8 left: what is read is what that broker reported.

``after_restart`` of a manifest is what the broker delivered when it was started on a copy, ``broker_view`` what its own
modules read from the files (tests/golden/rabbitmq-3.10.8-cqv2/README.md). Further sets of the same kind are used if
they lie beside the project.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.rabbitmq_golden import (
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

ARCHIVES = archives(V2)
SEGMENTS = next(path for path in ARCHIVES if path.name == "03-clean-segments-4096.tar.gz")


@pytest.fixture(scope="module", params=ARCHIVES, ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    check_export(archive)


def test_every_body_digest_of_the_drain_adds_up(archive: Path) -> None:
    check_digests(archive)


def live_entries(queue: ClassicV2Directory) -> list[list[Any]]:
    """A queue's live entries in the form of the broker's own view."""
    places = {v2.IN_MEMORY: "memory", v2.IN_VHOST_STORE: "vhost_store", v2.IN_QUEUE_STORE: "queue_store"}
    rows: list[list[Any]] = []
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


def digest(rows: list[list[Any]]) -> str:
    return hashlib.sha256("\n".join(json.dumps(row, separators=(",", ":")) for row in rows).encode()).hexdigest()


def test_index_is_what_the_brokers_own_modules_read(archive: Path) -> None:
    views = manifest_of(archive)["broker_view"]["vhosts"]
    with open_source(str(archive)) as source:
        assert {vhost.directory for vhost in source.vhosts} == set(views)
        for vhost in source.vhosts:
            queues = {queue["dir"]: queue for queue in views[vhost.directory]["queues"]}
            assert {Path(queue.path).name for queue in vhost.queues} == set(queues)
            for queue in vhost.queues:
                expected = queues[Path(queue.path).name]
                assert to_text(queue.name) == expected["name"]
                assert isinstance(queue, ClassicV2Directory if expected["index_version"] == 2 else ClassicV1Directory)
                if not isinstance(queue, ClassicV2Directory):
                    continue
                rows = live_entries(queue)
                if "entries_digest" in expected:
                    assert [row[0] for row in rows] == list(numbers(expected["seq_id_ranges"]))
                    persistent = list(numbers(expected["persistent_seq_id_ranges"]))
                    assert [row[0] for row in rows if row[5]] == persistent
                    assert digest(rows) == expected["entries_digest"]
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
        for queue in (queue for queue in vhost["queues"] if queue["version"] == 2):
            sizes = {file["name"]: file["size"] for file in views[queue["dir"]]["files"]}
            for segment in queue["segments"]:
                assert segment["qi_bytes"] == sizes.pop(f"{segment['number']}.qi", 0)
                assert segment["qs_bytes"] == sizes.pop(f"{segment['number']}.qs", 0)
                assert segment["entries"] == segment["live"] + segment["acked"]
            assert set(sizes) == {".queue_name"}
            if queue["dir"] in terms:
                live = [[segment["number"], segment["live"]] for segment in queue["segments"] if segment["live"]]
                assert live == [pair for pair in terms[queue["dir"]]["v2_index_state"]["segments"] if pair[1]]
                assert queue["ready"] == terms[queue["dir"]]["persistent_count"]
                assert queue["bytes"] == terms[queue["dir"]]["persistent_bytes"]
        for name in {queue["name"].partition("\0")[0] for queue in vhost["queues"]}:
            levels = [queue for queue in vhost["queues"] if queue["name"].partition("\0")[0] == name]
            messages = lines.get((vhost["name"], name), [])
            assert sum(queue["ready"] for queue in levels) == len(messages)
            assert sum(queue["bytes"] for queue in levels) == sum(message["size"] for message in messages)


def test_stores_are_counted_as_the_broker_counts_them(archive: Path) -> None:
    views = manifest_of(archive)["broker_view"]["vhosts"]
    with open_source(str(archive)) as source:
        for vhost in inspect_source(source)["vhosts"]:
            for name in STORES:
                summary = views[vhost["dir"]][name]["file_summary"]
                if summary is not None:
                    found = [[file["number"], file["valid_bytes"]] for file in vhost["stores"][name]["files"]]
                    assert found == sorted(row[:2] for row in summary)


def test_nothing_that_a_broker_left_is_damage(archive: Path) -> None:
    with open_source(str(archive)) as source:
        assert [str(finding) for finding in verify_source(source) if finding.severity == "damage"] == []


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
