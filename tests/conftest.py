"""What every test run shares: the rule for tests that need a real RabbitMQ, and the fixture that gives them one.

A test marked ``broker`` is left out where no server is installed, and the end of the run says so; where the environment
sets WARREN_REQUIRE_BROKER, it fails there instead, so that a green run never means "not tried" unnoticed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import effort, groups, tried
from tests.support.broker import ABSENT, REQUIRE_VARIABLE, Broker, is_installed, is_required
from tests.support.java import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server_tools import Served
    from tests.support.spark_cluster import SparkCluster
    from warren.handles.node import Node


effort.load_profile()


def pytest_configure(config: pytest.Config) -> None:
    """What all that the tests start shall find: Java's options for Spark's drivers, and interrupts that work.

    A shell that starts tests in the background has them ignore interrupts, and so would all that they start.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    config.pluginmanager.register(groups.plugin(config), "warren-groups")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as below nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # marks are there before ``-m`` looks for them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run Spark run in one process, for they share its session; those that start their own in another.

    Groups come first, the largest ahead. Tests that say what they tried are marked.
    """
    for item in items:
        if tried.FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(tried.MARK)
        for name in ("spark", "cluster"):
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.xdist_group(name))
    groups_of = [mark and mark.args[0] for mark in (item.get_closest_marker(groups.MARK) for item in items)]
    sizes = Counter(name for name in groups_of if name is not None)
    order = sorted(range(len(items)), key=lambda at: (-sizes[groups_of[at]], groups_of[at] or ""))
    items[:] = [items[at] for at in order]


def pytest_collection_finish() -> None:
    _freeze()


def _freeze() -> None:
    """What is there by now stays: no collection of garbage needs to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _frozen_behind_each_module() -> Iterator[None]:
    """Freeze what a module leaves, above all imports, so that it does not slow down later modules."""
    yield
    _freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("broker") is None or is_installed():
        return
    if is_required():
        pytest.fail(f"{ABSENT}, and {REQUIRE_VARIABLE} is set", pytrace=False)
    pytest.skip(ABSENT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if hasattr(terminalreporter.config, "workerinput"):
        return
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    tried.tell(terminalreporter, tried.counts_of(r for r in terminalreporter.stats.get("", []) if r.nodeid in passed))
    terminalreporter.write_line(effort.summary())
    left_out = sum(ABSENT in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left_out:
        terminalreporter.section("interoperability NOT tested", yellow=True)
        terminalreporter.write_line(f"{left_out} tests against a real RabbitMQ were left out: {ABSENT}.")


@pytest.fixture(name=tried.FIXTURE)
def _tried(request: pytest.FixtureRequest) -> tried.Count:
    """Says how many cases of a kind a test has tried."""
    return tried.counter(request)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run: two cores, few partitions.

    A task is tried four times, as on a cluster: Spark's daemon of Python workers may die when there are many processes,
    and whatever finds it dead fails once for each worker that it had.
    """
    from warren import pipeline

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.sql.adaptive.enabled": "false",
    }
    started = pipeline.session("local[2,4]", app_name="warren's tests", config=settings)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster of Spark's own processes, whose executors have no warren."""
    from tests.support.spark_cluster import SparkCluster

    with SparkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on a fresh directory, not yet started, closed after the test."""
    with Broker(tmp_path / "broker") as fresh:
        yield fresh


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Node]:
    """A node whose directory is shared, hosted by the test's process."""
    import warren

    with warren.open(tmp_path / "data", share=True, sync="os") as node:
        yield node


@pytest.fixture
def guest(host: Node) -> Iterator[Node]:
    """The same, by its host's socket; that both stand in one process is nothing that either sees."""
    import warren

    with warren.open(host.path, share=True, sync="os") as node:
        yield node


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    """A node and its server, for clients."""
    from tests.support.server_tools import served

    with served(tmp_path / "node") as served_node:
        yield served_node


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What a module's tests break on purpose is not logged."""
    caplog.set_level(logging.CRITICAL, "warren")
