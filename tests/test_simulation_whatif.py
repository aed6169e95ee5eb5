"""What if: scenarios that start from real directories' queues, as inspect tells of them."""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources
from pathlib import Path

import attrs
import pytest

import warren
from warren.salvage.archives.archive import unpack
from warren.salvage.inspect import inspect_source
from warren.salvage.source import open_source
from warren.simulation import ConstantSize, ConsumerSpec, PublisherSpec, QueueSpec, Scenario, ScenarioError, simulate
from warren.simulation.toml_file import load_scenario
from warren.simulation.whatif import merged, queues_of_directory
from warren.storage.errors import DataError, StorageError

GOLDEN = Path(__file__).parent / "golden"
MIXED = GOLDEN / "01-clean-small-mixed.tar.gz"
PRIORITY = GOLDEN / "11-clean-priority-queue.tar.gz"
ARCHIVES = sorted(GOLDEN.glob("*.tar.gz"))


def body_size(spec: QueueSpec) -> int:
    assert isinstance(spec.body, ConstantSize)
    return spec.body.size


def numbers(specs: tuple[QueueSpec, ...]) -> dict[str, tuple[int, int]]:
    return {spec.name: (spec.messages, body_size(spec)) for spec in specs}


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A broker's directory with the queues audit and orders."""
    unpack(str(MIXED), str(tmp_path))
    return tmp_path / "vhosts"


def vhost_of(broker: Path) -> Path:
    [vhost] = [path for path in broker.iterdir() if path.is_dir()]
    return vhost


# ── what a directory tells ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_messages_and_bytes_are_what_inspect_tells(archive: Path) -> None:
    with open_source(str(archive)) as source:
        report = inspect_source(source)
    ready = sum(queue["ready"] for vhost in report["vhosts"] for queue in vhost["queues"])
    in_all = sum(queue["bytes"] for vhost in report["vhosts"] for queue in vhost["queues"])
    notes: list[str] = []
    specs = queues_of_directory(str(archive), note=notes.append)
    assert sum(spec.messages for spec in specs) == ready
    assert abs(sum(spec.messages * body_size(spec) for spec in specs) - in_all) <= ready / 2
    assert all(spec.durable for spec in specs)
    assert not notes


def test_a_directory_a_vhost_and_a_queue_tell_the_same(broker: Path) -> None:
    whole = numbers(queues_of_directory(broker))
    assert whole == {"audit": (15, 3105), "orders": (31, 3591)}
    vhost = vhost_of(broker)
    assert numbers(queues_of_directory(vhost)) == whole
    alone = [numbers(queues_of_directory(queue)) for queue in (vhost / "queues").iterdir()]
    assert {name: each for one in alone for name, each in one.items()} == whole


def test_one_vhost_or_one_queue_can_be_asked_for() -> None:
    assert [spec.name for spec in queues_of_directory(MIXED, queues=["orders"])] == ["orders"]
    assert len(queues_of_directory(MIXED, vhost="/")) == 2
    with pytest.raises(ScenarioError, match="there is no queue of that name that can be read"):
        queues_of_directory(MIXED, queues=["ordrs"])


def test_the_levels_of_a_priority_queue_are_one_queue_again() -> None:
    plain, prio = queues_of_directory(PRIORITY)
    assert (plain.arguments, prio.messages, prio.arguments) == ({}, 31, {"x-max-priority": 3})


