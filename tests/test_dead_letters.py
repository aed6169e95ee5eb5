"""What a dead letter says of its deaths."""

from __future__ import annotations

from typing import Any

import pytest

import warren
from tests.support.runtime_tools import hand_node
from warren.actors.engines.queue.dead_letters import DeadLetterBuilder, Reason, death_headers, is_cycle
from warren.actors.engines.queue.effects import DeadLetter
from warren.queue_index.message.amqp_tables import LongInteger, LongString, Timestamp
from warren.queue_index.message.message_format import Message, decode_message, encode_message
from warren.queue_index.properties import Properties, decode_properties


def message(
    properties: Properties | None = None, *, keys: tuple[bytes, ...] = (b"key",), body: bytes = b"x"
) -> Message:
    chosen = properties or Properties(delivery_mode=2)
    return Message(bytes(16), b"/", b"exchange", keys, chosen, body, True)


def buried(
    *messages: Message, queue: str = "q", key: str | None = None, reason: Reason = "expired", time_s: int = 1000
) -> list[DeadLetter]:
    return DeadLetterBuilder(queue, "dlx", key, reason, time_s).build(messages)


def died(deaths: list[tuple[str, Reason]]) -> dict[str, Any]:
    """Headers of a message that died there, one after the other."""
    properties = Properties()
    for queue, reason in deaths:
        headers = death_headers(
            properties, queue=queue, reason=reason, time_s=5, exchange=b"", routing_key=queue.encode()
        )
        properties = Properties(headers=headers)
    return dict(properties.headers or {})


def counted(headers: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]]


def test_first_death() -> None:
    (letter,) = buried(message(Properties(delivery_mode=2, expiration="60", headers={"z": 1, "a": 2}, type="t")))
    assert list(letter.headers) == [
        "a",
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "z",
    ]
    assert letter.headers["x-death"] == [
        {
            "count": 1,
            "reason": "expired",
            "queue": "q",
            "time": Timestamp(1000),
            "exchange": "exchange",
            "routing-keys": ["key"],
            "original-expiration": "60",
        }
    ]
    assert letter.headers["x-first-death-reason"] == "expired"
    properties = decode_properties(letter.envelope.properties)
    assert (properties.expiration, properties.type, properties.delivery_mode) == (None, "t", 2)
    assert (letter.envelope.exchange, letter.envelope.routing_keys, letter.routing_keys) == (
        b"dlx",
        (b"key",),
        ("key",),
    )
    assert properties.headers == letter.headers


def test_what_is_written_is_read_again_and_counts_in_64_bits() -> None:
    (letter,) = buried(message())
    term = encode_message(letter.envelope, b"i" * 16, letter.body)
    again = decode_message(term)
    assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in letter.envelope.properties
    assert again.properties.headers == letter.headers
    assert isinstance(letter.headers["x-death"][0]["count"], LongInteger)


def test_counts_that_were_read_are_written_wide_again() -> None:
    first, second = buried(message()), buried(message(), queue="r")
    again = decode_message(encode_message(second[0].envelope, b"i" * 16, b""))
    (third,) = buried(Message(bytes(16), b"/", b"", (b"k",), again.properties, b"", True), queue="q")
    assert all(isinstance(death["count"], LongInteger) for death in third.headers["x-death"])
    assert len(third.headers["x-death"]) == 2
    assert first[0].headers["x-first-death-queue"] == "q"


def test_same_death_counts_on_and_comes_to_the_front() -> None:
    assert counted(died([("a", "expired"), ("b", "rejected"), ("a", "expired")])) == [
        ("a", "expired", 2),
        ("b", "rejected", 1),
    ]
    assert counted(died([("a", "expired"), ("a", "rejected")])) == [("a", "rejected", 1), ("a", "expired", 1)]


def test_two_tables_change_their_order_when_a_third_joins_them() -> None:
    headers = died([("a", "expired"), ("b", "expired"), ("c", "expired")])
    assert counted(headers) == [("c", "expired", 1), ("a", "expired", 1), ("b", "expired", 1)]
    assert headers["x-first-death-queue"] == "a"


def test_header_that_is_no_list_is_begun_anew() -> None:
    properties = Properties(headers={"x-death": "text"})
    headers = death_headers(properties, queue="q", reason="maxlen", time_s=1, exchange=b"e", routing_key=b"k")
    assert counted(headers) == [("q", "maxlen", 1)]
    assert "x-first-death-queue" not in headers


def test_key_of_the_queues_own_forgets_the_others() -> None:
    headers: dict[str, Any] = {"CC": ["copy", LongString(b"\xff")], "other": 1}
    one = message(Properties(headers=headers), keys=(b"key", b"copy", b"\xff", b"blind"))
    (kept,) = buried(one)
    assert kept.routing_keys == ("key", "copy", "\udcff", "blind")
    assert kept.headers["x-death"][0]["routing-keys"] == ["key", "copy", LongString(b"\xff")]
    assert "CC" in kept.headers
    (own,) = buried(one, key="own")
    assert (own.routing_keys, own.envelope.routing_keys) == (("own",), (b"own",))
    assert "CC" not in own.headers
    assert own.headers["x-death"][0]["routing-keys"] == ["key", "copy", LongString(b"\xff")]


