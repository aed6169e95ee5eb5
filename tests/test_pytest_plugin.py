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
