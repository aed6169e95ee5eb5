"""Directories of a real RabbitMQ 3.10.8, with manifests of what it reported on them, and their exports to compare.

``after_restart`` of a manifest is what the broker delivered when it was started on a copy, ``broker_view`` what its own
modules read from the files (tests/golden/README.md). Further sets of the same kind are used if they lie beside the
project.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from warren.salvage.export import Selection, export_source
from warren.salvage.queue_directory import Finding
from warren.salvage.source import open_source

Json = dict[str, Any]

PROJECT = Path(__file__).parents[2]
GOLDEN = PROJECT / "tests" / "golden"
V1, V2, QUORUM = "rabbitmq-3.10.8", "rabbitmq-3.10.8-cqv2", "rabbitmq-3.10.8-quorum"
STREAMS = "rabbitmq-3.10.8-streams"
DEFINITIONS = "rabbitmq-3.10.8-definitions"


def archives(name: str) -> list[Path]:
    """The archives of a set, without copies: a set beside the project may repeat those in it."""
    found: dict[bytes, Path] = {}
    for directory in (GOLDEN if name == V1 else GOLDEN / name, PROJECT / ".." / "shared" / "golden" / name):
        for path in sorted(directory.glob("*.tar.gz")):
            found.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return list(found.values())


def name_of(archive: Path) -> str:
    return archive.name.removesuffix(".tar.gz")


@lru_cache(maxsize=2)  # the tests of an archive come one after the other
def manifest_of(archive: Path) -> Json:
    return json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())


def as_sets(document: Json) -> Json:
    """Definitions without an order of lists, and without the fields that say which program it was."""
    return {
        part: sorted(json.dumps(item, sort_keys=True) for item in items)
        for part, items in document.items()
        if isinstance(items, list)
    }


@lru_cache(maxsize=2)  # the tests of an archive come one after the other
def exported(archive: Path) -> dict[tuple[str, str], list[Json]]:
    """The exported messages of each queue, in order."""
    lines: list[bytes | bytearray] = []
    problems: list[Finding] = []
    with open_source(str(archive)) as source:
        result = export_source(source, Selection(), lines.append, problems.append)
    was_damaged = [one["file"] for one in manifest_of(archive).get("damage_after_stop", ())]
    for problem in problems:
        assert problem.path.endswith(tuple(was_damaged)), problem
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
    delivered: list[Json] = []
    for message in found:
        original, sha256, _ = expected[len(delivered)] if len(delivered) < len(expected) else ({}, "", False)
        if message["body_sha256"] == sha256 and properties_of(message) == original["properties"]:
            delivered.append(message)
        else:
            assert message["expiry_us"] is not None, message
    return delivered


def check_export(archive: Path) -> None:
    """What is exported of classic queues is what the broker delivered, message by message."""
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


def check_digests(archive: Path) -> None:
    """Every body that the broker delivered adds to the manifest's digest of its queue."""
    queues = exported(archive)
    for queue in manifest_of(archive)["queues"]:
        after = queue["after_restart"]
        found = queues.get((queue["vhost"], queue["name"]), [])
        if after["exists"] and len(found) == after["count"]:
            digests = b"".join(bytes.fromhex(message["body_sha256"]) for message in found)
            assert hashlib.sha256(digests).hexdigest() == after["sha256_of_concatenated_body_sha256"]
