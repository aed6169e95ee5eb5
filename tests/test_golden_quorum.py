"""Quorum queues that a real RabbitMQ 3.10.8 left: what is exported is what that broker delivered.

Two things are in no file (tests/golden/rabbitmq-3.10.8-quorum/README.md): the order in which more than 32 messages of
one channel came back, and what the restart itself dead-lettered, which is still in its queue's files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rabbitmq_golden import (
    QUORUM,
    archives,
    expected_messages,
    exported,
    manifest_of,
    name_of,
    numbers,
    properties_of,
    without_expired,
)
from warren.salvage.inspect import inspect_source
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source

Json = dict[str, Any]

MOST_IN_ORDER = 32
"""Keys of an Erlang map that are kept in order."""


@pytest.fixture(scope="module", params=archives(QUORUM), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def delivery_counts(queue: Json) -> list[int]:
    after = queue["after_restart"]
    if "rows" in after:
        return [count for *_, count in after["rows"]]
    counts = {n: int(count) for count, ranges in after["delivery_counts"].items() for n in numbers(ranges)}
    return [counts[n] for n in numbers(after["n_ranges"])]


def limit_of(queue: Json) -> float:
    return queue["arguments"].get("x-delivery-limit", float("inf"))


def what_was_delivered(manifest: Json, queue: Json) -> list[tuple[Any, ...]]:
    rows = zip(expected_messages(manifest, queue), delivery_counts(queue), strict=True)
    return [
        (sha256, redelivered, count, message["exchange"], message["routing_key"], message["properties"])
        for (message, sha256, redelivered), count in rows
    ]


def what_is_exported(messages: list[Json]) -> list[tuple[Any, ...]]:
    return [
        (
            message["body_sha256"],
            message["redelivered"],
            message["delivery_count"],
            message["exchange"],
            message["routing_keys"][0],
            properties_of(message),
        )
        for message in messages
    ]


def as_text(row: tuple[Any, ...]) -> str:
    return json.dumps(row, sort_keys=True)


@pytest.mark.slow
def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    manifest, queues = manifest_of(archive), exported(archive)
    names = {(queue["vhost"], queue["name"]) for queue in manifest["queues"]}
    assert set(queues) <= names
    past_limit = {
        message["body_sha256"]
        for queue in manifest["queues"]
        for message in queues.get((queue["vhost"], queue["name"]), [])
        if message["delivery_count"] > limit_of(queue)
    }
    for queue in manifest["queues"]:
        if queue["arguments"].get("x-queue-type") != "quorum" or not queue["after_restart"]["exists"]:
            continue
        found = queues.get((queue["vhost"], queue["name"]), [])
        found = [message for message in found if message["delivery_count"] <= limit_of(queue)]
        expected = [
            row
            for row in what_was_delivered(manifest, queue)
            if not (row[0] in past_limit and "x-death" in row[-1].get("headers", {}))
        ]
        described = what_is_exported(
            without_expired(found, [({"properties": row[-1]}, row[0], row[1]) for row in expected])
        )
        out = sum(row[1] for row in expected)
        if out > MOST_IN_ORDER:
            assert sorted(map(as_text, described[:out])) == sorted(map(as_text, expected[:out])), queue["name"]
            described, expected = described[out:], expected[out:]
        assert described == expected, queue["name"]


@pytest.mark.slow
def test_bodies_and_sizes_are_what_was_published(archive: Path) -> None:
    for messages in exported(archive).values():
        for message in messages:
            assert message["msg_id"] is None or message["headers"] is not None  # dead letters have one
            assert message["redelivered"] is (message["delivery_count"] > 0)


@pytest.mark.slow
def test_nothing_of_a_sound_directory_is_damaged(archive: Path) -> None:
    with open_source(str(archive)) as source:
        findings = list(verify_source(source))
    assert [finding for finding in findings if finding.severity == "damage"] == []


@pytest.mark.slow
def test_inspect_says_what_the_brokers_own_modules_read(archive: Path) -> None:
    with open_source(str(archive)) as source:
        report = inspect_source(source)
    said = {queue["dir"]: queue for vhost in report["vhosts"] for queue in vhost["queues"]}
    for node in manifest_of(archive)["broker_view"]["quorum"]:
        for queue in node["queues"]:
            its = said.pop(queue["uid"])
            assert its["type"] == "quorum"
            assert [
                (one["name"], one["entries"], one["first_index"], one["last_index"]) for one in its["segments"]
            ] == [(one["file"], one["entries"], one["first"], one["last"]) for one in queue["segments"]]
            newest = max(queue["snapshots"], key=lambda one: one["index"], default=None)
            assert its["snapshot"] == (
                None if newest is None else {key: newest[key] for key in ("index", "term", "machine_version")}
            )
    assert said == {}


@pytest.mark.slow
def test_inspect_counts_what_export_gives(archive: Path) -> None:
    queues = exported(archive)
    with open_source(str(archive)) as source:
        report = inspect_source(source)
    for vhost in report["vhosts"]:
        for queue in vhost["queues"]:
            messages = queues.get((vhost["name"], queue["name"]), [])
            assert queue["ready"] == len(messages)
            assert queue["bytes"] == sum(message["size"] for message in messages)


def test_messages_past_the_delivery_limit_stay_with_a_finding() -> None:
    archive = next(path for path in archives(QUORUM) if path.name == "06-crash-delivery-limit.tar.gz")
    with open_source(str(archive)) as source:
        findings = [finding for finding in verify_source(source) if finding.kind == "leftover past the delivery limit"]
    past = [message for message in exported(archive)["/", "lim"] if message["delivery_count"] > 2]
    assert len(past) == 3
    limits = {queue["name"]: limit_of(queue) for queue in manifest_of(archive)["queues"]}
    everything = [message for messages in exported(archive).values() for message in messages]
    assert len(findings) == sum(message["delivery_count"] > limits[message["queue"]] for message in everything)
