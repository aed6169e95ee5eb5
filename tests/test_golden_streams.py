"""Streams that a real RabbitMQ 3.10.8 left: what is exported is what that broker delivered from the first offset on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rabbitmq_golden import STREAMS, archives, exported, manifest_of, name_of
from warren.salvage.inspect import inspect_source
from warren.salvage.queue_directory import Finding
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source

Json = dict[str, Any]


@pytest.fixture(scope="module", params=archives(STREAMS), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def row_of(message: Json) -> list[Any]:
    """As the manifest has it: a consumer's headers are never missing, since they hold the offset."""
    return [
        message["stream_offset"],
        message["size"],
        message["body_sha256"][:16],
        message["exchange"],
        *message["routing_keys"],
        message["properties"] | {"headers": message["headers"]},
    ]


def findings_of(archive: Path) -> list[Finding]:
    with open_source(str(archive)) as source:
        return list(verify_source(source))


def test_exported_is_what_the_broker_delivered(archive: Path) -> None:
    queues = exported(archive)
    delivered = {("/", name): rows for name, rows in manifest_of(archive)["after_restart"].items() if rows}
    assert {name: [row_of(message) for message in messages] for name, messages in queues.items()} == delivered


def test_nothing_that_a_crash_leaves_is_damage(archive: Path) -> None:
    findings = findings_of(archive)
    assert [finding for finding in findings if finding.severity != "leftover"] == []
    assert bool(findings) == (manifest_of(archive)["damage"] in ("cut", "zeros"))


def test_inspect_counts_what_export_gives(archive: Path) -> None:
    queues = exported(archive)
    with open_source(str(archive)) as source:
        (vhost,) = inspect_source(source)["vhosts"]
    assert {queue["name"] for queue in vhost["queues"]} == set(manifest_of(archive)["after_restart"])
    for queue in vhost["queues"]:
        messages = queues.get(("/", queue["name"]), [])
        assert (queue["type"], queue["ready"]) == ("stream", len(messages))
        assert queue["bytes"] == sum(message["size"] for message in messages)
        assert sum(segment["messages"] for segment in queue["segments"]) == len(messages)
        if messages:
            assert queue["first_offset"] <= messages[0]["stream_offset"]
            assert queue["last_offset"] >= messages[-1]["stream_offset"]


def test_segments_are_the_files_of_the_directory(archive: Path) -> None:
    sizes = manifest_of(archive)["files"]
    with open_source(str(archive)) as source:
        (vhost,) = inspect_source(source)["vhosts"]
    for queue in vhost["queues"]:
        named = {f"stream/{queue['dir']}/{segment['name']}.segment": segment["bytes"] for segment in queue["segments"]}
        assert named == {name: size for name, size in sizes.items() if name in named}
