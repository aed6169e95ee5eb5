"""Topics and transactions of a shared directory, as far as they differ from a node's that is not shared.

What handles do at the other end of a socket as in the host is in :mod:`tests.test_readers` and
:mod:`tests.test_both_ways`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

import warren
import warren.aio
from tests.support.forked import in_child
from tests.support.sharing_tools import hang_up, link_of
from tests.support.waiting import wait_until
from warren import Topic
from warren.client.link_reader import LinkReader
from warren.errors import DataError, MemberError, QueueLostError, TransactionError, WrongProcessError
from warren.handles.node import Node
from warren.server.channels.readers import TAKEN_BYTES


def bodies(topic: Topic, group: str = "check") -> list[bytes]:
    return [record.body for record in topic.read(group)]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in range(*numbers)]


# ── groups over processes ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_has_members_in_several_processes(host: Node, guest: Node) -> None:
    here, there = host.topic("t", queues=4), guest.topic("t")
    there.append_many(numbered(8), queue=lambda body: int(body) % 4).wait()
    with here.reader("g") as one, there.reader("g") as two:
        assert (one.queues(), two.queues()) == ([0, 1], [2, 3])
        assert [record.body for record in two.read()] == [b"2", b"6", b"3", b"7"]
        two.commit()
        assert set(guest.topic("t").groups()["g"]["members"]) == {one.name, two.name}
        assert [record.body for record in one.read()] == [b"0", b"4", b"1", b"5"]
    assert there.lag("g") == here.lag("g") == {0: 0, 1: 0, 2: 0, 3: 0}


def test_a_guest_that_is_gone_has_left_its_groups(host: Node) -> None:
    topic = host.topic("t", queues=2)
    topic.append_many(numbered(2), queue=int).wait()
    guest = warren.open(host.path, share=True)
    reader = guest.topic("t").reader("g", auto_commit=False)
    assert len(reader.read()) == 2
    connection = link_of(guest).connection
    assert connection is not None
    connection.shutdown(socket.SHUT_WR)
    wait_until(lambda: len(topic.groups()["g"]["members"]) == 0, "it is still a member")
    assert bodies(topic, "g") == numbered(2)
    guest.close()
    with pytest.raises(MemberError):
        reader.close() or reader.read()


def test_a_reader_that_waits_is_woken_by_another_process(host: Node, guest: Node) -> None:
    topic = host.topic("t", queues=1)
    with guest.topic("t").reader("g", tags="wanted") as reader:
        assert reader.read(timeout=0.01) == []
        threading.Timer(0.05, lambda: topic.append_many([b"0", b"1"], tags=["other", "wanted"])).start()
        [record] = reader.read(timeout=60)
        assert (record.body, record.queue_offset) == (b"1", 1)
        threading.Timer(0.05, lambda: topic.append(b"2", tag="wanted")).start()
        assert [one.body for one in reader.records(1, timeout=60)] == [b"2"]


def test_large_messages_come_some_at_a_time(host: Node, guest: Node) -> None:
    topic = guest.topic("t", queues=2)
    sent = [os.urandom(TAKEN_BYTES // 2 + 1) for _ in range(5)]
    topic.append_many(sent, queue=0).wait()
    topic.append(b"last", queue=1).wait()
    with topic.reader("g") as reader:
        assert [record.body for record in reader.read()] == sent[:2]
        assert [record.body for record in reader.read()] == [b"last", *sent[2:4]]
        assert [record.body for record in reader.read()] == sent[4:]
    assert topic.lag("g") == {0: 0, 1: 0}


def test_a_message_that_is_damaged_is_said_where_its_turn_comes(host: Node, guest: Node) -> None:
    topic = guest.topic("t", queues=1)
    place = [one.wait() for one in [topic.append(b"body %d" % number) for number in range(3)]][1]
    topic.sync()
    [log] = (Path(host.path) / "topics" / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(place.physical_offset + place.size - len(b"body 1t") - 3)
        file.write(b"XX")
    with topic.reader("g") as reader:
        assert [record.body for record in reader.read()] == [b"body 0"]
        with pytest.raises(DataError, match="from message 1 on") as caught:
            reader.read()
        assert (caught.value.path, caught.value.offset) == (str(log), place.physical_offset)


def test_coroutines_append_and_read(guest: Node) -> None:
    async def main() -> None:
        topic = await warren.aio.Node(guest).topic("t", queues=1)
        async with topic.reader("g") as reader:
            waiting = asyncio.ensure_future(reader.read(timeout=None))
            await asyncio.sleep(0)
            confirms = [topic.append_nowait(b"%d" % number) for number in range(3)]
            assert [(await one).queue_offset for one in confirms] == [0, 1, 2]
            await topic.room()
            found = [record.body for record in await waiting]
            cancelled = asyncio.ensure_future(reader.read(timeout=None))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            await topic.append(b"3")
            found += [record.body for record in await reader.read(timeout=None)]
            while len(found) < 4:
                found += [record.body for record in await reader.read(timeout=30)]
            assert found == numbered(4)

    asyncio.run(main())


# ── another host ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_and_an_appender_go_on_with_the_next_host(host: Node, guest: Node) -> None:
    topic = guest.topic("t", queues=1)
    topic.append_many(numbered(4)).wait()
    with topic.reader("g", auto_commit=False) as reader:
        records = reader.read(max_records=2)
        records[0].commit()
        unsure = reader.read(max_records=1)
        confirms = [topic.append(b"%d" % number) for number in range(4, 200)]
        threading.Thread(target=host.close).start()
        for number, confirm in enumerate(confirms, 4):
            assert confirm.wait(60).queue_offset == number
        wait_until(lambda: not guest.is_guest, "the host is still there")
        with pytest.raises(QueueLostError):
            unsure[0].commit()
        found = [record.body for record in reader.records(timeout=0)]
    assert found == numbered(1, 200)
    assert [record.queue_offset for record in topic.find("none")] == []


@pytest.mark.slow
@pytest.mark.parametrize("broadcast", [False, True])
def test_a_reader_goes_on_when_its_connection_is_lost(host: Node, guest: Node, broadcast: bool) -> None:
    topic = guest.topic("t", queues=1)
    topic.append_many(numbered(6)).wait()
    with topic.reader("g", broadcast=broadcast) as reader:
        assert [record.body for record in reader.records(3)] == numbered(3)
        hang_up(guest)
        assert [record.body for record in reader.read(2, timeout=60)] == numbered(3, 5)
        threading.Timer(0.05, lambda: hang_up(guest)).start()
        assert [record.body for record in reader.records(timeout=2)] == numbered(5, 6)
    assert list(topic.groups(broadcast=broadcast)) == ["g@DEFAULT" if broadcast else "g"]


def test_what_was_not_confirmed_is_appended_by_the_next_connection_in_order(guest: Node) -> None:
    topic = guest.topic("t", queues=1)
    confirms = [topic.append(b"%d" % number) for number in range(300)]
    hang_up(guest)
    confirms += [topic.append(b"%d" % number) for number in range(300, 600)]
    many = topic.append_many(numbered(600, 700))
    assert len({confirm.wait(60).queue_offset for confirm in confirms}) == 600
    assert len(many.wait(60)) == 100
    assert list(dict.fromkeys(bodies(topic))) == numbered(700)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_is_decided_by_any_process(host: Node, guest: Node) -> None:
    topic = guest.topic("t", queues=1)
    first, second, third = (topic.prepare(body, key="k") for body in (b"kept", b"dropped", b"later"))
    assert (first.message.body, first.topic, first.half_offset) == (b"kept", "t", 0)
    [one, other, _] = host.pending_transactions()
    one.commit().wait()
    with pytest.raises(TransactionError):
        first.rollback().wait()
    second.rollback().wait()
    with pytest.raises(TransactionError):
        other.commit().wait()
    host.close()
    [left] = guest.pending_transactions()
    assert left.half_offset == third.half_offset
    third.commit().wait()
    assert bodies(topic) == [b"kept", b"later"]
    assert guest.pending_transactions() == []


# ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["host", "guest"])
def test_a_forked_child_appends_and_reads_for_itself(host: Node, guest: Node, whose: str) -> None:
    topic = (host if whose == "host" else guest).topic("t", queues=2)
    topic.append_many(numbered(2), queue=int).wait()
    transaction = topic.prepare(b"decided by the child", queue=0)
    with topic.reader("g") as reader:
        assert len(reader.read(1)) == 1

        def work() -> None:
            with pytest.raises(WrongProcessError):
                reader.read()
            transaction.commit().wait()
            topic.append(b"from the child", queue=1).wait(60)
            with topic.reader("g") as own:
                assert isinstance(own._verbs.host, LinkReader)
                assert own.queues() == [1]

        assert in_child(work) == "None"
    assert bodies(topic) == [b"0", b"decided by the child", b"1", b"from the child"]


def test_a_reader_that_is_forgotten_leaves_its_group(guest: Node) -> None:
    topic = guest.topic("t", queues=1)
    reader = topic.reader("g")
    assert topic.groups()["g"]["members"] == {reader.name: [0]}
    del reader
    wait_until(lambda: topic.groups()["g"]["members"] == {}, "it is still a member")
