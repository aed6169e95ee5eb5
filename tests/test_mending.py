"""Looking at a queue's messages, and mending: by condition and by id, on threads and in event loops, here and from
another process; and what a crash on the way leaves."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.both_ways import both_ways, done, listed
from tests.support.management_tools import Api
from tests.support.runtime_tools import HandNode, actor_of, bodies, hand_node
from warren import management
from warren.actors.queue.intake import PublishKey
from warren.errors import ArgumentsError, NotFoundError, NotMovedError, QueueDownError, WhereError
from warren.queue_index.message.message_format import Envelope
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.verbs import selecting
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.selecting import IDS
from warren.verbs.steps import run

LARGE = b"L" * 5000
DIES = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


async def those(queue: Any, **what: Any) -> list[bytes]:
    return [one.body for one in await listed(queue.browse(**what))]


async def fill(queue: Any, count: int, **properties: Any) -> None:
    for number in range(count):
        await done(queue.publish(b"%d" % number, headers={"n": number, "even": number % 2 == 0}, **properties))


async def dead_letters(node: Any) -> tuple[Any, Any]:
    """Two jobs that were rejected, beside one that was put there by hand; and the queue that they died in."""
    await done(node.exchange("jobs", "topic"))
    jobs = await done(node.queue("jobs.mail", arguments=DIES))
    dead = await done(node.queue("dead"))
    await done(node.bind(jobs, "jobs", "mail.*"))
    return jobs, dead


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@both_ways
async def test_browse_looks_at_those_that_a_condition_or_a_function_says(node: Any) -> None:
    queue = await done(node.queue("q"))
    await fill(queue, 600)
    assert await those(queue, where="headers['n'] >= 598 OR body = '3'") == [b"3", b"598", b"599"]
    assert await those(queue, where=lambda message: message.headers["n"] % 200 == 1) == [b"1", b"201", b"401"]
    assert await those(queue, where="headers['even']", limit=3) == [b"0", b"2", b"4"]
    assert await those(queue, limit=2) == [b"0", b"1"]
    assert await those(queue, limit=0) == []
    held = await done(queue.get())
    assert await those(queue, where="unacked") == [b"0"]
    assert await those(queue, where="NOT unacked AND seq_id < 3") == [b"1", b"2"]
    await done(held.nack())
    with pytest.raises(WhereError, match="headers"):
        await those(queue, where="header = 3")
    with pytest.raises(TypeError, match="where must be a condition"):
        await those(queue, where=3)


@pytest.mark.parametrize("face", ["asyncio", "guest", "management"])
def test_no_event_loop_parses_a_condition_or_tests_messages(
    face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, in_loops = selecting._condition, list[bool]()

    def note() -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            in_loops.append(False)
        else:
            in_loops.append(True)

    def noted(text: str) -> Any:
        note()
        return lambda message: [note(), parse(text)(message)][1]

    async def in_asyncio() -> None:
        async with await warren.aio.open(tmp_path, share=face == "guest") as node:
            queue = await node.queue("q")
            await fill(queue, 3)
            assert await those(queue, where="headers['n'] = 1") == [b"1"]
            assert await queue.requeue_dead_letters(where="headers['n'] = 1") == 0
            assert await queue.remove(where="headers['n'] = 1") == 1

    monkeypatch.setattr(selecting, "_condition", noted)
    with warren.open(tmp_path, share=True) if face != "asyncio" else nullcontext() as node:
        if face != "management":
            asyncio.run(in_asyncio())
        else:
            assert node is not None
            node.queue("q").publish(b"1").wait()
            with management.serve(node, port=0) as server, Api(server.url) as api:
                (browsed,) = api.get("/queues/%2F/q/browse?where=body%20=%20'1'")["messages"]
                assert browsed["payload"] == "1"
                for verb, count in (("requeue", {"requeued": 0, "stayed": 0}), ("remove", {"removed": 1})):
                    assert api.ask("POST", f"/queues/%2F/q/{verb}", {"where": "body = '1'"}).document == count
    assert len(in_loops) >= 9
    assert not any(in_loops)


@both_ways
async def test_a_message_is_taken_by_its_id_from_the_middle_and_settled(node: Any) -> None:
    queue = await done(node.queue("q"))
    await fill(queue, 10)
    (seen,) = await listed(queue.browse(where="body = '5'"))
    taken = await done(queue.take(seen.id))
    assert (taken.body, taken.redelivered, taken.headers["n"]) == (b"5", False, 5)
    assert await done(queue.take(seen.id)) is None, "a consumer has it"
    assert [one.unacked for one in await listed(queue.browse())] == [n == 5 for n in range(10)]
    await done(taken.nack())
    taken = await done(queue.take(seen.id))
    assert (taken.body, taken.redelivered) == (b"5", True)
    await done(taken.ack())
    await done(queue.sync())
    assert await done(queue.take(seen.id)) is None, "it is gone"
    rest = await done(queue.get_many(10))
    assert [(one.body, one.redelivered) for one in rest] == [(b"%d" % n, False) for n in range(10) if n != 5]
    for wrong in ("", "5", "0:5", "0:5:ab", "0:x:" + "0" * 32, "-1:5:" + "0" * 32):
        with pytest.raises(ArgumentsError, match="no message's id"):
            await done(queue.take(wrong))


@both_ways
async def test_an_id_finds_no_other_message_once_its_own_is_gone(node: Any) -> None:
    queue = await done(node.queue("q"))
    await fill(queue, 3)
    ids = [one.id for one in await listed(queue.browse())]
    await done(queue.delete())
    queue = await done(node.queue("q"))
    await fill(queue, 3)
    again = [one.id for one in await listed(queue.browse())]
    assert [one.rpartition(":")[0] for one in ids] == [one.rpartition(":")[0] for one in again] == ["0:0", "0:1", "0:2"]
    assert await done(queue.take(ids[1])) is None
    assert await done(queue.remove(ids=ids)) == 0
    assert await done(queue.remove(ids=again[1])) == 1
    assert await those(queue) == [b"0", b"2"]


# ── removing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@both_ways
async def test_messages_are_removed_by_condition_or_function_or_id_up_to_a_limit(node: Any) -> None:
    queue = await done(node.queue("q"))
    await fill(queue, 700)
    held = await done(queue.get())
    assert await done(queue.remove(where="headers['even'] AND headers['n'] < 600")) == 299, "one is with a consumer"
    assert await done(queue.remove(where=lambda message: message.headers["n"] > 10, limit=290)) == 290
    assert await those(queue, limit=8) == [b"0", b"1", b"3", b"5", b"7", b"9", b"591", b"593"]
    ids = [one.id for one in await listed(queue.browse())]
    assert await done(queue.remove(ids=[ids[3], ids[1], ids[0], ids[1]], limit=2)) == 2
    assert await those(queue, limit=4) == [b"0", b"3", b"7", b"9"]
    await done(held.ack())
    many = [one.id for one in await listed(queue.browse(limit=2 * IDS + 5, where="NOT unacked"))]
    assert await done(queue.remove(ids=many)) == 2 * IDS + 5
    assert len(await listed(queue.browse())) == (await done(queue.stats()))["messages_ready"]
    with pytest.raises(TypeError, match=r"purge\(\) deletes all"):
        await done(queue.remove())
    with pytest.raises(TypeError, match="either where or ids"):
        await done(queue.remove(where="unacked", ids=[]))
    with pytest.raises(WhereError):
        await done(queue.remove(where="n ="))
    with pytest.raises(ArgumentsError, match="no message's id"):
        await done(queue.remove(ids=["all"]))


@pytest.mark.slow
@both_ways
async def test_all_levels_of_a_priority_queue_are_walked(node: Any) -> None:
    queue = await done(node.queue("q", arguments={"x-max-priority": 3}))
    for priority in (0, 3, 1):
        await fill(queue, 300, priority=priority)
    seen = await listed(queue.browse(where="headers['n'] = 7"))
    assert [one.id.partition(":")[0] for one in seen] == ["3", "1", "0"]
    assert await done(queue.remove(where="headers['n'] < 290")) == 870
    assert await done(queue.take((await listed(queue.browse()))[-1].id)) is not None
    assert await done(queue.remove(where="priority = 3")) == 10
    assert (await done(queue.stats()))["messages_ready"] == 19


# ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@both_ways
async def test_messages_are_moved_in_their_order_and_are_as_they_were(node: Any) -> None:
    queue, other = await done(node.queue("q")), await done(node.queue("other"))
    await fill(queue, 600, content_type="text/plain", message_id="m", priority=4)
    await done(queue.publish(LARGE, headers={"n": 1000}))
    assert await done(queue.move("other", where="headers['even']", limit=200)) == 200
    assert await those(other) == [b"%d" % n for n in range(0, 400, 2)]
    assert await done(queue.move(other, where=lambda message: len(message.body) > 100)) == 1
    moved = (await listed(other.browse()))[0]
    assert (moved.exchange, moved.routing_key) == ("", "other")
    properties = moved.properties
    assert (properties.content_type, properties.message_id, properties.priority) == ("text/plain", "m", 4)
    assert moved.headers == {"n": 0, "even": True}
    last = (await listed(queue.browse()))[-1]
    assert await done(queue.move("other", ids=last.id)) == 1
    assert await those(other, where="headers['n'] >= 599") == [LARGE, b"599"]
    assert await done(queue.move("other")) == 399
    assert await those(queue) == []
    assert len(await those(other)) == 601
    first = await done(other.get())
    assert not first.redelivered
    await done(first.nack())


@both_ways
async def test_messages_are_moved_through_an_exchange(node: Any) -> None:
    await done(node.exchange("logs", "topic"))
    queue, errors, all_of_them = [await done(node.queue(name)) for name in ("q", "errors", "all")]
    await done(node.bind(errors, "logs", "*.error"))
    await done(node.bind(all_of_them, "logs", "#"))
    await fill(queue, 5)
    assert await done(queue.move(("logs", "app.error"), where="headers['n'] < 2")) == 2
    assert await those(errors) == await those(all_of_them) == [b"0", b"1"]
    assert {one.routing_key for one in await listed(errors.browse())} == {"app.error"}
    await done(all_of_them.delete())
    with pytest.raises(NotMovedError, match=r"no queue for routing key 'app.info'.*0 messages were moved before that"):
        await done(queue.move(("logs", "app.info")))
    assert [(one.body, one.unacked) for one in await listed(queue.browse())] == [(b"%d" % n, False) for n in (2, 3, 4)]


@both_ways
async def test_where_messages_cannot_go_is_said_before_any_is_touched(node: Any) -> None:
    queue = await done(node.queue("q"))
    for to in ("nowhere", ("nowhere", "key")):
        with pytest.raises(NotFoundError, match="nowhere"):
            await done(queue.move(to))
    with pytest.raises(ArgumentsError, match="another one"):
        await done(queue.move("q"))
    with pytest.raises(TypeError, match="messages go to a queue"):
        await done(queue.move(3))


@both_ways
async def test_a_full_queue_ends_a_move_and_nothing_is_lost_or_there_twice(node: Any) -> None:
    queue = await done(node.queue("q"))
    full = await done(node.queue("full", arguments={"x-max-length": 10, "x-overflow": "reject-publish"}))
    await done(queue.publish_many([b"%d" % n for n in range(40)]))
    with pytest.raises(NotMovedError, match=r"'full' .* is full; 10 messages were moved before that"):
        await done(queue.move("full"))
    assert await those(full) == [b"%d" % n for n in range(10)]
    assert await those(queue, where="NOT unacked") == [b"%d" % n for n in range(10, 40)]
    assert await done(full.purge()) == 10
    assert await done(queue.move("full", limit=10)) == 10
    assert await those(queue, limit=1) == [b"20"]


@both_ways
async def test_a_move_that_is_refused_counts_for_no_delivery(node: Any) -> None:
    queue = await done(node.queue("q", arguments={"x-delivery-limit": 1}))
    full = await done(node.queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    await done(full.publish(b"there"))
    await done(queue.publish_many([b"1", b"2"]))
    for _ in range(3):
        with pytest.raises(NotMovedError, match="0 messages were moved"):
            await done(queue.move("full"))
    (first, _) = await listed(queue.browse())
    taken = await done(queue.take(first.id))
    assert (taken.body, taken.delivery_count) == (b"1", 0)
    await done(taken.nack())
    taken = await done(queue.take(first.id))
    assert (taken.body, taken.delivery_count) == (b"1", 1)
    await done(taken.nack())
    assert await those(queue) == [b"2"], "that was once too often"
    await done(full.purge())
    assert await done(queue.move("full")) == 1
    (moved,) = await listed(full.browse())
    assert not moved.headers


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_dead_letters_go_back_to_the_queue_that_they_died_in_as_they_were(node: Any) -> None:
    jobs, dead = await dead_letters(node)
    exchange = await done(node.exchange("jobs", "topic"))
    audit = await done(node.queue("audit"))
    await done(node.bind(audit, "jobs", "#"))
    for number in range(4):
        await done(exchange.publish(b"%d" % number, "mail.send", headers={"n": number}, message_id="m"))
    await done(jobs.publish(b"direct"))
    await done(jobs.sync())
    for delivery in await done(jobs.get_many(5)):
        await done(delivery.reject())
    await done(dead.publish(b"by hand"))
    await done(jobs.sync())
    assert len(await those(dead, where="headers['x-death'][0]['queue'] = 'jobs.mail'")) == 5
    assert await done(dead.requeue_dead_letters(where="headers['n'] = 2")) == 1
    assert await done(dead.requeue_dead_letters(limit=2)) == 2
    assert await done(dead.requeue_dead_letters()) == 2
    assert await those(dead) == [b"by hand"]
    back = await listed(jobs.browse())
    assert [one.body for one in back] == [b"2", b"0", b"1", b"3", b"direct"]
    assert [(one.exchange, one.routing_key) for one in back] == [("jobs", "mail.send")] * 4 + [("", "jobs.mail")]
    assert [dict(one.headers) for one in back] == [{"n": n} for n in (2, 0, 1, 3)] + [{}]
    assert {one.properties.message_id for one in back} == {"m", None}
    assert len(await those(audit)) == 4, "nobody else gets them again"


@both_ways
async def test_dead_letters_of_a_queue_that_is_gone_go_through_its_exchange_or_stay(node: Any) -> None:
    jobs, dead = await dead_letters(node)
    exchange = await done(node.exchange("jobs", "topic"))
    await done(exchange.publish(b"routed", "mail.send"))
    await done(jobs.publish(b"direct"))
    for delivery in await done(jobs.get_many(2)):
        await done(delivery.reject())
    await done(jobs.sync())
    await done(jobs.delete())
    assert await done(dead.requeue_dead_letters()) == 0
    assert await those(dead) == [b"routed", b"direct"]
    other = await done(node.queue("other"))
    await done(node.bind(other, "jobs", "mail.send"))
    assert await done(dead.requeue_dead_letters()) == 1
    assert await those(other) == [b"routed"]
    assert [(one.body, one.unacked) for one in await listed(dead.browse())] == [(b"direct", False)]


def test_what_dies_again_at_once_is_sent_back_once(tmp_path: Path) -> None:
    with warren.open(tmp_path) as node:
        jobs = node.queue("jobs", arguments=DIES | {"x-message-ttl": 0})
        dead = node.queue("dead")
        jobs.publish_many([b"%d" % n for n in range(600)]).wait()
        while len(dead) < 600:
            dead.sync()
        assert dead.requeue_dead_letters() == 600
        while len(dead) < 600:
            dead.sync()


# ── by hand: turns, memory, crashes ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def scene() -> Any:
    one = hand_node()
    yield one
    one.node.close()


@pytest.mark.slow
def test_a_move_takes_a_page_of_memory_at_a_time(scene: HandNode) -> None:
    queue, other = scene.node.queue("q"), scene.node.queue("other")
    queue.set_mode("lazy")
    other.set_mode("lazy")
    for _ in range(40):
        queue.publish_many([bytes(1 << 20)])
    turns = queue._verbs.actor.turn_count
    walk = MendingVerbs(queue._verbs).moving("other", None, None, None)
    while run(walk.step()):
        pass
    assert (walk.looked, walk.chosen, walk.done) == (40, 40, 40)
    assert queue._verbs.actor.turn_count - turns >= 10, "of about four megabytes each"
    assert len(other) == 40


@pytest.mark.parametrize("how", ["stopped", "killed", "asleep"])
def test_an_id_is_good_as_long_as_its_message_is_there(how: str) -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % n for n in range(10)] + [LARGE]).wait()
    ids = [one.id for one in queue.browse()]
    queue.remove(ids=ids[4])
    if how == "asleep":
        scene.advance(600)
    else:
        files = scene.kill() if how == "killed" else scene.files
        if how == "stopped":
            scene.node.close()
        scene = hand_node(files, seed=1)
        queue = scene.node.queue("q")
    assert queue.take(ids[4]) is None
    for at, body in ((10, LARGE), (7, b"7")):
        taken = queue.take(ids[at])
        assert taken is not None
        assert (taken.body, taken.redelivered) == (body, how == "killed")
        taken.ack()
    assert [one.id for one in queue.browse()] == [ids[n] for n in range(10) if n not in (4, 7)]
    scene.node.close()


def test_a_message_whose_properties_nobody_can_read_stays_and_can_be_removed(scene: HandNode) -> None:
    queue, other = scene.node.queue("q"), scene.node.queue("other")
    queue.publish(b"before", headers={"n": 1})
    unreadable = Envelope(b"/", b"", (b"q",), b"\xff\xff\xff", True)
    actor_of(queue).intake.publish(PublishKey(unreadable), b"unreadable")
    queue.publish(b"behind", headers={"n": 2})
    assert [one.id.split(":")[1] for one in queue.browse(where="headers['n'] > 0 OR headers['n'] IS NULL")] == [
        "0",
        "2",
    ]
    assert [one.id.split(":")[1] for one in queue.browse(where=lambda message: bool(message.headers))] == ["0", "2"]
    assert queue.move("other") == 2
    assert bodies(other) == [b"before", b"behind"]
    assert queue.requeue_dead_letters() == 0
    (left,) = (one.id for one in queue.browse())
    assert queue.remove(ids=left) == 1


def test_messages_that_are_published_during_a_walk_are_none_of_its_business(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % n for n in range(300)])
    walk = MendingVerbs(queue._verbs).removing(lambda _: True, None, None)
    assert run(walk.step())
    queue.publish_many([b"late"] * 300)
    while run(walk.step()):
        pass
    assert (walk.done, bodies(queue)) == (300, [b"late"] * 300)


def test_what_a_consumer_gets_meanwhile_is_left_to_him(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % n for n in range(10)])
    ids = [one.id for one in queue.browse()]
    first = queue.get()
    assert queue.remove(ids=ids) == 9
    assert first is not None
    first.nack()
    assert bodies(queue) == [b"0"]


def test_what_is_removed_is_counted_no_more(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"0", b"1"])
    for delivery in queue.get_many(2):
        delivery.nack()
    scene.run()
    retries = actor_of(queue).process.settlements.retries
    assert retries is not None
    assert [entry[1:] for entry in retries.counts] == [(0, 2, 1)]
    queue.remove(where="body = '0'")
    assert [entry[1:] for entry in retries.counts] == [(1, 2, 1)]


def moving_lives(torn: bool) -> Any:
    """A move that is cut off at each operation on the disk: what is there, and what was in which queue before."""
    operation = 0
    while True:
        operation += 1
        files = MemoryFileSystem(random.Random(operation))
        scene = hand_node(files)
        queue = scene.node.queue("q")
        scene.node.queue("other")
        queue.publish_many([b"%d" % n for n in range(6)] + [b"%d" % n + LARGE for n in range(6, 10)]).wait()
        scene.files.crash_at(operation, torn=torn)
        try:
            moved = queue.move("other", where=lambda message: message.body[:1] != b"3")
        except (SimulatedCrash, QueueDownError, NotMovedError, warren.WarrenError):
            yield scene, operation, None
        else:
            yield scene, operation, moved
            return


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_a_move_that_is_cut_off_anywhere_leaves_every_message_in_one_queue_or_in_both(torn: bool, power: bool) -> None:
    cuts = 0
    for scene, operation, moved in moving_lives(torn):
        files = scene.lose_power(random.Random(operation)) if power else scene.kill()
        after = hand_node(files)
        found = {name: [body[:1] for body in bodies(after.node.queue(name))] for name in ("q", "other")}
        for name, there in found.items():
            assert there == sorted(set(there)), f"{name} in order, nothing twice in one queue, cut at {operation}"
        assert {*found["q"], *found["other"]} == {b"%d" % n for n in range(10)}
        assert b"3" not in found["other"]
        if moved is not None:
            assert (moved, found["q"]) == (9, [b"3"]), "what was told is so"
        else:
            cuts += 1
        after.node.close()
    assert cuts > 5


def test_a_move_that_is_cancelled_in_the_middle_of_a_page_leaves_nothing_unacked(tmp_path: Path) -> None:
    async def main() -> None:
        async with warren.aio.open(tmp_path) as node:
            queue, other = await node.queue("q"), await node.queue("other")
            await queue.publish_many([b"%d" % n for n in range(2000)])
            task = asyncio.create_task(queue.move("other"))
            while not len(await listed(other.browse(limit=1))):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while (await queue.stats())["messages_unacknowledged"]:
                await asyncio.sleep(0.001)
            numbers = [int(body) for body in await those(queue)] + [int(body) for body in await those(other)]
            assert sorted(numbers) == [*range(2000)], "what was handed over is not in both"

    asyncio.run(main())
