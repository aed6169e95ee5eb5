"""Delayed messages that are numbered, and what tests ask of them."""

from __future__ import annotations

from warren.actors.engines.delays.delay_format import digest_of_id, target_of_queue
from warren.actors.engines.delays.delay_log import NewMessage
from warren.queue_index.message.message_format import Envelope, decode_message, encode_message
from warren.queue_index.properties import encode_values

DIRECTORY = "/data/warren.delayed/x"
TARGETS = [target_of_queue(b"q%d" % which) for which in range(3)]


def message(number: int, due_ms: int, size: int = 20) -> NewMessage:
    """One for the queue ``q0``, ``q1`` or ``q2``, whose number is in its id and its body."""
    message_id = b"id %d" % number
    properties = encode_values({"message_id": message_id.decode(), "delivery_mode": 2})
    envelope = Envelope(b"/", b"", (b"q%d" % (number % 3),), properties, True)
    body = (b"%d " % number).ljust(size + number % 17, b".")
    return NewMessage(due_ms, digest_of_id(message_id), TARGETS[number % 3], encode_message(envelope, bytes(16), body))


def number_in(term: bytes) -> int:
    return int(decode_message(term).body.split()[0])
