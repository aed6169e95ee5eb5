"""The log of a quorum queue, command by command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.quorum_tools import OPENING, Record
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.storage.erlang_terms import Atom, Opaque, Term, decode, encode

ORDERS = b"2F_ORDAAAAAAAAAAAA"
NODE = "rabbit@a"


def pid(number: int) -> Opaque:
    return Opaque(b"Xs" + bytes([len(NODE)]) + NODE.encode() + number.to_bytes(4, "big") + bytes(4) + b"\0\0\0\1")


PUBLISHER, CONSUMER = pid(100), pid(200)


def usr(command: Term, ts_ms: int = 1_700_000_000_000) -> bytes:
    return encode((Atom("$usr"), {Atom("ts"): ts_ms}, command, Atom("noreply")))


def noop(version: int = 2) -> bytes:
    return encode((Atom("noop"), {Atom("ts"): 1_700_000_000_000}, version))


def message(body: bytes, headers: dict[str, Any] | None = None) -> Term:
    """As quorum queues have it: without an id."""
    properties = encode_properties(Properties(delivery_mode=2, headers=headers))
    term = decode(encode_message(Envelope(b"/", b"", (b"orders",), properties, True), bytes(16), body))
    assert isinstance(term, tuple)
    return (*term[:4], b"", term[5])


def enqueue(seq: int, body: bytes) -> bytes:
    return usr((Atom("enqueue"), PUBLISHER, seq, message(body)))


def checkout(credit: int = 100) -> bytes:
    spec = (Atom("auto"), credit, Atom("simple_prefetch"))
    return usr((Atom("checkout"), (b"tag", CONSUMER), spec, {Atom("ack"): True}))


def settle(*msg_ids: int) -> bytes:
    return usr((Atom("settle"), (b"tag", CONSUMER), list(msg_ids)))


def plain_log(count: int) -> list[bytes]:
    """``count`` messages, one after the other."""
    return [OPENING, noop(), *(enqueue(number + 1, b"body %d" % number) for number in range(count))]


def records(uid: bytes, entries: Sequence[bytes], *, term: int = 1, without: Sequence[int] = ()) -> list[Record]:
    return [Record(uid, index, term, entry) for index, entry in enumerate(entries) if index not in without]
