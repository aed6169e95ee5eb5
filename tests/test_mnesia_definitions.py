"""Definitions of stopped and killed RabbitMQs, from their Mnesia files, against what the restarted broker exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from tests.support import cli_tools
from tests.support.disk_log_tools import log
from tests.support.rabbitmq_golden import DEFINITIONS, archives, as_sets, manifest_of, name_of
from warren.queue_index.index.dets_format import encode_table
from warren.salvage.archives.archive import unpack
from warren.salvage.metadata.broker_definitions import read_definitions
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.erlang_terms import Atom, Opaque, Term
from warren.storage.memory import MemoryFileSystem

Json = dict[str, Any]


@pytest.fixture(scope="module", params=archives(DEFINITIONS), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def warren(*arguments: str | Path, exit_code: int = 0) -> Result:
    result = cli_tools.warren(*arguments)
    assert result.exit_code == exit_code, result.stderr
    return result


def definitions_of(*arguments: str | Path, exit_code: int = 0) -> Json:
    document: Json = json.loads(warren("definitions", *arguments, exit_code=exit_code).stdout)
    return document


def test_definitions_are_those_of_the_restarted_broker(archive: Path) -> None:
    expected = manifest_of(archive)["after_restart"]
    document = definitions_of(archive)
    assert as_sets(document) == as_sets(expected)
    assert document["rabbitmq_version"] == expected["rabbitmq_version"]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a node that was killed, with everything in LATEST.LOG."""
    (path,) = (path for path in archives(DEFINITIONS) if path.name.startswith("02-"))
    unpack(str(path), str(tmp_path))
    return tmp_path / "node"


def test_a_vhosts_definitions_do_not_name_the_vhost(killed: Path) -> None:
    whole, part = definitions_of(killed), definitions_of(killed, "--vhost", "vh/ö")
    assert {name: items for name, items in part.items() if isinstance(items, list)} == {
        name: [
            {key: value for key, value in item.items() if key != "vhost"}
            for item in whole[name]
            if item["vhost"] == "vh/ö"
        ]
        for name in ("queues", "exchanges", "bindings", "policies", "parameters")
    }
    assert "no vhost 'missing'" in warren("definitions", killed, "--vhost", "missing", exit_code=2).stderr


def test_a_torn_log_is_reported_and_the_rest_is_there(killed: Path) -> None:
    before = definitions_of(killed)
    log = killed / "LATEST.LOG"
    log.write_bytes(log.read_bytes()[:-5])
    result = warren("definitions", killed, exit_code=1)
    assert "LATEST.LOG, offset" in result.stderr
    assert "torn log" in result.stderr
    assert len(json.loads(result.stdout)["queues"]) >= len(before["queues"]) - 1


def test_damage_in_a_log_costs_only_what_it_hit(killed: Path) -> None:
    before = as_sets(definitions_of(killed))
    log = killed / "LATEST.LOG"
    data = bytearray(log.read_bytes())
    at = data.index(b"x.topic")
    data[at - 40 : at] = bytes(40)
    log.write_bytes(data)
    result = warren("definitions", killed, exit_code=1)
    assert "LATEST.LOG, offset" in result.stderr
    after = as_sets(json.loads(result.stdout))
    assert after["users"] == before["users"]
    assert after["queues"] == before["queues"]


def test_a_file_that_is_no_log_is_named_and_the_others_are_read(killed: Path) -> None:
    (killed / "rabbit_durable_queue.DCL").write_bytes(b"")
    result = warren("definitions", killed, exit_code=1)
    assert "rabbit_durable_queue.DCL, offset 0: unreadable log: no disk_log file" in result.stderr
    assert json.loads(result.stdout)["queues"]


def test_a_missing_table_of_the_schema_is_reported(killed: Path) -> None:
    (killed / "rabbit_user.DCD").unlink()
    result = warren("definitions", killed, exit_code=1)
    assert "rabbit_user.DCD: missing table" in result.stderr
    assert json.loads(result.stdout)["users"]  # the log has them


def test_a_missing_log_is_reported(killed: Path) -> None:
    (killed / "LATEST.LOG").unlink()
    result = warren("definitions", killed, exit_code=1)
    assert "LATEST.LOG: missing log" in result.stderr
    assert json.loads(result.stdout)["users"] == []  # all of them were in it


def test_a_directory_that_is_taken_over_gets_no_queue_that_would_seem_empty(killed: Path) -> None:
    expected = definitions_of(killed, "--for-import")
    others = {(queue["vhost"], queue["name"]) for queue in expected["queues"] if queue["type"] != "classic"}
    assert len(others) == 7
    stderr = warren("definitions", killed, "--adopt", "--import", killed).stderr
    assert stderr.count("a quorum queue or a stream, whose messages are only read") == len(others)
    queues = {(queue["vhost"], queue["name"]) for queue in definitions_of(killed)["queues"]}
    assert queues == {(queue["vhost"], queue["name"]) for queue in expected["queues"]} - others
    again = warren("definitions", killed, "--adopt", "--import", killed, "--json")  # RabbitMQ's again, not the node's
    assert len(json.loads(again.stdout)["skipped"]) == stderr.count("skipped: ")
    for part in ("5", "[5]", '[{"name": "q", "vhost": "/", "arguments": 5}]'):
        bad = killed.parent / "bad.json"
        bad.write_text(f'{{"queues": {part}}}')
        assert warren("definitions", killed, "--adopt", "--import", bad, exit_code=2).stderr.count("\n") == 1


def test_places_without_definitions_are_refused(killed: Path) -> None:
    said = warren("definitions", killed / "msg_stores", exit_code=2).stderr
    assert "holds no RabbitMQ data directory with definitions" in said
    assert "no such file or directory" in warren("definitions", killed / "missing", exit_code=2).stderr
    assert "not a .tar.gz" in warren("definitions", killed / "schema.DAT", exit_code=2).stderr


