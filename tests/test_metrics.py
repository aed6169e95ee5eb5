"""A node's numbers for Prometheus."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import warren
from warren import metrics
from warren.verbs.steps import run


@pytest.fixture
def node(tmp_path: Path) -> Iterator[warren.Node]:
    with warren.open(tmp_path / "node") as node:
        yield node


@pytest.fixture
def registry(node: warren.Node) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    with metrics.register(node, registry):
        yield registry


def test_a_queues_numbers_have_rabbitmqs_names(node: warren.Node, registry: CollectorRegistry) -> None:
    queue = node.queue("jobs")
    queue.publish_many([b"12345"] * 4).wait()
    queue.get()
    labels = {"vhost": "/", "queue": "jobs"}
    found = {
        name: registry.get_sample_value(f"rabbitmq_queue_{name}", labels)
        for name in (
            "messages",
            "messages_ready",
            "messages_unacked",
            "messages_ram",
            "messages_persistent",
            "messages_bytes",
            "messages_ready_bytes",
            "messages_unacked_bytes",
            "consumers",
        )
    }
    assert found == {
        "messages": 4,
        "messages_ready": 3,
        "messages_unacked": 1,
        "messages_ram": 4,
        "messages_persistent": 4,
        "messages_bytes": 20,
        "messages_ready_bytes": 15,
        "messages_unacked_bytes": 5,
        "consumers": 0,
    }
    assert registry.get_sample_value("rabbitmq_queue_disk_writes_total", labels) == 4
    assert registry.get_sample_value("rabbitmq_queue_disk_reads_total", labels) == 0


def test_every_number_is_a_queues_own_and_read_when_it_is_asked_for(
    node: warren.Node, registry: CollectorRegistry
) -> None:
    node.queue("a").publish(b"1").wait()
    other = node.vhost("other").queue("a")
    other.publish_many([b"1"] * 2).wait()

    def ready(vhost: str) -> float | None:
        return registry.get_sample_value("rabbitmq_queue_messages_ready", {"vhost": vhost, "queue": "a"})

    assert (ready("/"), ready("other")) == (1, 2)
    other.purge()
    assert (ready("/"), ready("other")) == (1, 0)
    node.delete_queue("a")
    assert (ready("/"), ready("other")) == (None, 0)


def test_a_nodes_numbers_have_rabbitmqs_names(node: warren.Node, registry: CollectorRegistry) -> None:
    memory = node.memory()
    assert registry.get_sample_value("rabbitmq_process_resident_memory_bytes") == memory["used_bytes"]
    assert registry.get_sample_value("rabbitmq_resident_memory_limit_bytes") == memory["limit_bytes"]
    assert registry.get_sample_value("rabbitmq_disk_space_available_bytes") == memory["disk_free_bytes"]
    assert registry.get_sample_value("rabbitmq_disk_space_available_limit_bytes") == memory["disk_limit_bytes"]
    assert registry.get_sample_value("rabbitmq_alarms_memory_used_watermark") == 0
    assert registry.get_sample_value("rabbitmq_alarms_free_disk_space_watermark") == 0
    with node.queue("jobs").consume():
        assert registry.get_sample_value("rabbitmq_queues") == 1
        assert registry.get_sample_value("rabbitmq_consumers") == 1


def test_an_alarm_is_seen(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node", vm_memory_high_watermark=0.000001) as node:
        registry = CollectorRegistry()
        metrics.register(node, registry)
        assert registry.get_sample_value("rabbitmq_alarms_memory_used_watermark") == 1
        assert registry.get_sample_value("rabbitmq_alarms_free_disk_space_watermark") == 0


def test_the_stores_numbers_are_warrens_own(node: warren.Node, registry: CollectorRegistry) -> None:
    node.queue("jobs").publish(b"x" * 10_000).wait()
    labels = {"vhost": "/", "store": "persistent"}
    assert registry.get_sample_value("warren_store_messages", labels) == 1
    assert (registry.get_sample_value("warren_store_valid_bytes", labels) or 0) > 10_000
    assert registry.get_sample_value("warren_queues_down", {"vhost": "/"}) == 0


def test_all_numbers_can_be_written_out(node: warren.Node, registry: CollectorRegistry) -> None:
    node.queue('quoted "name"')
    text = generate_latest(registry).decode()
    assert 'rabbitmq_queue_messages_ready{queue="quoted \\"name\\"",vhost="/"} 0.0' in text
    assert "# TYPE rabbitmq_queue_disk_writes_total counter" in text


def test_without_a_registry_it_is_the_usual_one_until_it_is_unregistered(node: warren.Node) -> None:
    node.queue("jobs")
    usual, labels = prometheus_client.REGISTRY, {"vhost": "/", "queue": "jobs"}
    collector = metrics.register(node)
    assert usual.get_sample_value("rabbitmq_queue_messages_ready", labels) == 0
    collector.unregister()
    assert usual.get_sample_value("rabbitmq_queue_messages_ready", labels) is None
    collector.close()  # again is fine


def test_a_closed_node_has_no_numbers(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with warren.open(tmp_path / "node") as node:
        metrics.register(node, registry)
    assert generate_latest(registry) == b""


@pytest.mark.slow
def test_without_the_library_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
        import sys
        sys.modules["prometheus_client"] = None
        import warren, warren.metrics
        with warren.open({str(tmp_path / "node")!r}) as node:
            try:
                warren.metrics.register(node)
            except warren.WarrenError as error:
                print(error)
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert 'pip install "warrenmq[prometheus]"' in told.stdout


def test_a_program_without_logging_hears_nothing(tmp_path: Path) -> None:
    """A library must stay silent; Python writes warnings without a handler to standard error."""
    program = f"""
        import warren
        with warren.open({str(tmp_path / "node")!r}, vm_memory_high_watermark=0.000001) as node:
            node.memory()
    """
    heard = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert (heard.stdout, heard.stderr) == ("", "")


def test_a_program_with_logging_hears_of_alarms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="warren"),
        warren.open(tmp_path / "node", vm_memory_high_watermark=0.000001) as node,
    ):
        node.memory()
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("warren.memory", "memory alarm set: publishers are blocked")
    ]


def test_topics_and_groups_have_the_names_of_rocketmqs_exporter(node: warren.Node, registry: CollectorRegistry) -> None:
    assert registry.get_sample_value("rocketmq_commitlog_max_offset") is None  # there never was a topic
    events = node.topic("events", queues=2)
    events.append_many([b"1", b"2", b"3"], keys=["a", "b", "c"]).wait()
    assert len(list(events.read("billing", max_records=2))) == 2
    run(node._running.caught_up())
    labels = {"group": "billing", "topic": "events"}
    assert registry.get_sample_value("rocketmq_producer_offset", {"topic": "events"}) == 3
    assert registry.get_sample_value("rocketmq_consumer_offset", labels) == 2
    assert registry.get_sample_value("rocketmq_group_diff", labels) == 1
    assert registry.get_sample_value("rocketmq_commitlog_max_offset") == sum(
        record.record.size for record in events.reader("other", broadcast=True).read()
    )
    assert registry.get_sample_value("rocketmq_dispatch_behind_bytes") == 0
    assert registry.get_sample_value("warren_topics_down") == 0
