"""An independent writer of disk_log files."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from warren.storage.erlang_terms import Term, encode

CLOSED, OPEN = bytes.fromhex("0102030463584d0b"), bytes.fromhex("0102030406070809")


def item(term: Term) -> bytes:
    encoded = encode(term)
    size = struct.pack(">I", len(encoded))
    digest = hashlib.md5(size).digest() if len(encoded) >= 65528 else b""
    return size + b"bWLA" + digest + encoded


def log(terms: Iterable[Term], head: bytes = OPEN) -> bytes:
    return head + b"".join(map(item, terms))
