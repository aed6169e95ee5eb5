"""Writes typed store files from the description of the format alone."""

from __future__ import annotations

HEADER = b"RSQS\x02" + bytes(59)


def stored(msg_id: bytes, message: bytes) -> bytes:
    return b"\x03" + (1 + 4 + len(msg_id) + len(message)).to_bytes(4, "big") + msg_id + message


def hole(size: int) -> bytes:
    return b"\x01" * size if size < 5 else b"\x02" + size.to_bytes(4, "big") + bytes(size - 5)


def sqs(*parts: bytes) -> bytes:
    return HEADER + b"".join(parts)
