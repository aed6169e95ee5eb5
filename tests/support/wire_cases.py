"""What a client may send, byte by byte: each method with good, bad and cut arguments, each kind of value and property.

Each :class:`Case` has a connection and a queue of its own. :func:`reply` is what a server answers, in one form: names
that the server makes, and what it says of itself, are left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, Literal

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from tests.support.wire import PROTOCOL_HEADER, START_OK, Wire, frame, method

Stage = Literal["header", "start", "tune", "open", "running"]

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
_BREAK: Final = re.compile(r"(?<=,)\\n *")
_SELF: Final = re.compile(r"'server_properties': \{.*\}\}?, ")
_TUNE_OK: Final = c.Connection.TuneOk(2047, 131072, 0)
_OPEN: Final = c.Connection.Open("/")
_PUBLISHED: Final = 3
"""Messages in the queue of each case."""


@attrs.frozen
class Case:
    """What is sent at one stage of a connection. ``wire-0000`` stands for the name of the case's own queue."""

    name: str
    data: bytes
    stage: Stage = "running"


def short(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def raw(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    """A method's frame with any arguments."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish(
    properties: bytes = b"\0\0",
    body: bytes = b"m",
    *,
    routing_key: str = "wire-0000",
    size: int | None = None,
    flags: int = 0,
    weight: int = 0,
) -> bytes:
    """A message's frames."""
    header = struct.pack(">HHQ", 60, weight, len(body) if size is None else size) + properties
    return (
        raw(60, 40, b"\0\0" + short("") + short(routing_key) + bytes([flags]))
        + frame(HEADER, 1, header)
        + (frame(BODY, 1, body) if body else b"")
    )


GET: Final = method(c.Basic.Get(queue="wire-0000"))

METHODS: Final[list[Method]] = [
    c.Channel.Flow(True),
    c.Channel.Close(200, "bye", 0, 0),
    c.Exchange.Declare(exchange="wire-0000", exchange_type="topic", auto_delete=True),
    c.Exchange.Delete(exchange="wire-0000"),
    c.Exchange.Bind(destination="amq.fanout", source="amq.direct", routing_key="wire-0000"),
    c.Exchange.Unbind(destination="amq.fanout", source="amq.direct", routing_key="wire-0000"),
    c.Queue.Declare(queue="wire-0000.new", exclusive=True),
    c.Queue.Bind(queue="wire-0000", exchange="amq.topic", routing_key="#"),
    c.Queue.Unbind(queue="wire-0000", exchange="amq.topic", routing_key="#"),
    c.Queue.Purge(queue="wire-0000"),
    c.Queue.Delete(queue="wire-0000"),
    c.Basic.Qos(0, 10, False),
    c.Basic.Consume(queue="wire-0000", consumer_tag="tag"),
    c.Basic.Cancel("tag"),
    c.Basic.Get(queue="wire-0000"),
    c.Basic.Ack(1),
    c.Basic.Nack(1),
    c.Basic.Reject(1, True),
    c.Basic.Recover(True),
    c.Confirm.Select(),
    c.Tx.Select(),
    c.Tx.Commit(),
    c.Tx.Rollback(),
]
"""Those that a client sends on a channel, but for what has content. A ``channel.close-ok`` that is not due, and what
comes together with a consume or a commit that it contradicts, RabbitMQ answers now in one way and now in another."""
OTHERS: Final[dict[str, bytes]] = {
    "basic.recover-async": raw(60, 100, b"\1"),
    "basic.publish": raw(60, 40, b"\0\0" + short("") + short("wire-0000") + b"\0"),
    "access.request": raw(30, 10, short("/data") + b"\x1f"),
    "connection.update-secret": raw(10, 70, long(b"secret") + short("why"), 0),
    "connection.blocked": raw(10, 60, short("why"), 0),
    "connection.unblocked": raw(10, 61, b"", 0),
    "connection.start-ok": method(START_OK, 0),
    "connection.secure-ok": raw(10, 21, long(b"x"), 0),
    "connection.tune-ok": method(_TUNE_OK, 0),
    "connection.open": method(_OPEN, 0),
    "connection.close": raw(10, 50, struct.pack(">H", 200) + short("bye") + bytes(4), 0),
    "connection.close-ok": raw(10, 51, b"", 0),
    "channel.open": raw(20, 10, short("")),
    "channel.open-ok": raw(20, 11, long(b"")),
    "channel.flow-ok": raw(20, 21, b"\1"),
    "exchange.declare-ok": raw(40, 11),
    "queue.declare-ok": raw(50, 11, short("q") + bytes(8)),
    "basic.consume-ok": raw(60, 21, short("tag")),
    "basic.cancel-ok": raw(60, 31, short("tag")),
    "basic.deliver": raw(60, 60, short("tag") + bytes(8) + b"\0" + short("") + short("wire-0000")),
    "basic.return": raw(60, 50, struct.pack(">H", 312) + short("why") + short("") + short("wire-0000")),
    "basic.get-empty": raw(60, 72, short("")),
    "confirm.select-ok": raw(85, 11),
    "a class that there is not": raw(61, 10),
    "a method that there is not": raw(60, 11),
}


def _cut(data: bytes, at: int) -> bytes:
    """The frame with the first ``at`` bytes of its method's arguments, or without the last ``-at``."""
    kind, channel, size = struct.unpack_from(">BHI", data)
    payload = data[7 : 7 + size]
    arguments = payload[4:]
    return frame(kind, channel, payload[:4] + arguments[:at])


def _of_methods() -> Iterator[Case]:
    encoded = {one.name.lower(): method(one) for one in METHODS} | OTHERS
    for name, data in encoded.items():
        yield Case(name, data)
        yield Case(f"{name} twice", data + data)
        size = struct.unpack_from(">I", data, 3)[0] - 4
        for at in sorted({0, 1, size // 2, size - 1} - {size}):
            if 0 <= at < size:
                yield Case(f"{name} with {at} of {size} bytes", _cut(data, at))
        kind, channel = struct.unpack_from(">BH", data)
        payload = data[7:-1]
        yield Case(f"{name} with a byte more", frame(kind, channel, payload + b"\0"))
        yield Case(f"{name} on the other kind of channel", frame(kind, int(not channel), payload))
        yield Case(f"{name} on a channel that is not open", frame(kind, 7, payload))
        yield Case(f"{name} without its end", data[:-1] + b"\0")


VALUES: Final[dict[str, bytes]] = {
    "t": b"\1", "b": b"\xff", "B": b"\xff", "s": b"\xff\xfe", "u": b"\xff\xfe", "I": b"\xff\xff\xff\xfe",
    "i": b"\xff\xff\xff\xfe", "l": b"\xff" * 7 + b"\xfe", "L": b"\xff" * 7 + b"\xfe", "f": b"\x3f\x80\0\0",
    "d": b"\x3f\xf0" + bytes(6), "D": b"\2\0\0\0\x7b", "S": long(b"text"), "x": long(b"\xff\0"), "V": b"",
    "T": struct.pack(">Q", 1_700_000_000), "F": long(short("n") + b"I\0\0\0\1"), "A": long(b"I\0\0\0\1V"),
}  # fmt: skip
"""By the type that stands before them: all that RabbitMQ knows, but that it has no ``U``."""


def _of_tables() -> Iterator[Case]:
    def declare(table: bytes) -> bytes:
        return raw(50, 10, b"\0\0" + short("wire-0000.table") + b"\4" + long(table))

    def headers(table: bytes) -> bytes:
        return publish(b"\x20\0" + long(table)) + GET * 4

    for where, sent in (("arguments", declare), ("headers", headers)):
        for kind, value in VALUES.items():
            yield Case(f"{where} with a value of type {kind}", sent(short("n") + kind.encode() + value))
            if value:
                yield Case(f"{where} with a cut value of type {kind}", sent(short("n") + kind.encode() + value[:-1]))
        for kind in "UZ\0":
            yield Case(f"{where} with a value of the unknown type {kind!r}", sent(short("n") + kind.encode() + b"\0"))
        yield Case(f"{where} with a name that is cut", sent(b"\5n"))
        yield Case(f"{where} with a name and nothing else", sent(short("n")))
        yield Case(f"{where} with two equal names", sent((short("n") + b"V") * 2))
        yield Case(f"{where} with a name without a byte", sent(short("") + b"V"))
        yield Case(f"{where} with a name that is no UTF-8", sent(short(b"\xff") + b"V"))
        yield Case(f"{where} with a text that is no UTF-8", sent(short("n") + b"S" + long(b"\xff")))
        yield Case(f"{where} with a table in a table", sent(short("n") + b"F" + long(short("m") + b"F" + long(b""))))
        yield Case(f"{where} longer than said", sent(short("n") + b"F\0\0\0\x09" + short("m") + b"V"))


PROPERTIES: Final[dict[str, tuple[int, bytes]]] = {
    "content-type": (15, short("text/plain")),
    "content-encoding": (14, short("utf-8")),
    "headers": (13, long(short("n") + b"V")),
    "delivery-mode": (12, b"\2"),
    "priority": (11, b"\3"),
    "correlation-id": (10, short("7")),
    "reply-to": (9, short("there")),
    "expiration": (8, short("60000")),
    "message-id": (7, short("8")),
    "timestamp": (6, struct.pack(">Q", 1_700_000_000)),
    "type": (5, short("kind")),
    "user-id": (4, short("guest")),
    "app-id": (3, short("app")),
    "cluster-id": (2, short("cluster")),
}


def _of_messages() -> Iterator[Case]:
    for name, (bit, value) in PROPERTIES.items():
        flags = struct.pack(">H", 1 << bit)
        yield Case(f"a message with {name}", publish(flags + value) + GET * 4)
        yield Case(f"a message with {name} cut", publish(flags + value[:-1]) + GET * 4)
        yield Case(f"a message with {name} missing", publish(flags) + GET * 4)
    everything = sum(1 << bit for bit, _ in PROPERTIES.values())
    all_values = b"".join(value for _, value in PROPERTIES.values())
    yield Case("a message with all properties", publish(struct.pack(">H", everything) + all_values) + GET * 4)
    yield Case("a message with a byte after its properties", publish(b"\x10\0\2\0") + GET * 4)
    yield Case("a message with an unknown property", publish(b"\0\2\0") + GET * 4)
    yield Case("a message with more flags", publish(b"\0\1\0\0") + GET * 4)
    yield Case("a message with no flags at all", publish(b"") + GET * 4)
    yield Case("a message with delivery mode 0", publish(b"\x10\0\0") + GET * 4)
    yield Case("a message with delivery mode 3", publish(b"\x10\0\3") + GET * 4)
    for expiration in ("", "-1", "1.5", "x", "0x1", " 1", "1 ", "99999999999999999999"):
        yield Case(f"a message that expires after {expiration!r}", publish(b"\1\0" + short(expiration)) + GET * 4)
    yield Case("a message of another user", publish(b"\0\x10" + short("other")))
    yield Case("a message without a body", publish(body=b"") + GET * 4)
    yield Case("a message with a body that is longer", publish(size=2, body=b"x") + frame(BODY, 1, b"y") + GET * 4)
    yield Case(
        "a message with an empty body frame", publish(size=1, body=b"") + frame(BODY, 1, b"") + frame(BODY, 1, b"x")
    )
    yield Case("a message with a weight", publish(weight=1))
    yield Case("a message to nobody", publish(routing_key="nobody"))
    yield Case("a mandatory message to nobody", publish(b"\x10\0\2", routing_key="nobody", flags=1))
    yield Case("an immediate message", publish(flags=2))
    yield Case("a header without a method", frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 0) + b"\0\0"))
    yield Case(
        "a header of another class",
        raw(60, 40, bytes(4) + b"\0") + frame(HEADER, 1, struct.pack(">HHQ", 50, 0, 0) + b"\0\0"),
    )
    yield Case("a body without a header", frame(BODY, 1, b"x"))
    yield Case("a heartbeat on a channel", frame(HEARTBEAT, 1, b""))
    yield Case("a heartbeat", frame(HEARTBEAT, 0, b""))
    yield Case("a heartbeat with a payload", frame(HEARTBEAT, 0, b"x"))
    yield Case("a frame of an unknown type", frame(5, 1, b"x"))
    yield Case("a frame without a payload", frame(METHOD, 1, b""))


def _of_situations() -> Iterator[Case]:
    consume = method(c.Basic.Consume(queue="wire-0000", consumer_tag="tag"))
    yield Case("a confirm of one message", method(c.Confirm.Select()) + publish())
    yield Case("a confirm of a message to nobody", method(c.Confirm.Select()) + publish(routing_key="nobody"))
    yield Case("consume without a tag", method(c.Basic.Consume(queue="wire-0000")))
    yield Case("consume without an ack", method(c.Basic.Consume(queue="wire-0000", no_ack=True)))
    yield Case("consume without an answer", method(c.Basic.Consume(queue="wire-0000", consumer_tag="tag", nowait=True)))
    yield Case("consume a queue that is not there", method(c.Basic.Consume(queue="nobody")))
    yield Case("consume from no queue", method(c.Basic.Consume(queue="")))
    yield Case("consume and delete the queue", consume + method(c.Queue.Delete(queue="wire-0000")))
    yield Case("ack what was got", GET + method(c.Basic.Ack(1)))
    yield Case("ack twice what was got", GET + method(c.Basic.Ack(1)) * 2)
    yield Case("ack everything where there is nothing", method(c.Basic.Ack(0, True)))
    yield Case("ack nothing in particular", GET + method(c.Basic.Ack(0)))
    yield Case("ack more than was got", GET + method(c.Basic.Ack(2, True)))
    yield Case("nack everything", GET * 2 + method(c.Basic.Nack(0, True, True)) + GET)
    yield Case("reject without requeue", GET + method(c.Basic.Reject(1, False)) + GET)
    yield Case("recover without requeue", GET + method(c.Basic.Recover(False)))
    yield Case("recover with requeue", GET + method(c.Basic.Recover(True)) + GET)
    yield Case("qos with a size", method(c.Basic.Qos(1, 0, False)))
    yield Case("qos of the channel", method(c.Basic.Qos(0, 1, True)) + consume)
    yield Case("flow that stops", method(c.Channel.Flow(False)))
    yield Case("tx, publish, roll back", method(c.Tx.Select()) + publish() + method(c.Tx.Rollback()))
    yield Case("tx after confirm", method(c.Confirm.Select()) + method(c.Tx.Select()))
    yield Case("confirm after tx", method(c.Tx.Select()) + method(c.Confirm.Select()))
    for name in ("amq.x", "x" * 255, "\x00", "a b", "\u20ac", ""):
        queue = method(c.Queue.Declare(queue="wire-0000.2", exclusive=True)).replace(short("wire-0000.2"), short(name))
        queue = frame(METHOD, 1, queue[7:-1])
        yield Case(f"declare a queue named {name[:10]!r}", queue)
        exchange = raw(40, 10, b"\0\0" + short(name) + short("direct") + b"\4" + long(b""))
        yield Case(f"declare an exchange named {name[:10]!r}", exchange)
    yield Case("declare a queue named by no UTF-8", raw(50, 10, b"\0\0" + short(b"\xff") + b"\4" + long(b"")))
    yield Case(
        "declare an exchange of an unknown type",
        raw(40, 10, b"\0\0" + short("wire-0000") + short("no-such-type") + b"\4" + long(b"")),
    )
    yield Case(
        "declare an exchange of no type", raw(40, 10, b"\0\0" + short("wire-0000") + short("") + b"\4" + long(b""))
    )
    for bits in range(32):
        yield Case(
            f"declare a queue with bits {bits:05b}",
            raw(50, 10, b"\0\0" + short("wire-0000.b") + bytes([bits]) + long(b""))
            + method(c.Queue.Delete(queue="wire-0000.b")),
        )
        if not bits & 16:
            yield Case(
                f"declare an exchange with bits {bits:05b}",
                raw(40, 10, b"\0\0" + short("wire-0000.b") + short("direct") + bytes([bits]) + long(b""))
                + raw(40, 20, b"\0\0" + short("wire-0000.b") + b"\0"),
            )
    for bits in range(1, 4):
        yield Case(f"delete a queue with bits {bits:02b}", raw(50, 40, b"\0\0" + short("wire-0000") + bytes([bits])))
    yield Case("bind to an exchange that is not there", method(c.Queue.Bind(queue="wire-0000", exchange="nobody")))
    yield Case("bind to the default exchange", method(c.Queue.Bind(queue="wire-0000", exchange="")))
    yield Case("bind a queue that is not there", method(c.Queue.Bind(queue="nobody", exchange="amq.direct")))
    yield Case(
        "bind without a name", raw(50, 20, b"\0\0" + short("") + short("amq.direct") + short("") + b"\0" + long(b""))
    )
    yield Case("delete the default exchange", method(c.Exchange.Delete(exchange="amq.direct")))
    yield Case("delete the exchange without a name", raw(40, 20, b"\0\0" + short("") + b"\0"))


def _of_openings() -> Iterator[Case]:
    for name, data in {
        "of 0-8": b"AMQP\1\1\x08\0", "of 0-9": b"AMQP\1\1\0\x09", "of 0-9-2": b"AMQP\0\0\x09\2",
        "of 1-0": b"AMQP\0\1\0\0", "of 1-0 with SASL": b"AMQP\3\1\0\0", "of HTTP": b"GET / HT",
        "of a frame": frame(METHOD, 0, b"x"),
    }.items():  # fmt: skip
        yield Case(f"a header {name}", data, "header")
    properties = long(b"")

    def start_ok(mechanism: str, response: bytes, table: bytes = properties) -> bytes:
        return raw(10, 11, table + short(mechanism) + long(response) + short("en_US"), 0)

    close = long(short("capabilities") + b"F" + long(short("authentication_failure_close") + b"t\1"))
    for mechanism, response in [
        ("PLAIN", b""), ("PLAIN", b"\0guest\0guest"), ("PLAIN", b"guest\0guest\0guest"),
        ("PLAIN", b"other\0guest\0guest"),
        ("PLAIN", b"\0guest"), ("PLAIN", b"\0guest\0wrong"), ("PLAIN", b"\0nobody\0guest"), ("PLAIN", b"guest\0guest"),
        ("PLAIN", b"\0\0"), ("PLAIN", b"\0guest\0"), ("PLAIN", b"\0guest\0guest\0"), ("PLAIN", b"\0guest\0gu\0est"),
        ("PLAIN", b"x"), ("AMQPLAIN", b""), ("AMQPLAIN", b"x"), ("EXTERNAL", b""), ("NONE", b""), ("", b""),
        ("AMQPLAIN", short("LOGIN") + b"S" + long(b"guest")),
        ("AMQPLAIN", short("LOGIN") + b"S" + long(b"guest") + short("PASSWORD") + b"S" + long(b"guest")),
        ("AMQPLAIN", short("LOGIN") + b"S" + long(b"guest") + short("PASSWORD") + b"S" + long(b"wrong")),
        ("AMQPLAIN", short("LOGIN") + b"I\0\0\0\1" + short("PASSWORD") + b"S" + long(b"guest")),
    ]:  # fmt: skip
        yield Case(
            f"log in by {mechanism or 'nothing'} with {response!r}", start_ok(mechanism, response, close), "start"
        )
        yield Case(
            f"log in quietly by {mechanism or 'nothing'} with {response!r}", start_ok(mechanism, response), "start"
        )
    whole = method(START_OK, 0)
    yield Case("start-ok on channel 1", start_ok("PLAIN", b"\0guest\0guest").replace(b"\1\0\0", b"\1\0\1", 1), "start")
    yield Case("start-ok that is cut", _cut(whole, 20), "start")
    yield Case("start-ok with a byte more", frame(METHOD, 0, whole[7:-1] + b"\0"), "start")
    yield Case(
        "start-ok in another language",
        raw(10, 11, properties + short("PLAIN") + long(b"\0guest\0guest") + short("xx"), 0),
        "start",
    )
    yield Case("open before start-ok", method(_OPEN, 0), "start")
    yield Case("a channel before start-ok", method(c.Channel.Open()), "start")
    yield Case("a heartbeat before start-ok", frame(HEARTBEAT, 0, b"") + whole, "start")
    for numbers in [(0, 0, 0), (1, 4096, 0), (2048, 131072, 0), (0xFFFF, 131072, 0), (2047, 131073, 0), (2047, 4095, 0),
                    (2047, 1, 0), (2047, 131072, 0xFFFF)]:  # fmt: skip
        yield Case(f"tune-ok with {numbers}", raw(10, 31, struct.pack(">HIH", *numbers), 0) + method(_OPEN, 0), "tune")
    yield Case("tune-ok that is cut", raw(10, 31, b"\0\1", 0), "tune")
    yield Case("open before tune-ok", method(_OPEN, 0), "tune")
    for vhost in ("/", "", "nobody", "\u20ac"):
        yield Case(f"open vhost {vhost!r}", raw(10, 40, short(vhost) + short("") + b"\0", 0), "open")
    yield Case("open that is cut", raw(10, 40, short("/"), 0), "open")
    yield Case("open with a byte more", raw(10, 40, short("/") + short("") + b"\0\0", 0), "open")
    yield Case("a channel before open", method(c.Channel.Open()), "open")


def all_cases() -> list[Case]:
    return [*_of_openings(), *_of_methods(), *_of_tables(), *_of_messages(), *_of_situations()]


# ── what is answered ──────────────────────────────────────────────────────────────────────────────────────────────────

_ENDS: Final[dict[Stage, tuple[str, ...]]] = {
    "header": ("0 Connection.Start", "end"),
    "start": ("0 Connection.Tune", "end"),
    "tune": ("0 Connection.OpenOk", "end"),
    "open": ("0 Connection.OpenOk", "end"),
    "running": ("1 Channel.Close", "end"),
}


def reply(port: int, case: Case, number: int) -> list[str]:
    """What a server answers, frame by frame, until it has nothing more to say. ``number``: the case's own."""
    queue = f"wire-{number:04}"
    with Wire(port) as wire:
        _prepare(wire, case.stage, queue)
        wire.send(_named(case.data, queue))
        if case.stage == "running":
            _ask_until_quiet(wire, queue, asks_for_flow=not case.name.startswith("channel.flow"))
        else:
            wire.read_to(*_ENDS[case.stage])
        return [_normalised(one, queue) for one in wire.told]


def _ask_until_quiet(wire: Wire, queue: str, *, asks_for_flow: bool) -> None:
    """Ask for answers that change nothing, and forget them. What a queue has sent has come when the queue and then the
    channel answer."""
    ask, asked = (c.Channel.Flow(True), "1 Channel.FlowOk") if asks_for_flow else (c.Basic.Qos(), "1 Basic.QosOk")
    for question in (b"", b"", method(c.Queue.Declare(queue=queue, passive=True))):
        wire.send(question, method(ask))
        if not wire.read_to(asked, *_ENDS["running"]).startswith(asked):
            break
        wire.told.pop()
    if wire.is_open:  # the channel is over, or the connection is about to be
        wire.send(method(c.Channel.Open(), 3))
        wire.read_to("3 Channel.OpenOk", "end")


def _normalised(text: str, queue: str) -> str:
    """A reply without what a server says of itself, and without the line breaks of Erlang's printing."""
    return _BREAK.sub("", _SELF.sub("", text)).replace(queue, "wire-0000")


def _prepare(wire: Wire, stage: Stage, queue: str) -> None:
    if stage == "running":
        wire.log_in()
        wire.send(method(c.Queue.Declare(queue=queue, exclusive=True)))
        wire.send(*[_named(publish(), queue)] * _PUBLISHED, method(c.Queue.Declare(queue=queue, passive=True)))
        for _ in range(2):
            wire.read_to("1 Queue.DeclareOk")
    elif stage != "header":
        wire.send(PROTOCOL_HEADER)
        wire.read_to("0 Connection.Start")
        if stage != "start":
            wire.send(method(START_OK, 0))
            wire.read_to("0 Connection.Tune")
        if stage == "open":
            wire.send(method(_TUNE_OK, 0))
    wire.told.clear()


def _named(data: bytes, queue: str) -> bytes:
    """A case's bytes with the name of its queue, which is as long."""
    return data.replace(b"wire-0000", queue.encode())
