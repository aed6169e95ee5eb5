"""What every test run shares: the rule for tests that need a real RabbitMQ, and the fixture that gives them one.

A test marked ``broker`` is left out where no server is installed, and the end of the run says so; where the environment
sets WARREN_REQUIRE_BROKER, it fails there instead, so that a green run never means "not tried" unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import ABSENT, REQUIRE_VARIABLE, Broker, is_installed, is_required


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("broker") is None or is_installed():
        return
    if is_required():
        pytest.fail(f"{ABSENT}, and {REQUIRE_VARIABLE} is set", pytrace=False)
    pytest.skip(ABSENT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = sum(ABSENT in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left_out:
        terminalreporter.section("interoperability NOT tested", yellow=True)
        terminalreporter.write_line(f"{left_out} tests against a real RabbitMQ were left out: {ABSENT}.")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on a fresh directory, not yet started, closed after the test."""
    with Broker(tmp_path / "broker") as fresh:
        yield fresh
