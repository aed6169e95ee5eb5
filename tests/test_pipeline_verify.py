"""``verify`` and ``compact`` on Spark: what it joins is what one machine finds, in sound nodes and in damaged ones."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.damaged_nodes import DAMAGE, damaged, fuzzed
from tests.support.pipeline_tools import RABBITMQ, ROCKETMQ, Row, rabbitmq_node, read_rows, rocketmq_node, verified
from warren.pipeline.jobs import compact, verify
from warren.salvage.inspect import inspect_source
from warren.salvage.source import open_source
from warren.storage.settings import Settings
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import find_nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUZZED = ("03-clean-fanout-refcount", "04-crash-fanout-refcount", "06-crash-segments-16384", "14-crash-dead-letter-cc")
SEEDS = range(3)


@pytest.fixture(scope="module")
def queue_nodes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All golden RabbitMQ nodes, and damaged ones."""
    root = tmp_path_factory.mktemp("nodes")
    nodes = [rabbitmq_node(scenario) for scenario in RABBITMQ]
    nodes += [damaged(scenario, root / name.replace(" ", "-"), spoil) for name, (scenario, spoil) in DAMAGE.items()]
    nodes += [fuzzed(scenario, root / f"{scenario}-{seed}", seed) for scenario in FUZZED for seed in SEEDS]
    return nodes


def counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_the_table_of_findings_is_what_one_machine_finds(scenario: str) -> None:
    path = rocketmq_node(scenario)
    assert read_rows("findings", path) == verified(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_nodes_have_findings(name: str, tmp_path: Path) -> None:
    scenario, spoil = DAMAGE[name]
    sound = rabbitmq_node(scenario)
    before = {(row["kind"], row["path"].removeprefix(sound), row["detail"]) for row in read_rows("findings", sound)}
    path = damaged(scenario, tmp_path / "node", spoil)
    rows = read_rows("findings", path)
    assert rows == verified(path)
    after = {(row["kind"], row["path"].removeprefix(path), row["detail"]) for row in rows}
    assert after - before, "the damage is found"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", FUZZED)
@pytest.mark.parametrize("seed", SEEDS)
def test_fuzzed_nodes_have_the_findings_of_one_machine(scenario: str, seed: int, tmp_path: Path) -> None:
    path = fuzzed(scenario, tmp_path / "node", seed)
    assert read_rows("findings", path) == verified(path)


@pytest.mark.parametrize("every", [pytest.param(4, marks=pytest.mark.slow), 31])
@pytest.mark.spark
def test_the_job_finds_what_one_machine_finds(spark: SparkSession, queue_nodes: list[str], every: int) -> None:
    nodes = [*queue_nodes, *(rocketmq_node(scenario) for scenario in ROCKETMQ)][::every]
    with verify.findings(spark, find_nodes(nodes), partition_bytes=4 << 20) as (frame, notes):
        found = [row.asDict() for row in frame.collect()]
    assert notes == []
    for node in nodes:
        assert counted([row for row in found if row["node"] == node]) == counted(verified(node)), node
    assert {row["node"] for row in found} <= set(nodes)


@pytest.mark.slow
@pytest.mark.spark
def test_compact_counts_what_is_needed_as_one_machine_does(spark: SparkSession, queue_nodes: list[str]) -> None:
    compacting = compact.compacting(spark, find_nodes(queue_nodes), Settings(), partition_bytes=4 << 20)
    for node in queue_nodes:
        with open_source(node) as source, closing(source):
            expected = {
                (vhost["name"], store): said["files"]
                for vhost in inspect_source(source)["vhosts"]
                for store, said in vhost["stores"].items()
                if said["files"]
            }
            known = all(vhost.knows_needs for vhost in source.vhosts)
        stores = [store for store in compacting.stores if store["node"] == node]
        assert {(store["vhost"], store["store"]): store["files"] for store in stores if store["files"]} == expected
        assert all(store["known"] for store in stores) == known
    assert compacting.frees == sum(int(str(store["frees"])) for store in compacting.stores)


# ── what is proposed ─────────────────────────────────────────────────────────────────────────────────────────────────


def files(*valid_of: tuple[int, int], known: bool = True) -> list[dict[str, Any]]:
    return [
        {"name": f"{number}.rdq", "size": size, "messages": 1, "valid_bytes": valid, "known": known}
        for number, (size, valid) in enumerate(valid_of)
    ]


LIMITS = Settings(msg_store_file_size_limit=100)


def test_neighbours_that_fit_into_one_file_are_combined_while_there_is_garbage_enough() -> None:
    report = compact.propose(files((100, 20), (100, 30), (100, 40), (100, 90), (10, 10)), LIMITS)
    assert report["combine"] == [{"into": 0, "from": 1, "frees": 150}]
    assert (report["delete"], report["frees"]) == ([], 150)


def test_a_file_that_was_made_by_combining_is_combined_again() -> None:
    report = compact.propose(files((100, 20), (100, 20), (100, 20), (100, 10), (10, 10)), LIMITS)
    assert report["combine"] == [
        {"into": 0, "from": 1, "frees": 160},
        {"into": 0, "from": 2, "frees": 80},
    ]


def test_files_with_nothing_valid_are_deleted_and_the_newest_is_kept() -> None:
    report = compact.propose(files((100, 0), (100, 90), (100, 0)), LIMITS)
    assert (report["delete"], report["combine"]) == ([{"file": 0, "frees": 100}], [])


def test_nothing_is_proposed_where_a_queue_cannot_be_read() -> None:
    report = compact.propose(files((100, 0), (100, 0), (100, 0), known=False), LIMITS)
    assert (report["known"], report["delete"], report["combine"], report["frees"]) == (False, [], [], 0)


def test_what_a_compaction_left_is_no_file_to_combine() -> None:
    left = {"name": "0.rdt", "size": 100, "messages": 1, "valid_bytes": 50, "known": True}
    assert [file["number"] for file in compact.propose([left, *files((100, 50), (10, 10))], LIMITS)["files"]] == [0, 1]


def test_limits_that_cannot_be_are_said() -> None:
    assert compact.parse_limits({"msg_store_garbage_fraction": "0.2"}).msg_store_garbage_fraction == 0.2
    with pytest.raises(PipelineError, match="--set nonsense: unknown setting"):
        compact.parse_limits({"nonsense": "1"})
    with pytest.raises(PipelineError, match="--set msg_store_file_size_limit=much: not a number"):
        compact.parse_limits({"msg_store_file_size_limit": "much"})


@pytest.mark.spark
@pytest.mark.slow
def test_small_directories_take_few_tasks(spark: SparkSession) -> None:
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "64")
    try:
        with verify.findings(spark, find_nodes([rabbitmq_node("03-clean-fanout-refcount")])) as (frame, _):
            assert frame.rdd.getNumPartitions() <= 4
        assert spark.conf.get(setting) == "64"
    finally:
        spark.conf.set(setting, before or "200")