def test_names_that_two_vhosts_have_begin_with_their_vhosts(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        for vhost, queues in (("/", ["jobs", "here"]), ("other", ["jobs"])):
            for name in queues:
                node.vhost(vhost).queue(name)
    assert [spec.name for spec in queues_of_directory(tmp_path / "node")] == ["//jobs", "here", "other/jobs"]


def test_a_warrens_directory_tells_what_its_queues_were_declared_as(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        lazy = node.queue("lazy", arguments={"x-queue-mode": "lazy", "x-max-length": 10})
        for _ in range(5):
            lazy.publish(b"x" * 100)
        node.queue("dead", arguments={"x-dead-letter-exchange": "dlx", "x-message-ttl": 60_000})
    notes: list[str] = []
    dead, found = queues_of_directory(tmp_path / "node", note=notes.append)
    assert (found.lazy, found.messages, body_size(found)) == (True, 5, 100)
    assert found.arguments["x-max-length"] == 10
    assert dead.arguments == {"x-message-ttl": 60_000}
    assert [note.split(" left out: ")[0] for note in notes] == ["queue dead: x-dead-letter-exchange"]


def test_a_brokers_exported_definitions_tell_what_its_queues_were_declared_as(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    queues = [
        {"name": "orders", "vhost": "/", "durable": True, "arguments": {"x-queue-mode": "lazy"}},
        {"name": "audit", "vhost": "other", "durable": True, "arguments": {"x-queue-mode": "lazy"}},
    ]
    path.write_text(json.dumps({"queues": queues}), encoding="utf-8")
    audit, orders = queues_of_directory(MIXED, definitions=path)
    assert (orders.lazy, audit.lazy) == (True, False)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"queues": 5}', "[" * 100_000])
def test_definitions_that_are_none_are_said(tmp_path: Path, content: str) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ScenarioError, match=f"^{re.escape(str(path))}: not? "):
        queues_of_directory(MIXED, definitions=path)
    with pytest.raises(StorageError, match="there is no such file"):
        queues_of_directory(MIXED, definitions=tmp_path / "none")


# ── what is damaged ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_a_queue_whose_segment_is_damaged_what_inspect_can_tell_counts(broker: Path) -> None:
    for index, queue in enumerate(sorted((vhost_of(broker) / "queues").iterdir())):
        for segment in queue.glob("*.idx"):
            segment.write_bytes(segment.read_bytes()[: 40 * (index + 1)])
    with open_source(str(broker)) as source:
        told = {queue["name"]: queue["ready"] for queue in inspect_source(source)["vhosts"][0]["queues"]}
    assert {spec.name: spec.messages for spec in queues_of_directory(broker)} == told


def test_a_vhost_that_lost_its_name_and_terms_is_read_and_noted(broker: Path) -> None:
    vhost = vhost_of(broker)
    (vhost / ".vhost").unlink()
    (vhost / "recovery.dets").write_bytes(b"nothing")
    notes: list[str] = []
    assert {spec.name for spec in queues_of_directory(broker, note=notes.append)} == {"audit", "orders"}
    assert len(notes) == 2
    assert "missing name" in notes[0]
    assert "damaged recovery terms" in notes[1]


def test_classic_queues_of_both_versions_are_taken_and_quorum_queues_left_out() -> None:
    with resources.as_file(resources.files("warren.data") / "rabbitmq-3.10.8-types.tar.gz") as archive:
        notes: list[str] = []
        found = {spec.name: spec.messages for spec in queues_of_directory(archive, note=notes.append)}
    assert found == {"audit": 9, "lazy": 22, "never-used": 0, "old": 28, "orders": 13, "tmp": 0}
    assert [note.split(": ")[0] for note in notes] == ["queue a is left out", "queue b is left out"]
    assert all(note.endswith("this is a quorum queue") for note in notes)


def test_where_nothing_can_be_read_the_reason_is_said(broker: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no queue that can be read: queue audit is left out: .* quorum queue"):
        queues_of_directory(GOLDEN / "rabbitmq-3.10.8-quorum" / "01-clean-small-mixed.tar.gz")
    shutil.rmtree(vhost_of(broker) / "queues")
    with pytest.raises(ScenarioError, match=r"there is no queue that can be read$"):
        queues_of_directory(broker)


def test_what_is_no_brokers_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no RabbitMQ data directory"):
        queues_of_directory(tmp_path)
    with pytest.raises(StorageError, match="no such file"):
        queues_of_directory(tmp_path / "none")


def test_damaged_definitions_are_noted_and_the_queues_are_there(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node.queue("jobs", arguments={"x-queue-mode": "lazy"}).publish(b"")
    (tmp_path / "node" / "warren.definitions.json").write_bytes(b"{")
    notes: list[str] = []
    [jobs] = queues_of_directory(tmp_path / "node", note=notes.append)
    assert not jobs.lazy
    assert [note.split(": ")[0] for note in notes] == ["what the queues were declared as cannot be read"]


# ── into a scenario ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directorys_messages_are_there_at_the_start_and_consumed() -> None:
    scenario = Scenario(
        length=5,
        queues=[QueueSpec(name="orders", arguments={"x-max-length": 100}), QueueSpec(name="new")],
        publishers=[PublisherSpec(queue="new", rate=1)],
        consumers=[ConsumerSpec(queue="orders")],
    )
    whole = attrs.evolve(scenario, queues=merged(scenario.queues, queues_of_directory(MIXED)))
    assert [(spec.name, spec.messages) for spec in whole.queues] == [("orders", 31), ("new", 0), ("audit", 15)]
    assert whole.queues[0].arguments == {"x-max-length": 100}
    queues = simulate(whole).summary["queues"]
    assert (queues["orders"]["acked"], queues["orders"]["ready"], queues["audit"]["ready"]) == (31, 0, 15)


@pytest.mark.parametrize(
    "archive", [PRIORITY, GOLDEN / "07-clean-vhost-unicode-lazy.tar.gz"], ids=lambda path: path.name
)
def test_every_name_and_kind_of_queue_is_simulated(archive: Path) -> None:
    specs = queues_of_directory(archive)
    result = simulate(Scenario(length=3, queues=specs, consumers=[ConsumerSpec(queue="*")]))
    assert {name: result.summary["queues"][name]["acked"] for name in result.names} == {
        spec.name: spec.messages for spec in specs
    }


def test_a_file_is_read_with_the_directorys_queues_which_its_consumers_may_name(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[[consumers]]\nqueue = "orders"\n', encoding="utf-8")
    scenario = load_scenario(path, queues=queues_of_directory(MIXED))
    assert [spec.name for spec in scenario.queues] == ["audit", "orders"]
    path.write_text('[[consumers]]\nqueue = "ordrs"\n', encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"s\.toml: consumers\[0\]\.queue: there is no queue 'ordrs'"):
        load_scenario(path, queues=queues_of_directory(MIXED))
    path.write_text('[[queues]]\nnmae = "orders"\n', encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"s\.toml: queues\[0\]\.nmae: there is no such key"):
        load_scenario(path, queues=queues_of_directory(MIXED))


def test_a_group_that_has_a_queue_of_the_directory_is_refused() -> None:
    found = (QueueSpec(name="audit-2", messages=5),)
    scenario = Scenario(queues=[QueueSpec(name="audit", count=3)])
    with pytest.raises(ScenarioError, match=r"queues\[0\]: 'audit-2' of the group 'audit' is in the directory, too"):
        merged(scenario.queues, found)