def test_of_several_nodes_one_has_to_be_named(killed: Path) -> None:
    shutil.copytree(killed, killed.parent / "other")
    said = warren("definitions", killed.parent, exit_code=2).stderr
    assert "holds the directories of 2 nodes (node, other)" in said


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Json]:
    """Mnesia's files of a node that was killed, and its definitions."""
    (path,) = (path for path in archives(DEFINITIONS) if path.name.startswith("03-"))
    place = tmp_path_factory.mktemp("sound")
    unpack(str(path), str(place))
    files = {file.name: file.read_bytes() for file in (place / "node").iterdir() if file.is_file()}
    return files, definitions_in_memory(files)[0]


def definitions_in_memory(contents: dict[str, bytes]) -> tuple[Json, list[Finding]]:
    files, findings = MemoryFileSystem(), list[Finding]()
    files.make_directories("node")
    for name, data in ({"LATEST.LOG": log([])} | contents).items():
        file = files.open_append(f"node/{name}")
        file.append(data)
        file.close()
    return read_definitions(ReadOnlyFileSystem(files), "node", findings.append), findings


@pytest.mark.slow
@given(
    name=st.sampled_from(["LATEST.LOG", "LATEST.LOG", "rabbit_durable_queue.DCL", "schema.DAT", "DECISION_TAB.LOG"]),
    place=st.floats(0, 1),
    size=st.integers(1, 2000),
    how=st.sampled_from(["zeros", "ones", "gone", "cut"]),
)
def test_damage_anywhere_is_told_if_a_definition_is_missing(
    sound: tuple[dict[str, bytes], Json], name: str, place: float, size: int, how: str
) -> None:
    contents, expected = sound
    data = contents[name]
    at = int(place * len(data))
    filling = {"zeros": bytes(size), "ones": b"\xff" * size}.get(how, b"")
    rest = b"" if how == "cut" else data[at + size :]
    document, findings = definitions_in_memory(contents | {name: (data[:at] + filling + rest)[: len(data)]})
    assert json.dumps(document)
    if any(len(document[part]) < len(items) for part, items in expected.items() if isinstance(items, list)):
        assert findings or (how == "cut" and at_the_end_of_an_item(data, at))


def at_the_end_of_an_item(data: bytes, at: int) -> bool:
    """Where a log may end without a trace of what came after it."""
    return data[at + 4 : at + 8] == b"bWLA"


def test_nothing_in_the_directory_changes(killed: Path) -> None:
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    definitions_of(killed)
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before


# ── what a start restores ────────────────────────────────────────────────────────────────────────────────────────────


def resource(kind: str, name: bytes) -> Term:
    return Atom("resource"), b"/", Atom(kind), name


def exchange(name: bytes, *, auto_delete: bool) -> Term:
    return Atom("exchange"), resource("exchange", name), Atom("fanout"), True, auto_delete, False, []


def queue(name: bytes, owner: Term) -> Term:
    return Atom("amqqueue"), resource("queue", name), True, False, owner, []


def route(source: bytes, kind: str, destination: bytes) -> Term:
    binding: Term = Atom("binding"), resource("exchange", source), b"", resource(kind, destination), []
    return Atom("route"), binding, Atom("const")


def test_exclusive_queues_are_gone_and_what_they_alone_kept() -> None:
    owner = Opaque(b"Xd\0\4a@h.\0\0\0\1\0\0\0\0\0\0\0\1")
    document, findings = definitions_in_memory(
        {
            "rabbit_durable_queue.DCD": log([queue(b"own", owner), queue(b"q", Atom("none"))]),
            "rabbit_durable_exchange.DCD": log(
                [exchange(name, auto_delete=name != b"stays") for name in (b"last", b"chained", b"shared", b"stays")]
            ),
            "rabbit_durable_route.DCD": log(
                [
                    route(b"last", "queue", b"own"),
                    route(b"chained", "exchange", b"last"),
                    route(b"shared", "queue", b"own"),
                    route(b"shared", "queue", b"q"),
                    route(b"stays", "queue", b"own"),
                    route(b"stays", "queue", b"missing"),
                    route(b"missing", "queue", b"q"),
                    route(b"", "queue", b"q"),
                ]
            ),
            "schema.DAT": encode_table([]),
        }
    )
    assert findings == []
    assert [queue["name"] for queue in document["queues"]] == ["q"]
    assert {exchange["name"] for exchange in document["exchanges"]} == {"shared", "stays"}
    assert [(binding["source"], binding["destination"]) for binding in document["bindings"]] == [("shared", "q")]


def test_records_of_older_versions_have_what_a_broker_assumes() -> None:
    document, findings = definitions_in_memory(
        {
            "rabbit_user.DCD": log(
                [(Atom("internal_user"), b"u", b"hash", [Atom("administrator")], Atom("undefined"))]
            ),
            "rabbit_vhost.DCD": log([(Atom("vhost"), b"/", [])]),
            "rabbit_durable_queue.DCD": log([queue(b"q", Atom("none")), (Atom("amqqueue"), b"no name")]),
            "schema.DAT": encode_table([]),
        }
    )
    assert document["users"] == [
        {
            "name": "u",
            "password_hash": "aGFzaA==",
            "hashing_algorithm": "rabbit_password_hashing_md5",
            "tags": ["administrator"],
            "limits": {},
        }
    ]
    assert document["vhosts"] == [{"name": "/", "limits": [], "metadata": {"description": "", "tags": []}}]
    assert [queue["type"] for queue in document["queues"]] == ["classic"]
    assert [finding.kind for finding in findings] == ["unreadable record"]