def test_messages_alike_share_an_envelope_and_others_do_not() -> None:
    letters = buried(
        message(body=b"1"), message(body=b"2"), message(Properties(priority=4)), message(keys=(b"another",))
    )
    assert letters[0].envelope is letters[1].envelope
    assert len({letter.envelope for letter in letters}) == 3
    assert [letter.body for letter in letters] == [b"1", b"2", b"x", b"x"]
    assert [letter.priority for letter in letters] == [0, 0, 4, 0]


def test_cycle_is_broken_unless_somebody_rejected() -> None:
    assert not is_cycle(None, "a")
    assert not is_cycle({"x-death": "text"}, "a")
    assert is_cycle(died([("a", "expired")]), "a"), "back into the queue where it has just expired"
    assert not is_cycle(died([("a", "expired")]), "b")
    assert is_cycle(died([("a", "expired"), ("b", "maxlen")]), "a")
    assert not is_cycle(died([("a", "expired"), ("b", "rejected")]), "a")
    assert not is_cycle(died([("a", "rejected")]), "a")
    assert not is_cycle({"x-death": ["no table", {"queue": "a", "reason": "expired"}]}, "a")


def test_encoded_properties_are_as_they_were_but_for_headers() -> None:
    (letter,) = buried(message(Properties(correlation_id="c", priority=1, timestamp=5)))
    properties = decode_properties(letter.envelope.properties)
    assert (properties.correlation_id, properties.priority, properties.timestamp) == ("c", 1, 5)


@pytest.mark.parametrize(("mode", "told"), [("default", "60000"), ("lazy", None)])
def test_a_lazy_queue_does_not_tell_the_expiration_that_a_message_had(mode: str, told: str | None) -> None:
    scene = hand_node()
    dead = scene.node.queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-queue-mode": mode}
    queue = scene.node.queue("q", arguments={**arguments, "x-message-ttl": 1000})
    for body in (b"rejected", b"expired"):
        queue.publish(body, expiration=60.0)
    rejected = queue.get()
    assert rejected is not None
    rejected.reject()
    scene.advance(2.0)
    headers: list[Any] = [message.properties.headers for message in dead.browse()]
    deaths = [header["x-death"][0] for header in headers]
    assert [(death["reason"], death.get("original-expiration")) for death in deaths] == [
        ("rejected", told),
        ("expired", told),
    ]
    scene.node.close()


@pytest.mark.parametrize("sync", ["os", "group", "always"])
@pytest.mark.parametrize("body", [b"small", bytes(5000)], ids=["embedded", "in the store"])
def test_a_clean_close_leaves_a_dead_letter_in_one_queue(sync: str, body: bytes) -> None:
    scene = hand_node(sync=sync)
    scene.node.queue("dead")
    work = scene.node.queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    work.publish_many([body] * 5)
    for _ in range(5):
        delivery = work.get()
        assert delivery is not None
        delivery.reject()
    scene.node.close()

    again = hand_node(scene.files)
    assert (len(again.node.queue("work", passive=True)), len(again.node.queue("dead", passive=True))) == (0, 5)
    again.node.close()


def test_dead_letters_without_a_target_are_logged_at_the_declaration_and_once_when_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = hand_node()
    node = scene.node
    node.queue("dead")
    node.queue("fine", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    node.queue("by its own key", arguments={"x-dead-letter-exchange": ""})
    assert not caplog.records
    work = node.queue("work", retry=warren.Retry(limit=1, dead_letters="typo"))
    node.queue("other", arguments={"x-dead-letter-exchange": "missing"})
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "queue 'typo', which does not exist" in texts[0]
    assert "exchange 'missing', which does not exist" in texts[1]
    caplog.clear()
    work.publish_many([b"1", b"2", b"3"]).wait()
    for _ in range(3):
        delivery = work.get()
        assert delivery is not None
        delivery.reject()
        scene.run()
    [dropped] = [record.getMessage() for record in caplog.records]
    assert "exchange '' has no route for routing key 'typo'" in dropped
    node.close()


def test_a_missing_target_that_a_policy_names_is_logged_when_it_is_set_and_once_when_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = hand_node()
    node = scene.node
    work = node.queue("work")
    fine = {"dead-letter-exchange": "amq.direct", "alternate-exchange": "amq.fanout", "message-ttl": 1}
    node.set_policy("fine", "fine", fine)
    assert not caplog.records
    node.set_policy("lost", "^work$", {"dead-letter-exchange": "", "dead-letter-routing-key": "typo"})
    node.set_policy("nowhere", "^orders$", {"alternate-exchange": "missing"}, apply_to="exchanges")
    node.exchange("orders", "fanout")
    work.publish_many([b"1", b"2"]).wait()
    for _ in range(2):
        delivery = work.get()
        assert delivery is not None
        delivery.reject()
        scene.run()
    assert [record.getMessage() for record in caplog.records] == [
        "policy 'lost' in vhost '/': dead letters go to queue 'typo', which does not exist; "
        "they are dropped until it is declared",
        "policy 'nowhere' in vhost '/': messages without a destination go to exchange 'missing', which does not exist; "
        "they are dropped until it is declared",
        "exchange 'orders' in vhost '/': messages without a destination go to exchange 'missing', "
        "which does not exist; they are dropped until it is declared",
        "queue 'work' in vhost '/': a message is dropped: exchange '' has no route for routing key 'typo'; "
        "the next ones are not logged",
    ]
    node.close()
