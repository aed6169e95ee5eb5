"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

# As the entry point does it, whether or not it is installed here.
PLUGIN = ("-p", "no:warren", "-p", "warren.pytest_plugin", "-p", "no:cacheprovider")


@pytest.mark.slow
def test_each_test_has_a_server_of_its_own_that_clients_and_the_test_see(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import kombu
        import pika
        import pytest

        SEEN = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_a_program(warren_broker, number):
            with pika.BlockingConnection(pika.URLParameters(warren_broker.url)) as connection:
                channel = connection.channel()
                assert channel.queue_declare("jobs", durable=True).method.message_count == 0
                channel.confirm_delivery()
                channel.basic_publish("", "jobs", b"one")
                assert len(warren_broker.server.connections) == 1
            with kombu.Connection(warren_broker.url) as connection, connection.SimpleQueue("jobs") as queue:
                assert queue.get(timeout=10).body == b"one"
            assert warren_broker.node.queue("jobs").get() is not None
            SEEN.append(warren_broker)

        def test_they_are_gone():
            for broker in SEEN:
                with pytest.raises(pika.exceptions.AMQPConnectionError):
                    pika.BlockingConnection(pika.URLParameters(broker.url))
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=3)


@pytest.mark.slow
def test_each_test_has_a_node_of_its_own_in_memory_whose_messages_it_sees(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def program(node):
            node.queue("jobs").publish(b"one", expiration=60)

        @pytest.mark.parametrize("number", [1, 2])
        def test_in_memory(warren_node, warren_messages, number):
            program(warren_node)
            warren_messages("jobs").expect(body=b"one")
            warren_node.advance(61)
            warren_messages("jobs").expect("expired")

        def test_messages_alone(warren_messages):
            warren_messages("jobs").expect(count=0)

        @pytest.mark.warren(sync="always")
        class TestInADirectory:
            @pytest.mark.warren(threads=2)
            def test_it(self, warren_node_dir, warren_messages, tmp_path):
                program(warren_node_dir)
                warren_node_dir.crash()
                warren_messages("jobs").expect(body=b"one")
                assert len(warren_node_dir.queue("jobs")) == 1
                assert (warren_node_dir.config.node.sync, warren_node_dir.config.node.threads) == ("always", 2)
                import os
                assert "msg_stores" in os.listdir(warren_node_dir.path)

        def test_what_failed_is_told(warren_messages, warren_node):
            program(warren_node)
            warren_messages("jobs").wait_for("acked", timeout=0.01)
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "--strict-markers")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        ["E*AssertionError: queue 'jobs': expected 1 or more acked within 0.01 seconds, got 0", "E*b'one' published"]
    )
    result.stdout.fnmatch_lines(["*warren_node: what became of messages*", "queue 'jobs':", "  b'one' published"])


@pytest.mark.slow
def test_processes_that_share_the_tests_share_no_node(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_alone(warren_node, warren_node_dir, number):
            for node in (warren_node, warren_node_dir):
                assert node.queues() == []
                node.queue("jobs").publish(b"x").wait()
        """
    )
    pytester.runpytest_subprocess(*PLUGIN, "-p", "xdist", "-n", "2").assert_outcomes(passed=6)


@pytest.mark.slow
def test_the_plugin_says_what_its_fixture_is(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*PLUGIN, "--fixtures", "-v")
    result.stdout.fnmatch_lines(["warren_broker*", "*A server that speaks AMQP 0-9-1 as RabbitMQ does*"])


def test_a_test_run_that_does_not_use_it_does_not_load_the_node() -> None:
    told = "import sys, warren.pytest_plugin; print(sorted({'numpy', 'pykka', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_entry_point_leads_to_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"warren": "warren.pytest_plugin"}
    assert find_spec("warren.pytest_plugin") is not None
