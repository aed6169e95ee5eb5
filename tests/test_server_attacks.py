"""Clients that take what they can get: others are served all the same, memory stays bounded, all is given free again.

The server is a process of its own with 400 MB for the memory alarm. What a single frame may do wrong is in
tests/test_server_abuse.py, what limits there are in tests/test_server_limits.py.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands as c

from tests.support.amqp_link import Link
from tests.support.server_attacks import (
    ATTACKS,
    Attack,
    Bystander,
    ServedProgram,
    answered,
    linked,
    method,
    publishes,
    served_program,
    wait_until_free,
)
from tests.support.tried import Count, Tried
from tests.support.waiting import wait_until
from warren.amqp.connection import PROTOCOL_HEADER
from warren.amqp.methods import encode_method
from warren.queue_index.properties import Properties, encode_properties

CONFIG = '[node]\nvm_memory_high_watermark = "400MB"\n'
WITHIN_S = 2.0
"""How long a bystander waits at most if nothing else runs; on a machine with two cores it is a third of that."""
TIMES = 20
"""The factor by which it may wait longer than without an attack, because the machine may be busy."""
QUIET = 50
"""How often it is served before the attack, to measure that."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProgram]:
    with served_program(tmp_path_factory.mktemp("attacked"), config=CONFIG) as found:
        yield found
        assert "Traceback" not in found.log.read_text(encoding="utf-8")


class Watch:
    """A bystander and a meter of the server's memory, which run while a test does something else."""

    def __init__(self, program: ServedProgram, *, may_publish: bool) -> None:
        self.peak_bytes = 0
        self.bystander = Bystander.of(program)
        self._program = program
        self._serves = self.bystander.is_served if may_publish else self.bystander.is_answered
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._measure, self._serve)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _measure(self) -> None:
        while not self._over.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self._program.rss_bytes)

    def _serve(self) -> None:
        try:
            while not self._over.wait(0.01):
                self._serves()
        except BaseException as error:
            self._error = error


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_costs_others_no_more_than_a_moment(program: ServedProgram, attack: Attack, tried: Count) -> None:
    quiet = Bystander.of(program)
    within_s = WITHIN_S + TIMES * max(quiet.is_served() for _ in range(QUIET))
    quiet.link.close()
    before_bytes = program.rss_bytes
    with Watch(program, may_publish=not attack.sets_alarm) as watch:
        descriptors = program.descriptors
        left = attack.run(program)
    slowest_s, more_bytes = watch.bystander.slowest_s, watch.peak_bytes - before_bytes
    print(f"slowest {slowest_s:.3f} s of {within_s:.3f}, {more_bytes >> 20} MiB more")
    assert slowest_s < within_s
    assert more_bytes < attack.memory_bytes
    for one in left:
        one.close()
    wait_until_free(program, descriptors)
    wait_until(lambda: watch.bystander.is_answered() < within_s, "the bystander is answered")
    watch.bystander.is_served()  # an alarm is over, too
    watch.bystander.link.close()
    tried(Tried.ATTACKS, 1)


def test_a_flood_of_connections_leaves_the_node_its_descriptors(tmp_path: Path, tried: Count) -> None:
    with served_program(tmp_path, config=CONFIG, descriptors=300) as program:
        bystander = Bystander.of(program)
        bystander.is_served()
        before = program.descriptors
        left = [socket.create_connection(("127.0.0.1", port), 10)
                for port in [program.port] * 400 + [program.management_port] * 100]  # fmt: skip
        wait_until(lambda: program.descriptors > 200, "connections are let in")
        for number in range(20):  # a file and a directory each
            bystander.link.write(method(1, c.Queue.Declare, queue=f"new {number}", durable=True))
        bystander.is_served()
        assert program.descriptors <= 300 - 32
        for one in left:
            one.close()
        wait_until_free(program, before + 25)
        assert "memory and disk are not watched" not in program.log.read_text(encoding="utf-8")
        assert bystander.link.is_open
    tried(Tried.ATTACKS, 1)


def test_a_client_that_is_gone_gives_free_what_an_alarm_is_about(program: ServedProgram, tried: Count) -> None:
    """It is not read while the alarm is set, so its end would not be seen, and the alarm would last forever."""
    attack = ATTACKS["transactions_without_an_end"]
    bystander = Bystander.of(program)
    left = attack.run(program)
    for one in left:
        one.close()
    bystander.is_served()
    bystander.link.close()
    tried(Tried.ATTACKS, 1)


@pytest.mark.parametrize(("name", "value"), [("frame_max", 0xFFFFFFFF), ("frame_max", 0), ("channel_max", 0xFFFF)])
def test_a_client_that_wants_more_than_was_offered_is_not_let_in_and_hears_nothing(
    program: ServedProgram, name: str, value: int
) -> None:
    least = {"frame_max": 131_072, "channel_max": 2047}
    with socket.create_connection(("127.0.0.1", program.port), 10) as client:
        client.sendall(PROTOCOL_HEADER)
        client.recv(1 << 16)
        client.sendall(encode_method(0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest")))
        client.recv(1 << 16)
        client.sendall(encode_method(0, c.Connection.TuneOk(**(least | {name: value}), heartbeat=0)))
        assert client.recv(1 << 16) == b"", "as from a broker"


def test_what_was_asked_before_an_answer_was_read_is_answered_in_order(program: ServedProgram) -> None:
    """More than is worked off at a time, and more than waits to be sent at a time: nothing is lost or moved."""
    link = linked(program)
    link.write(method(1, c.Queue.Declare, queue="in order", exclusive=True))
    expected = []
    for number in range(3000):
        if number % 3:
            link.write(method(1, c.Basic.Qos, prefetch_count=1))
            expected.append("basic.qos_ok")
        else:
            link.write(method(1, c.Queue.Declare, queue="in order", passive=True))
            expected.append("queue.declare_ok")
    while len(link.channels[1].came) <= len(expected):
        link.read()
    assert [name for name, _ in link.channels[1].came[1:]] == expected
    link.close()


def test_what_was_published_before_a_client_hung_up_is_there(program: ServedProgram) -> None:
    link = linked(program, method(1, c.Queue.Declare, queue="left", durable=True))
    some = [publishes("left", [b"x"], properties=encode_properties(Properties(type=str(n)))) for n in range(5000)]
    answered(link)  # what is unread when a socket is closed makes a reset of it
    link.write(b"".join(some))
    link.close()
    other = Link(program.port)
    channel = other.open_channel(1)

    def count() -> int:
        channel.came.clear()
        other.write(method(1, c.Queue.Declare, queue="left", durable=True))
        while not channel.came:
            other.read()
        return int(channel.came[0][1]["message_count"])

    wait_until(lambda: count() == len(some), "everything has come")
    other.close()
