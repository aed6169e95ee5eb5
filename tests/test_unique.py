"""Messages with keys: which are stored, when a key is free again, what an answer says, and every way in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pika
import pytest

import warren
import warren.aio
import warren.kombu
from tests.support.both_ways import in_a_loop
from tests.support.runtime_tools import BIG, DATA, HandNode, bodies, hand_node, queue_path
from tests.support.server_tools import served
from warren import Queue
from warren.errors import ArgumentsError, DiskFullError, MessageError, PreconditionFailedError, PublishRefusedError
from warren.handles.node import Node
from warren.queue_index.index import directory as names
from warren.storage.faults import FaultRules
from warren.storage.memory import MemoryFileSystem

DEDUPLICATES = {"x-message-deduplication": True}


@pytest.fixture
def scene() -> Iterator[HandNode]:
    one = hand_node()
    yield one
    one.node.close()


def log_path(queue: str, vhost: str = "/") -> str:
    directory = names.vhost_directory_name(vhost.encode())
    return f"{DATA}/warren.queues/{directory}/{names.queue_directory_name(vhost.encode(), queue.encode())}/unique.log"


def stored(queue: Queue, body: bytes = b"x", **properties: Any) -> bool:
    """Publish, wait, and say whether it was stored."""
    confirm = queue.publish(body, **properties)
    confirm.wait()
    return not confirm.duplicate


# ── while it waits ──────────────────────────────────────────────────────────────────────────────────────────────────


def _ack(queue: Queue) -> None:
    message = queue.get()
    assert message is not None
    message.ack()


def _reject(queue: Queue) -> None:
    message = queue.get()
    assert message is not None
    message.nack(requeue=False)


LEAVES: dict[str, Callable[[Queue], object]] = {
    "ack": _ack,
    "reject": _reject,
    "auto_ack": lambda queue: queue.get(auto_ack=True),
    "purge": Queue.purge,
}


@pytest.mark.parametrize("leaves", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-max-length": 9}, {"x-queue-mode": "lazy"}])
def test_a_key_is_taken_until_its_message_has_left(
    scene: HandNode, arguments: dict[str, Any], leaves: Callable[[Queue], object]
) -> None:
    queue = scene.node.queue("q", arguments=arguments)
    assert stored(queue, b"first", unique="k")
    assert not stored(queue, b"second", unique="k")
    assert stored(queue, b"other", unique="l")
    assert bodies(queue) == [b"first", b"other"]
    leaves(queue)
    assert stored(queue, b"third", unique="k")
    assert bodies(queue)[-1] == b"third"


def test_a_key_outlasts_a_rest_and_its_message_is_mixed_up_with_no_other(scene: HandNode) -> None:
    """An empty queue that has rested begins with the first seq_id again."""
    queue = scene.node.queue("q")
    queue.publish(b"a", unique="k").wait()
    scene.advance(3600)
    assert queue.stats()["state"] == "hibernated"
    assert not stored(queue, unique="k")
    _ack(queue)
    scene.advance(3600)
    queue.publish(b"other").wait()
    assert [message.seq_id for message in queue.browse()] == [0]
    assert stored(queue, b"b", unique="k")
    assert bodies(queue) == [b"other", b"b"]


def test_a_message_that_waits_expired_behind_others_has_no_key_any_more(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"first").wait()
    queue.publish(b"short", unique="k", expiration=1).wait()
    scene.advance(2)
    assert stored(queue, b"again", unique="k")
    assert [message.body for message in queue.get_many(9)] == [b"first", b"again"]


def test_a_key_moves_on_with_a_dead_letter_no_further_than_its_queue(scene: HandNode) -> None:
    scene.node.queue("dead")
    queue = scene.node.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    queue.publish(b"a", unique="k").wait()
    _reject(queue)
    scene.run()
    assert not stored(queue, b"b", unique="k"), "until it is safe where it goes, a crash would bring it back"
    scene.advance(0.1)
    assert stored(queue, b"b", unique="k")
    assert stored(scene.node.queue("dead"), b"c", unique="k")
    assert bodies(scene.node.queue("dead")) == [b"a", b"c"]


def test_a_queue_that_refuses_takes_no_key(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    queue.publish(b"a").wait()
    with pytest.raises(PublishRefusedError):
        queue.publish(b"b", unique="k").wait()
    with pytest.raises(PublishRefusedError):
        queue.publish(b"b", unique="k", unique_for=60).wait()
    _ack(queue)
    assert stored(queue, unique="k", unique_for=60)
    with pytest.raises(PublishRefusedError):
        queue.publish(b"c", unique="l").wait()
    assert not stored(queue, unique="k"), "a duplicate is accepted, and needs no room"


def test_a_message_that_is_gone_at_once_takes_no_key(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments={"x-message-ttl": 0})
    assert stored(queue, unique="k", unique_for=60)
    assert stored(queue, unique="k")
    assert len(queue) == 0


# ── within a time ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_for_a_time_is_taken_for_so_long_whatever_becomes_of_the_message(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    assert stored(queue, b"a", unique="k", unique_for=300)
    _ack(queue)
    scene.advance(299)
    assert not stored(queue, b"b", unique="k", unique_for=300), "and that does not begin the time anew"
    assert not stored(queue, b"b", unique="k")
    scene.advance(1.5)
    assert stored(queue, b"c", unique="k", unique_for=300)
    scene.advance(301)
    assert stored(queue, b"d", unique="k"), "though c is still there"
    assert bodies(queue) == [b"c", b"d"]


def test_keys_for_a_time_survive_kills_and_stops() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    assert stored(queue, b"a", unique="k", unique_for=300)
    assert stored(queue, b"b", unique="w")
    _ack(queue)
    queue.sync()
    files = scene.kill()
    for seed in (1, 2):
        again = hand_node(files, seed=seed, clock=scene.clock)
        queue = again.node.queue("q")
        assert not stored(queue, unique="k")
        assert not stored(queue, unique="w")
        assert bodies(queue) == [b"b"]
        again.node.close()
    scene.clock.advance(300)
    again = hand_node(files, seed=3, clock=scene.clock)
    assert stored(again.node.queue("q"), unique="k")
    _ack(again.node.queue("q"))
    assert stored(again.node.queue("q"), unique="w")
    again.node.close()


def test_a_clean_stop_keeps_the_key_of_a_message_that_was_done_before_it_was_safe() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    first = queue.publish(b"a", unique="gone", unique_for=300)
    _ack(queue)
    second = queue.publish(b"b", unique="there", unique_for=300)
    scene.node.close()
    assert first.done
    assert second.done
    again = hand_node(scene.files, seed=1, clock=scene.clock)
    queue = again.node.queue("q")
    _ack(queue)
    assert not stored(queue, unique="gone", unique_for=1)
    assert not stored(queue, unique="there", unique_for=1)
    again.node.close()


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_messages_have_a_key_each_or_none(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"0", unique="a").wait()
    confirm = queue.publish_many(
        [b"1", b"2", b"3", b"4", b"5"], unique=["a", "b", None, "b", None], message_id=["1", "2", "3", "4", "5"]
    )
    confirm.wait()
    assert confirm.duplicate
    assert confirm.duplicates == (0, 3)
    assert bodies(queue) == [b"0", b"2", b"3", b"5"]
    assert [message.properties.message_id for message in queue.browse()] == [None, "2", "3", "5"]
    assert queue.publish_many([], unique=[]).duplicates == ()


def test_large_messages_among_many_are_counted_on(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    large = bytes(1 << 21)
    confirm = queue.publish_many([b"0", large, b"2", b"3"], unique=["a", "b", "a", "b"], type=["x", "y", "z", None])
    confirm.wait()
    assert confirm.duplicates == (2, 3)
    assert [len(body) for body in bodies(queue)] == [1, 1 << 21]


def test_a_body_can_be_its_own_key(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    assert stored(queue, b"resize 7", unique=True)
    assert not stored(queue, b"resize 7", unique=True)
    assert stored(queue, b"resize 8", unique=True)
    assert stored(queue, b"x", unique="resize 7"), "a key is no body"
    assert queue.publish_many([b"a", b"b", b"a"], unique=True).duplicates == (2,)


def test_text_and_bytes_are_one_key_and_a_number_another(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    assert stored(queue, unique="7")
    assert not stored(queue, unique=b"7")
    assert stored(queue, unique=7)
    assert not stored(queue, unique=7)


def test_a_publish_without_a_key_is_no_duplicate(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    for _ in range(2):
        assert not queue.publish(b"x").duplicate
        assert not queue.publish(b"x", unique=None, unique_for=None).duplicate
    assert len(queue) == 4


def test_a_duplicate_is_told_when_the_first_one_is_safe(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"before").wait()
    first, second = queue.publish(BIG, unique="k"), queue.publish(b"y", unique="k")
    first_was_safe = []
    second.on_done(lambda _: first_was_safe.append(first.done))
    scene.run()
    assert not first_was_safe
    scene.advance(0.05)
    assert first_was_safe == [True]
    assert second.duplicate
    assert stored(queue, BIG, unique="l")


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_that_outlives_nothing_is_confirmed_at_once(scene: HandNode, durable: bool) -> None:
    queue = scene.node.queue("q", durable=durable)
    assert stored(queue, unique="k", persistent=False)
    assert not stored(queue, unique="k", persistent=False)
    assert stored(queue, unique="t", unique_for=9, persistent=False)
    assert not stored(queue, unique="t")


def test_sync_waits_for_keys_too(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    confirm = queue.publish(b"x", unique="k", unique_for=60)
    queue.sync()
    assert confirm.done


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"unique": 1.5}, r"a key is text, bytes or a whole number, not 1\.5"),
        ({"unique": ["a"]}, r"a key is text, bytes or a whole number, not \['a'\]"),
        ({"unique": ""}, "a key that is empty is every message's"),
        ({"unique_for": 5}, "unique_for says how long a key is taken; the key is unique"),
        ({"unique": "k", "unique_for": 0}, "unique_for is more than 0 and at most 315360000 seconds, not 0"),
        ({"unique": "k", "unique_for": "5"}, "unique_for is a number of seconds, not '5'"),
        ({"unique": "k", "color": "red"}, "a publish knows no color"),
    ],
)
def test_what_cannot_be_a_key_is_said(scene: HandNode, arguments: dict[str, Any], reason: str) -> None:
    queue = scene.node.queue("q")
    with pytest.raises(MessageError, match=reason):
        queue.publish(b"x", **arguments)
    assert len(queue) == 0


def test_many_messages_want_a_list_of_keys(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    with pytest.raises(MessageError, match="of many messages unique is a list with a key for each"):
        queue.publish_many([b"a"], unique="k")  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="unique of 1 messages, and 2 bodies"):
        queue.publish_many([b"a", b"b"], unique=["k"])


def test_a_message_that_comes_later_has_no_key_and_that_is_said(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    moments: list[dict[str, Any]] = [{"delay": 5}, {"at": 1_700_000_000}]
    for later in moments:
        with pytest.raises(MessageError, match="a message that comes later has no key"):
            queue.publish(b"x", unique="k", **later)
        with pytest.raises(MessageError, match="a message that comes later has no key"):
            queue.publish_many([b"x"], unique=["k"], **later)
    assert stored(queue, unique="k", delay=None)
    queue.publish(b"y", unique=None, delay=5).wait()
    scene.advance(6)
    assert bodies(queue) == [b"x", b"y"]


def test_a_header_is_looked_at_when_a_message_that_waited_comes(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments=DEDUPLICATES)
    queue.publish(b"later", headers=header("k"), delay=5).wait()
    queue.publish(b"now", headers=header("k")).wait()
    scene.advance(6)
    assert bodies(queue) == [b"now"]


def test_an_exchange_knows_no_keys_and_says_what_does(scene: HandNode) -> None:
    exchange = scene.node.exchange("fan", "fanout")
    with pytest.raises(MessageError, match="x-message-deduplication"):
        exchange.publish(b"x", unique="k")  # type: ignore[call-arg]


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_without_keys_has_no_folder(scene: HandNode) -> None:
    scene.node.queue("q").publish(b"x").wait()
    scene.node.queue("transient", durable=False).publish(b"x", unique="k").wait()
    assert not scene.files.list(f"{DATA}/warren.queues")


def test_the_folder_goes_with_the_queue(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"x", unique="k", unique_for=60).wait()
    assert scene.files.exists(log_path("q"))
    waiting = queue.publish(b"y", unique="l", unique_for=60)
    queue.delete()
    assert waiting.done
    assert not waiting.duplicate
    assert not scene.files.exists(log_path("q"))
    assert stored(scene.node.queue("q"), unique="k")


def test_the_folder_of_a_queue_that_another_program_deleted_goes_when_the_node_is_opened() -> None:
    scene = hand_node()
    scene.node.queue("q").publish(b"x", unique="k", unique_for=60).wait()
    files = scene.kill()
    log = files.read(log_path("q"))
    again = hand_node(files, seed=1)
    again.node.queue("q").delete()
    files = again.kill()
    files.make_directories(log_path("q").rpartition("/")[0])
    file = files.open_append(log_path("q"))
    file.append(log)
    file.close()
    again = hand_node(files, seed=2)
    assert not files.exists(log_path("q"))
    again.node.close()


def test_the_folders_go_with_their_vhost(scene: HandNode) -> None:
    vhost = scene.node.vhost("v")
    vhost.queue("q").publish(b"x", unique="k").wait()
    assert scene.files.exists(log_path("q", "v"))
    scene.node.delete_vhost("v")
    assert not scene.files.list(f"{DATA}/warren.queues")[1:]
    assert not scene.files.exists(log_path("q", "v"))


def test_nothing_of_it_lies_among_the_brokers_files(scene: HandNode) -> None:
    scene.node.queue("q").publish(b"x", unique="k").wait()
    assert scene.files.list(queue_path("q")) == [".queue_name", "journal.jif"]


def damaged() -> MemoryFileSystem:
    return MemoryFileSystem(random.Random(1), rules=FaultRules(damage=True))


def test_a_log_that_is_none_keeps_messages_from_nobody_and_keys_from_all(caplog: pytest.LogCaptureFixture) -> None:
    scene = hand_node(damaged())
    scene.node.queue("q").publish(b"x", unique="k").wait()
    files = scene.kill()
    files.flip_bit(log_path("q"), 3, 0)
    again = hand_node(files, seed=1)
    queue = again.node.queue("q")
    assert bodies(queue) == [b"x"]
    queue.publish(b"y").wait()
    with pytest.raises(MessageError, match=r"rejects messages with keys: .*unique.log"):
        queue.publish(b"z", unique="l").wait()
    assert bodies(queue) == [b"x", b"y"]
    assert "rejects messages with keys" in caplog.text
    again.node.close()


def test_a_damaged_record_costs_its_own_key(caplog: pytest.LogCaptureFixture) -> None:
    scene = hand_node(damaged())
    queue = scene.node.queue("q")
    for key in ("a", "b", "c"):
        queue.publish(b"x", unique=key).wait()
    files = scene.kill()
    files.flip_bit(log_path("q"), len("warren unique-keys 1\n") + 58 + 20, 0)
    again = hand_node(files, seed=1)
    queue = again.node.queue("q")
    assert [stored(queue, unique=key) for key in ("a", "b", "c")] == [False, True, False]
    assert "unreadable keys are forgotten" in caplog.text
    again.node.close()


def test_the_log_and_the_table_stay_small_where_keys_come_and_go(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    for turn in range(60):
        queue.publish_many([b"x"] * 100, unique=[f"{turn} {key}" for key in range(100)], unique_for=10).wait()
        queue.get_many(100, auto_ack=True)
        scene.advance(11)
    assert scene.files.size(log_path("q")) < 3 * 64 * 1024
    keys = queue._verbs.entry.actor.arrivals.open_unique().keys
    assert len(keys) <= 300
    assert keys.size_bytes < 50 * 600


def test_many_keys_that_wait_are_kept_whole(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    names_of = [f"key {number}" for number in range(3000)]
    for low in range(0, 3000, 500):
        assert not queue.publish_many([b"x"] * 500, unique=names_of[low : low + 500]).duplicates
    assert queue.publish_many([b"y"] * 3000, unique=names_of).duplicates == tuple(range(3000))
    queue.get_many(1000, auto_ack=True)
    assert queue.publish_many([b"y"] * 3000, unique=names_of).duplicates == tuple(range(1000, 3000))


# ── a full disk ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_refuses_a_key_and_stores_nothing() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(1)))
    queue = scene.node.queue("q")
    queue.publish(b"a", unique="a", unique_for=60).wait()
    scene.files.capacity_bytes = scene.files.used_bytes
    with pytest.raises(DiskFullError):
        queue.publish(b"b", unique="b", unique_for=60).wait()
    assert bodies(queue) == [b"a"]
    scene.files.capacity_bytes = None
    scene.advance(5)
    assert stored(queue, b"b", unique="b", unique_for=60)
    assert not stored(queue, unique="a")
    scene.node.close()


def test_a_duplicate_of_what_is_not_safe_is_not_called_so() -> None:
    """The disk has room for the key but not for the message, which waits in RAM."""
    scene = hand_node(MemoryFileSystem(random.Random(1)))
    queue = scene.node.queue("q")
    queue.publish(b"a", unique="a").wait()
    scene.files.capacity_bytes = scene.files.used_bytes + 70
    with pytest.raises(DiskFullError):
        queue.publish(b"b" * 100, unique="b").wait()
    assert bodies(queue) == [b"a", b"b" * 100]
    scene.files.capacity_bytes = None
    scene.advance(10)
    confirm = queue.publish(b"b", unique="b")
    confirm.wait()
    assert confirm.duplicate
    again = hand_node(scene.kill(), seed=1)
    assert bodies(again.node.queue("q")) == [b"a", b"b" * 100]
    again.node.close()


def test_a_key_is_safe_with_the_confirm_of_a_duplicate_whose_first_one_was_not() -> None:
    scene = hand_node(MemoryFileSystem(random.Random(1)))
    queue = scene.node.queue("q")
    queue.publish(b"a", unique="a").wait()
    scene.files.capacity_bytes = scene.files.used_bytes + 70
    with pytest.raises(DiskFullError):
        queue.publish(b"b" * 100, unique="b", unique_for=600).wait()
    scene.files.capacity_bytes = None
    scene.advance(10)
    assert not stored(queue, unique="b")
    queue.get_many(2, auto_ack=True)
    queue.sync()
    again = hand_node(scene.lose_power(random.Random(2)), seed=1, clock=scene.clock)
    assert not stored(again.node.queue("q"), unique="b")
    again.node.close()


def test_a_message_that_a_stop_left_keeps_its_key_when_it_is_done_by_the_next_process() -> None:
    scene = hand_node()
    confirm = scene.node.queue("q").publish(b"a", unique="k", unique_for=600)
    scene.node.close()
    confirm.wait()
    again = hand_node(scene.files, seed=1, clock=scene.clock)
    queue = again.node.queue("q")
    queue.get_many(1, auto_ack=True)
    queue.sync()
    third = hand_node(again.lose_power(random.Random(2)), seed=2, clock=scene.clock)
    assert not stored(third.node.queue("q"), unique="k")
    third.node.close()


# ── headers, from anywhere ──────────────────────────────────────────────────────────────────────────────────────────


def header(key: object, **more: Any) -> dict[str, Any]:
    return {"x-deduplication-header": key, **{name.replace("_", "-"): value for name, value in more.items()}}


def test_a_header_is_a_key_where_the_queue_looks_at_it(scene: HandNode) -> None:
    plain, looks = scene.node.queue("plain"), scene.node.queue("looks", arguments=DEDUPLICATES)
    for queue, expected in ((plain, [b"a", b"b", b"c"]), (looks, [b"a", b"c"])):
        queue.publish(b"a", headers=header("k")).wait()
        queue.publish(b"b", headers=header("k")).wait()
        queue.publish(b"c", headers={"other": 1}).wait()
        assert bodies(queue) == expected
    assert not stored(looks, unique="k"), "it is the same key"
    _ack(looks)
    looks.publish(b"d", headers=header("k")).wait()
    assert bodies(looks) == [b"c", b"d"]


def test_a_batch_with_one_header_is_stored_once(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments=DEDUPLICATES)
    queue.publish_many([b"a", b"b", b"c"], headers=header("k")).wait()
    queue.publish_many([b"d", b"e"], headers=[header("k"), header("l")]).wait()
    assert bodies(queue) == [b"a", b"e"]


def test_x_cache_ttl_makes_it_a_time(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments=DEDUPLICATES | {"x-cache-ttl": 5000})
    queue.publish(b"a", headers=header("k")).wait()
    queue.publish(b"b", headers=header("l", x_cache_ttl=1000)).wait()
    for _ in range(2):
        _ack(queue)
    scene.advance(2)
    queue.publish(b"c", headers=header("k")).wait()
    queue.publish(b"d", headers=header("l", x_cache_ttl="1000")).wait()
    assert bodies(queue) == [b"d"]
    scene.advance(4)
    queue.publish(b"e", headers=header("k")).wait()
    assert bodies(queue) == [b"d", b"e"]


def test_no_message_goes_past_a_queue_that_looks_at_headers(scene: HandNode) -> None:
    """Not to a waiting consumer, nor to one that acks automatically, nor written ahead."""
    queue = scene.node.queue("q", arguments=DEDUPLICATES)
    queue.publish(b"a", headers=header("k")).wait()
    held = queue.get()
    assert held is not None
    with queue.consume(auto_ack=True) as consumer:
        assert consumer.receive(timeout=0) is None
        queue.publish(b"b", headers=header("k"))
        queue.publish(b"c", headers=header("l"))
        scene.run()
        received = consumer.receive(timeout=0)
        assert received is not None
        assert received.body == b"c"
        assert consumer.receive(timeout=0) is None
    held.ack()


def test_what_an_exchange_or_a_dead_letter_brings_is_looked_at(scene: HandNode) -> None:
    looks = scene.node.queue("looks", arguments=DEDUPLICATES)
    scene.node.exchange("fan", "fanout")
    scene.node.bind("looks", "fan")
    source = scene.node.queue("q", arguments={"x-dead-letter-exchange": "fan"})
    scene.node.exchange("fan").publish(b"a", headers=header(7)).wait()
    scene.node.exchange("fan").publish(b"b", headers=header(7)).wait()
    source.publish(b"c", headers=header(7)).wait()
    source.publish(b"d", headers=header(8)).wait()
    for message in source.get_many(2):
        message.nack(requeue=False)
    scene.run()
    assert bodies(looks) == [b"a", b"d"]
    assert len(source) == 0


def test_a_queue_that_looks_at_headers_is_declared_so(scene: HandNode) -> None:
    scene.node.queue("q", arguments=DEDUPLICATES)
    scene.node.queue("q", arguments=DEDUPLICATES)
    with pytest.raises(PreconditionFailedError, match="x-message-deduplication is True"):
        scene.node.queue("q", arguments={})
    with pytest.raises(ArgumentsError, match="x-message-deduplication"):
        scene.node.queue("other", arguments={"x-message-deduplication": "yes"})
    with pytest.raises(ArgumentsError, match="x-cache-ttl"):
        scene.node.queue("other", arguments={"x-cache-ttl": -1})


# ── from everywhere ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["os", "group", "always"])
def test_keys_hold_over_a_real_directory(tmp_path: Path, sync: Any) -> None:
    for first in (True, False):
        with warren.open(tmp_path / "data", sync=sync) as node:
            queue = node.queue("q")
            assert stored(queue, b"a", unique="w") is first
            assert stored(queue, b"b", unique="t", unique_for=600) is first
            assert bodies(queue) == [b"a", b"b"]
    with warren.open(tmp_path / "data", sync=sync) as node:
        queue = node.queue("q")
        queue.purge()
        assert stored(queue, unique="w")
        assert not stored(queue, unique="t")


@in_a_loop
async def test_asyncio(tmp_path: Path) -> None:
    async with warren.aio.open(tmp_path / "data") as node:
        queue = await node.queue("q")
        await queue.publish(b"a", unique="k")
        await queue.publish(b"b", unique="k")
        confirm = queue.publish_nowait(b"c", unique="k", unique_for=5)
        await confirm
        assert confirm.duplicate
        first = queue.publish_nowait(b"d", unique="l")
        await first
        assert not first.duplicate
        await queue.publish_many([b"e", b"f"], unique=["l", "m"])
        assert [message.body async for message in queue.browse()] == [b"a", b"d", b"f"]


def test_a_guest_of_a_shared_directory(host: Node, guest: Node) -> None:
    there, here = guest.queue("q"), host.queue("q")
    assert stored(there, b"a", unique="k", headers={"n": [1, b"\xff"]}, expiration=60)
    assert not stored(here, b"b", unique="k")
    assert not stored(there, b"b", unique="k", unique_for=10)
    keys: list[str | bytes | int | None] = ["k", b"bytes", None]
    confirm = there.publish_many([b"c", b"d", b"e"], unique=keys, message_id=["1", "2", "3"])
    confirm.wait()
    assert confirm.duplicates == (0,)
    assert [message.body for message in here.browse()] == [b"a", b"d", b"e"]
    assert [message.properties.message_id for message in here.browse()] == [None, "2", "3"]
    assert next(iter(here.browse())).headers == {"n": [1, b"\xff"]}
    with pytest.raises(MessageError, match="a key is text"):
        there.publish(b"x", unique=1.5)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="a publish knows no color"):
        there.publish(b"x", unique="x", color="red")  # type: ignore[call-arg]
    _ack(there)
    assert stored(there, unique="k")


def test_a_client_of_the_server_uses_the_plugins_header(tmp_path: Path) -> None:
    with served(tmp_path / "data") as there, there.channel() as channel:
        channel.queue_declare("q", durable=True, arguments=DEDUPLICATES)
        channel.confirm_delivery()
        for body, key in ((b"a", "k"), (b"b", "k"), (b"c", "l")):
            properties = pika.BasicProperties(headers=header(key), delivery_mode=2)
            channel.basic_publish("", "q", body, properties, mandatory=True)  # raises if it is nacked or returned
        assert bodies(there.node.queue("q", passive=True)) == [b"a", b"c"]


def test_kombus_headers_lead_there_too(tmp_path: Path) -> None:
    with kombu.Connection(f"warren://{tmp_path}/data", transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue("q", queue_arguments=DEDUPLICATES)(connection.default_channel)
        queue.declare()
        producer = connection.Producer()
        for number in range(2):
            producer.publish({"n": number}, routing_key="q", headers=header("k"))
        message = queue.get()
        assert message is not None
        assert message.payload == {"n": 0}
        assert queue.get() is None
        message.ack()
        producer.publish({"n": 2}, routing_key="q", headers=header("k"))
        assert queue.get().payload == {"n": 2}
