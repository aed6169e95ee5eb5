"""Containers are read as a broker would deliver them over AMQP 0-9-1.

``data/message-containers.json`` holds terms that the modules of RabbitMQ 3.13.7 and 4.2.0 made of messages, as they
would be stored, and what the same modules then hand to an AMQP 0-9-1 client. All other terms are made by hand, after
the source of 3.13 to 4.3, because no directory of such a version was at hand.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.classic_tools import V2QueueOnDisk, msg_id
from warren.queue_index.index.terms import bodies_of
from warren.queue_index.message import amqp10
from warren.queue_index.message.amqp10 import NULL, encode_section
from warren.queue_index.message.amqp_tables import LongInteger, LongString, Timestamp
from warren.queue_index.message.message_format import Message, decode_message
from warren.queue_index.message.message_sizes import container_sizes
from warren.queue_index.properties import Properties, decode_properties, encode_properties
from warren.queue_index.queue.run import IN_RAM, Batch, Run
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.classic.needed_body import contents_of
from warren.salvage.envelopes import Envelopes
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.shovel.letter import from_term
from warren.storage.erlang_terms import Atom, decode, encode
from warren.storage.errors import MessageError

Term = Any
NONE, UNDEFINED = Atom("none"), Atom("undefined")
ID = bytes(range(16))
X, RK, D, P, TS, TTL, DEATHS = (Atom(name) for name in ("x", "rk", "d", "p", "ts", "ttl", "deaths"))
ADDRESS = {X: b"logs", RK: [b"info", b"copy"], Atom("id"): ID, Atom("rts"): 1_700_000_000_000}

MADE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "message-containers.json").read_text("utf-8"))


def container(protocol: str, data: Term, annotations: Term | None = None) -> bytes:
    return encode((Atom("mc"), Atom(protocol), data, ADDRESS | (annotations or {})))


def content(properties: Properties, body: bytes = b"body") -> Term:
    """As mc_amqpl has it in a queue."""
    fragments = [body] if body else []
    framing = Atom("rabbit_framing_amqp_0_9_1")
    return (Atom("content"), 60, NONE, encode_properties(properties), framing, fragments)


def of_amqpl(properties: Properties, annotations: Term | None = None) -> Message:
    return decode_message(container("mc_amqpl", content(properties), annotations))


def sizes_of(term: bytes) -> tuple[int, int]:
    """What the broker counts for metadata and payload."""
    parts: Any = decode(term)
    return container_sizes(parts[1], parts[2])


# ── what a broker's modules made ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("made", MADE, ids=[made["what"] for made in MADE])
def test_a_container_is_read_as_the_broker_would_deliver_it(made: dict[str, Any]) -> None:
    term = bytes.fromhex(made["term"])
    found, delivered = decode_message(term), decode_properties(bytes.fromhex(made["properties"]))
    if delivered.delivery_mode is None and made["what"].startswith("3.13"):  # as 4.x does for persistent messages
        delivered = attrs.evolve(delivered, delivery_mode=2 if found.persistent else None)
    assert found.properties == delivered
    assert repr(found.properties) == repr(delivered)  # the order of the headers, and their types
    assert found.body == bytes.fromhex(made["body"])
    assert (found.exchange, found.routing_keys) == (b"orders", (b"new", b"copy"))
    assert found.msg_id == b"0123456789abcdef"
    assert contents_of(term).payload_bytes == made["payload_bytes"]
    assert sizes_of(term) == (made["metadata_bytes"], made["payload_bytes"])


# ── AMQP 0-9-1 ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_says_what_a_basic_message_says_but_for_the_vhost() -> None:
    properties = Properties(content_type="text/plain", delivery_mode=2, headers={"b": 1, "a": "x"}, timestamp=5)
    found = of_amqpl(properties, {TS: 5000})
    assert found == Message(
        msg_id=ID,
        vhost=b"",
        exchange=b"logs",
        routing_keys=(b"info", b"copy"),
        properties=properties,
        body=b"body",
        persistent=True,
        counted_bytes=None,
        encoded_properties=encode_properties(properties),
    )
    assert list(found.properties.headers or {}) == ["a", "b"]


def test_decoded_properties_and_several_fragments() -> None:
    basic = (Atom("P_basic"), b"text/plain", UNDEFINED, [(b"n", Atom("long"), 7)], 1, *[UNDEFINED] * 10)
    data = (Atom("content"), 60, basic, NONE, NONE, [b"d", b"c", b"ab"])
    term = container("mc_amqpl", data, {D: False})
    found = decode_message(term)
    assert (found.body, found.persistent) == (b"abcd", False)
    assert found.properties == Properties(content_type="text/plain", headers={"n": 7}, delivery_mode=1)
    assert found.encoded_properties is None
    assert sizes_of(term) == (100, 4)


def test_without_an_id_and_an_address() -> None:
    data = content(Properties(delivery_mode=2), b"")
    found = decode_message(encode((Atom("mc"), Atom("mc_amqpl"), data, {RK: [b"key"], Atom("id"): UNDEFINED})))
    assert (found.msg_id, found.exchange, found.routing_keys, found.body) == (b"", b"", (b"key",), b"")


def test_the_expiration_is_what_the_annotations_say() -> None:
    told = Properties(expiration="60000", delivery_mode=2)
    assert of_amqpl(told, {TTL: 60000}).properties.expiration == "60000"
    assert of_amqpl(told, {TTL: 5}).properties.expiration == "5"
    assert of_amqpl(told).properties.expiration == "60000"
    dead = of_amqpl(told, {TTL: UNDEFINED})
    assert dead.properties.expiration is None
    assert dead.encoded_properties is None


def test_the_timestamp_is_what_the_annotations_say() -> None:
    assert of_amqpl(Properties(timestamp=9), {TS: 8999}).properties.timestamp == 8
    assert of_amqpl(Properties(timestamp=9)).properties.timestamp is None


def test_priority_and_mode_are_the_messages_own_where_it_has_them() -> None:
    assert of_amqpl(Properties(priority=3, delivery_mode=1), {P: 5}).properties == Properties(
        priority=3, delivery_mode=1
    )
    assert of_amqpl(Properties(), {P: 5}).properties == Properties(priority=5, delivery_mode=2)
    assert of_amqpl(Properties(), {D: False}).properties == Properties()


def death(queue: bytes, reason: str, count: int, when: tuple[int, int], ttl: int | None = None) -> tuple[Term, Term]:
    times = {Atom("first_time"): when[0], Atom("last_time"): when[1]} | ({} if ttl is None else {TTL: ttl})
    return (queue, Atom(reason)), (Atom("death"), b"logs", [b"info"], count, times)


REJECTED = {
    "count": 3,
    "reason": "rejected",
    "queue": "q1",
    "time": 1,
    "exchange": "logs",
    "routing-keys": ["info"],
}
EXPIRED = REJECTED | {"original-expiration": "250", "count": 1, "reason": "expired", "queue": "q2", "time": 2}


def test_deaths_become_the_header_that_a_broker_delivers() -> None:
    """The last death stands first in the list already; the record of 3.13 says when each was."""
    first, second = death(b"q1", "rejected", 3, (1500, 3000)), death(b"q2", "expired", 1, (2000, 9000), 250)
    in_order = {DEATHS: [second, first]}
    by_key = {DEATHS: (Atom("deaths"), first[0], second[0], dict([first, second]))}
    for told in (in_order, by_key):
        found = of_amqpl(Properties(headers={"x-death": "old", "n": 1}, delivery_mode=2), told)
        assert found.properties.headers == {"n": 1, "x-death": [EXPIRED, REJECTED]}
        assert list(found.properties.headers or {}) == ["n", "x-death"]


def test_x_annotations_become_headers_before_those_of_their_names() -> None:
    annotations = {
        b"x-first-death-queue": b"q1",
        b"x-n": 5,
        b"x-yes": True,
        b"x-bytes": b"\xff",
        b"x-list": [1, 300],
        b"timestamp_in_ms": 12,
        b"other": b"no",
        Atom("x-atom"): b"no",
    }
    found = of_amqpl(Properties(headers={"x-n": 1, "z": 2}, delivery_mode=2), annotations)
    assert found.properties.headers == {
        "timestamp_in_ms": 12,
        "x-bytes": LongString(b"\xff"),
        "x-first-death-queue": "q1",
        "x-n": 5,
        "x-yes": True,
        "z": 2,
    }
    assert of_amqpl(Properties()).properties.headers is None
    assert of_amqpl(Properties(headers={})).properties.headers == {}


# ── AMQP 1.0 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def utf8(said: str) -> Term:
    return Atom("utf8"), said.encode()


def symbol(said: str) -> Term:
    return Atom("symbol"), said.encode()


def tagged(kind: str, value: Term) -> Term:
    return Atom(kind), value


UUID = tagged("uuid", bytes.fromhex("6ba7b8109dad11d180b400c04fd430c8"))
FIELDS = {
    0: UUID, 1: tagged("binary", b"guest"), 2: utf8("/to"), 3: utf8("subject"), 4: utf8("/queues/a%20b"),
    5: tagged("ulong", 77), 6: symbol("text/plain"), 7: symbol("gzip"), 9: tagged("timestamp", 5999), 10: utf8("group"),
}  # fmt: skip
AS_PROPERTIES = Properties(
    message_id="urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    user_id="guest",
    reply_to="a b",
    correlation_id="77",
    content_type="text/plain",
    content_encoding="gzip",
    app_id="group",
    delivery_mode=2,
)


def listed(fields: dict[int, Term], missing: Term) -> list[Term]:
    return [fields.get(place, missing) for place in range(13)]


def v1(body: bytes, code: int, *, annotations: Term = (), fields: Term = None, application: Term = None) -> Term:
    """As 4.x stores it: the bare message with its footer, and where its sections begin."""
    bare = b""
    places: list[Term] = []
    for number, said in ((amqp10.PROPERTIES, fields), (amqp10.APPLICATION_PROPERTIES, application)):
        places.append([] if said is None else len(bare))
        if said is not None:
            bare += encode_section(number, said)
    footer = encode_section(amqp10.FOOTER, (Atom("map"), [(symbol("x-sum"), tagged("uint", 7))]))
    return (Atom("v1"), list(annotations), bare + body + footer, *places, len(bare), code)


def data(body: bytes) -> bytes:
    return encode_section(amqp10.DATA, (Atom("binary"), body))


def of_v1(body: bytes = b"", code: int = amqp10.DATA, told: Term | None = None, **sections: Term) -> Message:
    return decode_message(container("mc_amqp", v1(body or data(b"body"), code, **sections), told))


def test_the_properties_of_amqp_1_0() -> None:
    found = of_v1(fields=(Atom("list"), listed(FIELDS, NULL)))
    assert (found.properties, found.body) == (AS_PROPERTIES, b"body")
    with_time = of_v1(fields=(Atom("list"), listed(FIELDS, NULL)), told={TS: 5999})
    assert with_time.properties.timestamp == 5


def test_a_short_list_of_properties() -> None:
    assert of_v1(fields=(Atom("list"), [utf8("id")])).properties == Properties(message_id="id", delivery_mode=2)


def test_several_sections_of_data_are_one_body() -> None:
    assert of_v1(data(b"one ") + data(b"") + data(b"two")).body == b"one two"


def test_a_body_that_is_a_value_stays_encoded_with_what_stands_behind_it() -> None:
    body = encode_section(amqp10.VALUE, utf8("text"))
    found = of_v1(body, amqp10.VALUE, fields=(Atom("list"), [utf8("id")]))
    assert found.body.startswith(body)
    assert len(amqp10.read_sections(found.body)) == 2  # the footer too, as a broker hands it out
    assert found.properties == Properties(message_id="id", type="amqp-1.0", delivery_mode=2)
    assert of_v1(body, amqp10.VALUE).body == found.body


HEADERS: list[tuple[Term, Term]] = [
    (utf8("text"), "text"), (symbol("sym"), "sym"), (tagged("binary", b"\xff"), LongString(b"\xff")),
    (tagged("ubyte", 200), 200), (tagged("ulong", 2**64 - 1), -1), (tagged("int", -5), -5),
    (tagged("long", 2**40), 2**40), (tagged("double", 1.5), 1.5), (tagged("timestamp", 5999), Timestamp(5)),
    (tagged("timestamp", -1), Timestamp(0)),
    (True, True), (tagged("boolean", False), False), (NULL, None), (UNDEFINED, None),
    (tagged("list", [utf8("a"), tagged("uint", 1), NULL]), ["a", 1, None]),
    (tagged("map", [(symbol("k"), tagged("list", [True]))]), {"k": [True]}),
    ((Atom("array"), Atom("utf8"), [utf8("a")]), ["a"]),
    (UUID, "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8"), (tagged("char", 0x20AC), "€"),
]  # fmt: skip
LEFT_OUT: list[Term] = [
    (Atom("as_is"), 0x74, b"abcd"),
    (Atom("described"), symbol("a"), True),
]


@pytest.mark.parametrize(("value", "said"), HEADERS, ids=repr)
def test_application_properties_become_headers(value: Term, said: object) -> None:
    stored = NULL if value == "undefined" else value
    found = of_v1(application=(Atom("map"), [(utf8("h"), stored)])).properties.headers or {}
    assert found == {"h": said}
    assert type(found["h"]) is type(said)


@pytest.mark.parametrize("value", LEFT_OUT, ids=repr)
def test_what_amqp_0_9_1_has_no_word_for_is_left_out(value: Term) -> None:
    inner = (Atom("list"), [value, True])
    found = of_v1(application=(Atom("map"), [(utf8("h"), value), (utf8("l"), inner), (utf8("x" * 256), True)]))
    assert found.properties.headers == {"l": [True]}


def test_annotations_become_headers_or_properties() -> None:
    annotations = [
        (symbol("x-basic-type"), utf8("order")),
        (symbol("x-basic-priority"), tagged("ubyte", 4)),
        (symbol("x-basic-expiration"), utf8("100")),
        (symbol("x-basic-delivery-mode"), tagged("ubyte", 1)),
        (symbol("x-exchange"), utf8("elsewhere")),
        (symbol("x-routing-key"), utf8("key")),
        (symbol("x-cc"), tagged("list", [utf8("copy")])),
        (symbol("x-opt-rabbitmq-received-time"), tagged("timestamp", 5999)),
        (symbol("x-mine"), tagged("uint", 1)),
        (symbol("y"), True),
    ]
    found = of_v1(annotations=annotations, application=(Atom("map"), [(utf8("x-mine"), tagged("uint", 2))]))
    assert found.properties == Properties(
        type="order",
        priority=4,
        expiration="100",
        delivery_mode=1,
        headers={"CC": ["copy"], "timestamp_in_ms": 5999, "x-mine": 1},
    )


def test_deaths_among_the_annotations() -> None:
    def one(queue: str, reason: str, count: int, *, ttl: bool) -> Term:
        pairs = [
            (symbol("queue"), utf8(queue)), (symbol("reason"), symbol(reason)),
            (symbol("count"), tagged("ulong", count)),
            (symbol("first-time"), tagged("timestamp", 1500 if queue == "q1" else 2000)),
            (symbol("last-time"), tagged("timestamp", 3000)), (symbol("exchange"), utf8("logs")),
            (symbol("routing-keys"), (Atom("array"), Atom("utf8"), [utf8("info")])),
        ]  # fmt: skip
        return tagged("map", [(symbol("ttl"), tagged("uint", 250)), *pairs] if ttl else pairs)

    deaths = [one("q2", "expired", 1, ttl=True), one("q1", "rejected", 3, ttl=False)]
    annotations = [(symbol("x-opt-deaths"), (Atom("array"), Atom("map"), deaths))]
    assert of_v1(annotations=annotations).properties.headers == {"x-death": [EXPIRED, REJECTED]}


def test_ids_that_do_not_fit_become_headers() -> None:
    found = of_v1(fields=(Atom("list"), listed({0: tagged("binary", b"\x00id"), 5: utf8("c" * 256)}, NULL))).properties
    assert (found.message_id, found.correlation_id) == (None, None)
    assert found.headers == {"x-message-id": b"\x00id", "x-correlation-id": "c" * 256}


def test_a_user_id_that_is_no_text_is_dropped() -> None:
    for user in (b"\xff", b"a\0b", b"u" * 256):
        assert of_v1(fields=(Atom("list"), listed({1: tagged("binary", user)}, NULL))).properties.user_id is None


def msg(body: Term, *, header: Term = UNDEFINED, properties: Term = UNDEFINED, application: Term = ()) -> Term:
    """As 3.13 stores it."""
    annotations = [(symbol("x-mine"), tagged("uint", 1))]
    return (Atom("msg"), header, [], annotations, properties, list(application), body, [])


def test_the_decoded_form_of_3_13_says_the_same() -> None:
    header = (Atom("v1_0.header"), True, tagged("ubyte", 4), tagged("uint", 250), UNDEFINED, tagged("uint", 0))
    properties = (Atom("v1_0.properties"), *listed(FIELDS, UNDEFINED))
    body = [(Atom("v1_0.data"), [b"one ", [b"t", 119], b"o"]), (Atom("v1_0.data"), b"!")]
    term = container("mc_amqp", msg(body, header=header, properties=properties, application=[(utf8("h"), True)]))
    found = decode_message(term)
    assert found.body == b"one two!"
    assert found.properties == Properties(
        **{name: getattr(AS_PROPERTIES, name) for name in ("message_id", "user_id", "reply_to", "correlation_id")},
        content_type="text/plain",
        content_encoding="gzip",
        app_id="group",
        delivery_mode=2,
        priority=4,
        expiration="250",
        headers={"h": True, "x-mine": 1},
    )


def test_a_value_and_sequences_of_3_13_are_encoded() -> None:
    value = (Atom("v1_0.amqp_value"), utf8("text"))
    found = decode_message(container("mc_amqp", msg(value)))
    assert (found.body, found.properties.type) == (bytes.fromhex("005377a10474657874"), "amqp-1.0")
    sequence = (Atom("v1_0.amqp_sequence"), [tagged("uint", 0), True])
    found = decode_message(container("mc_amqp", msg([sequence, sequence])))
    assert found.body == bytes.fromhex("005376c003024341") * 2


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def mqtt(qos: int, props: Term, payload: Term = b"body") -> Term:
    return (Atom("mqtt_msg"), False, qos, b"a/b", False, 1, payload, props, UNDEFINED)


def test_mqtt() -> None:
    props = {
        Atom("Content-Type"): b"text/plain",
        Atom("Correlation-Data"): b"c1",
        Atom("Response-Topic"): b"a/+/b",
        Atom("User-Property"): [(b"k", b"v"), (b"k", b"w"), (b"x" * 256, b"")],
        Atom("Message-Expiry-Interval"): 5,
        Atom("Payload-Format-Indicator"): 1,
    }
    term = container("mc_mqtt", mqtt(1, props, [b"bo", [b"dy"]]), {TTL: 5000, TS: 9000})
    found = decode_message(term)
    assert found.properties == Properties(
        content_type="text/plain",
        correlation_id="c1",
        expiration="5000",
        delivery_mode=2,
        timestamp=9,
        headers={"k": "v", "x-reply-to-topic": "a.*.b"},
    )
    assert found.body == b"body"
    assert decode_message(container("mc_mqtt", mqtt(0, {}), {D: False})).properties == Properties(delivery_mode=1)
    odd = {Atom("Correlation-Data"): b"\xff", Atom("Content-Type"): "€".encode()}
    assert decode_message(container("mc_mqtt", mqtt(1, odd))).properties == Properties(
        delivery_mode=2, headers={"x-correlation-id": LongString(b"\xff")}
    )


# ── invalid containers ───────────────────────────────────────────────────────────────────────────────────────────────

SOUND = content(Properties(delivery_mode=2))
REFUSED: dict[str, tuple[str, Term, Term]] = {
    "another protocol": ("mc_strange", SOUND, {}),
    "an amqpl that is no content": ("mc_amqpl", b"", {}),
    "properties that are cut short": ("mc_amqpl", (Atom("content"), 60, NONE, b"\x80", NONE, [b""]), {}),
    "no properties": ("mc_amqpl", (Atom("content"), 60, NONE, NONE, NONE, [b""]), {}),
    "a body that is text": ("mc_amqpl", (*SOUND[:5], [[1, 2]]), {}),
    "an amqp of no known form": ("mc_amqp", (Atom("v2"), [], b""), {}),
    "a v1 whose body stands behind its end": ("mc_amqp", (Atom("v1"), [], b"ab", [], [], 3, 0x77), {}),
    "a v1 whose bytes are none": ("mc_amqp", (Atom("v1"), [], b"ab", [], [], 0, 0x75), {}),
    "a v1 with annotations that are no pairs": ("mc_amqp", (Atom("v1"), [1000, 1], data(b""), [], [], 0, 0x75), {}),
    "a msg with a strange body": ("mc_amqp", msg(b"body"), {}),
    "a msg with a strange section": ("mc_amqp", msg([(Atom("v1_0.footer"), [])]), {}),
    "a msg with another record for a header": ("mc_amqp", msg([], header=(Atom("v1_0.footer"), [])), {}),
    "an mqtt that is no message": ("mc_mqtt", b"", {}),
    "an mqtt with a strange payload": ("mc_mqtt", mqtt(1, {}, [1000]), {}),
    "an exchange that is no binary": ("mc_amqpl", SOUND, {X: 5}),
    "routing keys that are none": ("mc_amqpl", SOUND, {RK: [5000]}),
    "no routing key": ("mc_amqpl", SOUND, {RK: []}),
    "an id of 3 bytes": ("mc_amqpl", SOUND, {Atom("id"): b"abc"}),
    "a persistence that is none": ("mc_amqpl", SOUND, {D: 5}),
    "deaths that are none": ("mc_amqpl", SOUND, {DEATHS: [5000]}),
    "a death that is none": ("mc_amqpl", SOUND, {DEATHS: [((b"q", Atom("rejected")), b"")]}),
    "a death without its times": (
        "mc_amqpl",
        SOUND,
        {DEATHS: [(death(b"q", "r", 1, (1, 1))[0], (*death(b"q", "r", 1, (1, 1))[1][:4], {}))]},
    ),
}


@pytest.mark.parametrize(("protocol", "content_", "annotations"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_message_is_refused(protocol: str, content_: Term, annotations: Term) -> None:
    with pytest.raises(MessageError):
        decode_message(container(protocol, content_, annotations))


def test_another_protocol_is_named() -> None:
    with pytest.raises(MessageError, match="mc_strange"):
        decode_message(container("mc_strange", SOUND))


ALL = {
    "amqpl": container(
        "mc_amqpl",
        content(Properties(headers={"a": [1, {"b": "c"}]}, timestamp=5, delivery_mode=2)),
        {TS: 5000, DEATHS: [death(b"q", "rejected", 3, (1500, 3000), 5)], b"x-a": b"b"},
    ),
    "v1": container(
        "mc_amqp",
        v1(data(b"body"), amqp10.DATA, annotations=[(symbol("x-a"), tagged("list", [True]))],
           fields=(Atom("list"), listed(FIELDS, NULL)), application=(Atom("map"), [(utf8("h"), UUID)])),
    ),
    "msg": container("mc_amqp", msg((Atom("v1_0.amqp_value"), tagged("list", [(Atom("array"), Atom("int"), [])])))),
    "mqtt": container("mc_mqtt", mqtt(1, {Atom("User-Property"): [(b"k", b"v")], Atom("Correlation-Data"): b"c"})),
}  # fmt: skip


@pytest.mark.parametrize("term", ALL.values(), ids=ALL.keys())
def test_every_cut_is_refused(term: bytes) -> None:
    decode_message(term)
    for size in range(len(term)):
        with pytest.raises(MessageError):
            decode_message(term[:size])


@pytest.mark.parametrize("term", ALL.values(), ids=ALL.keys())
def test_a_changed_bit_is_read_or_refused(term: bytes) -> None:
    for place in range(8, 8 * len(term), 5):
        changed = bytearray(term)
        changed[place // 8] ^= 1 << place % 8
        try:
            message = decode_message(bytes(changed))
            Envelopes().split(bytes(changed))
        except MessageError:
            continue
        assert isinstance(message.body, bytes)


# ── all that takes messages ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("term", ALL.values(), ids=ALL.keys())
def test_all_that_takes_messages_takes_containers(term: bytes) -> None:
    message = decode_message(term)
    assert bodies_of(Run(0, Batch(1, b"", 0, 0, [term]), 0, 1, IN_RAM), None) == [message.body]
    envelope, body = Envelopes().split(term)
    said = json.loads(b"{%b}" % envelope.json.rstrip(b", "))
    assert (said["exchange"], said["routing_keys"]) == ("logs", ["info", "copy"])
    assert (envelope.exchange, envelope.routing_keys, bytes(body)) == ("logs", ["info", "copy"], message.body)
    letter = from_term(term, 0, (0, 0))
    assert (letter.exchange, letter.routing_keys, letter.body) == (b"logs", (b"info", b"copy"), message.body)
    assert letter.properties == encode_properties(message.properties)
    found = contents_of(term)
    assert (found.problem, found.msg_id, found.persistent) == (None, ID, True)


def test_a_letter_keeps_the_properties_that_the_publisher_sent() -> None:
    """A number in 64 bits stays one; unless the annotations say something else of it."""
    sent = bytes.fromhex("3000" + "0000000b" + "016e6c" + "0000000000000007" + "02")
    data = (*content(Properties())[:3], sent, NONE, [b"body"])
    assert from_term(container("mc_amqpl", data), 0, (0, 0)).properties == sent
    changed = from_term(container("mc_amqpl", data, {TTL: 5}), 0, (0, 0)).properties
    assert changed == encode_properties(Properties(headers={"n": LongInteger(7)}, delivery_mode=2, expiration="5"))


def test_a_payload_is_counted_as_the_broker_counts_it() -> None:
    annotated = v1(data(b"body"), amqp10.DATA, annotations=[(symbol("x-a"), True)])
    term = container("mc_amqp", annotated)
    assert contents_of(term).payload_bytes == len(annotated[2])
    assert sizes_of(term) == (100, len(annotated[2]))
    assert contents_of(container("mc_amqp", msg([(Atom("v1_0.data"), b"body")]))).payload_bytes == 4
    assert contents_of(container("mc_amqp", msg((Atom("v1_0.amqp_value"), True)))).payload_bytes == 0
    assert contents_of(container("mc_amqpl", SOUND)).payload_bytes == 4
    props = {Atom("User-Property"): [(b"kk", b"v")], Atom("Content-Type"): b"text"}
    assert sizes_of(container("mc_mqtt", mqtt(1, props)))[0] == len("a/bkkvtext")


def test_a_queue_of_containers_is_exported_and_sound(tmp_path: Path) -> None:
    """In the queue's own store and in the vhost's, between what a compaction inside a file left."""
    queue = V2QueueOnDisk(tmp_path)
    dotted = v1(data(b"in dots"), amqp10.DATA, annotations=[(symbol("x-a"), True)])
    forms = [("mc_amqpl", content(Properties(), b"plain"), b"plain"), ("mc_amqp", dotted, dotted[2])]
    for position, (protocol, data_, counted) in enumerate([*forms, *forms]):
        if position >= 2:
            with (queue.vhost / "msg_store_persistent" / "0.rdq").open("ab") as file:
                file.write(bytes(50) if position == 2 else b"the rest of a dead one\xff")
        term = container(protocol, data_, {Atom("id"): msg_id(position)})
        queue.publish(position, counted, stored=position >= 2, encoded=term)
    lines: list[bytes | bytearray] = []
    with open_source(str(tmp_path)) as source:
        done = export_source(source, Selection(), lines.append, lambda _: None)
        kinds = {(finding.kind, finding.severity) for finding in verify_source(source) if finding.kind != UNCOUNTED}
    said = [json.loads(line) for line in b"".join(lines).splitlines()]
    assert [base64.b64decode(one["body"]) for one in said] == [b"plain", b"in dots"] * 2
    assert [one["msg_id"] for one in said] == [msg_id(position).hex() for position in range(4)]
    assert [one["headers"] for one in said] == [None, {"x-a": True}] * 2
    assert {(one["vhost"], one["exchange"]) for one in said} == {("/", "logs")}
    assert (done.messages, done.problems) == (4, 0)
    assert kinds == {("leftover garbage between records", "leftover")}


@given(st.binary(max_size=40), st.integers(0, 255), st.booleans())
def test_any_bare_message_is_read_or_refused(bare: bytes, at: int, is_data: bool) -> None:
    code = amqp10.DATA if is_data else amqp10.VALUE
    try:
        found = decode_message(container("mc_amqp", (Atom("v1"), [], bare, [], [], at % 41, code)))
    except MessageError:
        return
    assert is_data or found.properties.type == "amqp-1.0"
