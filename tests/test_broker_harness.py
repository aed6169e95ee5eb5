"""The harness around a real RabbitMQ does what the interoperability tests rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.broker import Broker, BrokerError, Message, requires_broker

pytest_plugins = ["pytester"]

QUEUE = "burrow"
BODIES = [b"first", b"", b"third" * 2_000]  # the last one is too large for the index: its body lies in the store


def messages(bodies: list[bytes], queue: str = QUEUE) -> list[Message]:
    return [Message(body, queue) for body in bodies]


def processes_of(broker: Broker) -> list[str]:
    """The names of the Erlang processes that still run in the broker's directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == broker.base_directory:
                found.append((process / "comm").read_text().strip())
        except OSError:  # it ended, or is not ours
            continue
    return [name for name in found if name in {"beam.smp", "epmd"}]


def vhost_directory(broker: Broker) -> Path:
    (directory,) = broker.vhosts_directory.iterdir()
    return directory


@requires_broker
def test_clean_stop_leaves_a_directory_that_starts_again(broker: Broker) -> None:
    broker.start()
    broker.declare(QUEUE)
    broker.publish(messages(BODIES))
    broker.stop()

    directory = vhost_directory(broker)
    assert (directory / ".vhost").read_bytes() == b"/"
    assert (directory / "recovery.dets").read_bytes()[8:12] == b"\0\0\0\1"  # closed properly
    assert (directory / "msg_store_persistent" / "clean.dot").exists()
    (queue_directory,) = (directory / "queues").iterdir()
    assert (queue_directory / ".queue_name").read_bytes() == b"VHOST: /\nQUEUE: burrow\n"

    broker.start()
    drained = broker.drain(QUEUE)
    assert [delivery.body for delivery in drained] == BODIES
    assert [delivery.redelivered for delivery in drained] == [False, False, False]
    assert {(delivery.exchange, delivery.routing_key) for delivery in drained} == {("", QUEUE)}
    assert {delivery.properties.delivery_mode for delivery in drained} == {2}
    assert broker.drain(QUEUE) == []


@requires_broker
def test_kill_leaves_what_was_confirmed_and_the_marks_of_a_crash(broker: Broker) -> None:
    broker.start()
    broker.declare(QUEUE)
    broker.publish(messages(BODIES))
    broker.kill()
    assert broker.pid is None
    assert not (vhost_directory(broker) / "msg_store_persistent" / "clean.dot").exists()

    broker.start()
    drained = broker.drain(QUEUE)
    assert [delivery.body for delivery in drained] == BODIES
    assert all(delivery.redelivered for delivery in drained)


@requires_broker
def test_two_brokers_side_by_side_share_nothing(tmp_path: Path) -> None:
    settings = {"queue_index_max_journal_entries": 100, "queue_index_segment_entry_count": 16}
    with Broker(tmp_path / "one", settings) as one, Broker(tmp_path / "two") as two:
        one.start()
        two.start()
        bodies = [str(number).encode() for number in range(5_000)]
        one.declare(QUEUE)
        one.publish(messages(bodies))
        two.declare("warren", arguments={"x-max-priority": 3})
        two.publish(messages([b"only"], "warren"))

        assert one.ctl("list_queues", "--no-table-headers", "name") == QUEUE
        assert two.ctl("list_queues", "--no-table-headers", "name") == "warren"
        assert one.eval("application:get_env(rabbit, queue_index_max_journal_entries)") == "{ok,100}"
        assert b"{segment_entry_count, 16}" in (vhost_directory(one) / ".config").read_bytes()
        assert [delivery.body for delivery in one.drain(QUEUE)] == bodies

        two.close()
        assert processes_of(two) == []
        assert sorted(processes_of(one)) == ["beam.smp", "epmd"]
    assert processes_of(one) == []


@requires_broker
def test_message_that_reaches_no_queue_is_an_error_and_so_is_a_failing_command(broker: Broker) -> None:
    broker.start()
    with pytest.raises(BrokerError, match="2 messages reached no queue, the first with key 'nowhere'"):
        broker.publish(messages([b"a", b"b"], "nowhere"))
    with pytest.raises(BrokerError, match="rabbitmqctl delete_queue absent: "):
        broker.ctl("delete_queue", "absent")
    with pytest.raises(BrokerError, match="runs already"):
        broker.start()


@requires_broker
def test_node_that_cannot_start_shows_its_log_and_leaves_no_process(broker: Broker) -> None:
    broker.settings["tcp_listeners"] = "no_list"
    with pytest.raises(BrokerError, match=r"ended with status \d+; its log ends:\n") as caught:
        broker.start()
    assert "no_list" in str(caught.value)
    assert processes_of(broker) == []
    with pytest.raises(BrokerError, match="does not run"):
        broker.stop()


@pytest.mark.parametrize("required", [False, True])
def test_without_a_server_the_run_says_so_or_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    here = Path(__file__).parent
    pytester.makeconftest((here / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    broker: needs a server\n")
    pytester.makepyfile("import pytest\n@pytest.mark.broker\ndef test_it():\n    pass\ndef test_other():\n    pass\n")
    pytester.syspathinsert(here.parent)
    monkeypatch.setenv("WARREN_REQUIRE_BROKER", "1" if required else "")
    monkeypatch.setattr("tests.support.broker.SERVER_SCRIPT", Path(os.devnull) / "absent")

    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")

    if required:
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(["*no RabbitMQ server*WARREN_REQUIRE_BROKER is set*"])
    else:
        result.assert_outcomes(passed=1, skipped=1)
        result.stdout.fnmatch_lines(["*interoperability NOT tested*", "1 tests against a real RabbitMQ were left out*"])
