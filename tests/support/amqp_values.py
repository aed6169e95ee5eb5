"""What random AMQP programs are made of: names, keys and arguments, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.support.differential_program import FAR_MS
from warren.queue_index.message.amqp_tables import LongInteger

REPLY_TO: Final = "amq.rabbitmq.reply-to"

TYPES: Final = ("direct", "fanout", "headers", "topic")
PREDECLARED: Final = ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic")
KEYS: Final = ("a", "b", "a.b", "a.c", "b.c.d", "")
PATTERNS: Final = ("a", "b", "*", "#", "a.*", "*.b", "a.#", "#.d", "*.*", "")
HEADERS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"h": 1},
    {"h": "x"},
    {"h": 1, "i": True},
    {"i": False},
    {"h": None},
    {"x-h": 1, "h": 1.5},
    {"h": LongInteger(1), "i": [1, "two", {"three": 3}]},
    {"h": b"\xff\0"},
)
MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")
NUMBERS: Final = ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority")
WRONG_NUMBERS: Final = (-1, "10", 1.5, None, True, 1 << 40, 0, 256, {}, [])
WRONG: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(NUMBERS, WRONG_NUMBERS),
    "x-overflow": ("drop-tail", 1, ""),
    "x-queue-mode": ("eager", 5),
    "x-dead-letter-exchange": (5, None, ["@x0"]),
    "x-dead-letter-routing-key": (5, "a"),
    "x-dead-letter-strategy": ("at-most-once", "sometimes"),
    "x-single-active-consumer": ("true", 1),
    "x-queue-type": ("classic", 1),
    "x-queue-master-locator": ("client-local",),
    "x-max-in-memory-length": (1, -1),
    "x-max-in-memory-bytes": (1,),
    "x-quorum-initial-group-size": (1,),
    "x-max-age": ("1h",),
    "x-stream-max-segment-size-bytes": (1000,),
    "x-queue-version": (3, "1", 1),
    "x-unknown": (1, "two", None),
}
NAMES: Final = (
    "amq.",
    "amq.own",
    "with\nnewline",
    "\N{LATIN SMALL LETTER U WITH DIAERESIS}",
    "x" * 255,
    "amq.gen-own",
)
EXPIRATIONS: Final = ("", "abc", "-1", "1.5", "12abc", "4294967296", " 1", f"+{FAR_MS}", "\N{ARABIC-INDIC DIGIT ONE}")
CONTENT: Final[Mapping[str, tuple[Any, ...]]] = {
    "content_type": ("text/plain", ""),
    "content_encoding": ("utf-8",),
    "correlation_id": ("c1",),
    "message_id": ("m1",),
    "timestamp": (0, 1_700_000_000),
    "type": ("t",),
    "app_id": ("a",),
    "cluster_id": ("k",),
    "user_id": ("guest",),
    "reply_to": ("@q0", REPLY_TO),
}
