"""Names on disk: which directory is whose.

A vhost lives in ``base36(md5(vhost))``, a queue in ``queues/base36(md5("queue" + vhost + name))`` below it; both hold a
file that says the name in clear. A level of a priority queue is a queue of its own, named ``name NUL level`` (one raw
byte). A queue's file has a third line, ``INDEX: v2``, where its index is of version 2.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from warren.storage.errors import DataError

JOURNAL_NAME: Final = "journal.jif"
SEGMENT_SUFFIX: Final = ".idx"
QUEUE_NAME_FILE: Final = ".queue_name"
VHOST_NAME_FILE: Final = ".vhost"
VHOST_CONFIG_FILE: Final = ".config"
RECOVERY_TERMS_FILE: Final = "recovery.dets"
QUEUES_DIRECTORY: Final = "queues"
DEFAULT_SEGMENT_ENTRY_COUNT: Final = 16384
"""What a vhost without a ``.config`` has."""

MAX_SEQ_ID: Final = (1 << 62) - 1
"""A journal's record has no room for more."""

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_CONFIG = re.compile(rb"\{\s*segment_entry_count\s*,\s*0*(\d{1,9})\s*\}\s*\.")
_DIRECTORY = re.compile(r"0|[1-9A-Z][0-9A-Z]{0,24}")
_DELIVERS_LATER = re.compile(rb"\{\s*deliver_with_publish\s*,\s*false\s*\}\s*\.")
_SEGMENT = re.compile(r"(0|[1-9][0-9]*)\.idx")
_SEGMENT_V2 = re.compile(r"(0|[1-9][0-9]{0,18})\.q[is]")
_INDEX_V2 = b"\nINDEX: v2\n"


def base36(number: int) -> str:
    """Upper-case, without leading zeros."""
    text = ""
    while number:
        text = _PAIRS[number % (36 * 36)] + text
        number //= 36 * 36
    return text.lstrip("0") or "0"


def _name(data: bytes) -> str:
    return base36(int.from_bytes(hashlib.md5(data, usedforsecurity=False).digest(), "big"))


def vhost_directory_name(vhost: bytes) -> str:
    return _name(vhost)


def queue_directory_name(vhost: bytes, queue: bytes) -> str:
    return _name(b"queue" + vhost + queue)


def is_directory_name(name: str) -> bool:
    """Whether a vhost's or a queue's directory may be called so."""
    return _DIRECTORY.fullmatch(name) is not None


def level_name(queue: bytes, level: int) -> bytes:
    """The name under which a level of a priority queue is stored."""
    return queue + b"\0" + bytes([level])


def queue_name_file(vhost: bytes, queue: bytes, index_version: int = 1) -> bytes:
    end = _INDEX_V2 if index_version == 2 else b"\n"
    return b"VHOST: " + vhost + b"\nQUEUE: " + queue + end


def parse_queue_name_file(data: bytes, path: str) -> tuple[bytes, bytes]:
    """The vhost and the queue that a ``.queue_name`` of version 1 names; the queue's name may hold any byte, a newline
    too. Raises :class:`DataError`."""
    vhost, separator, queue = data.partition(b"\nQUEUE: ")
    if not (separator and vhost.startswith(b"VHOST: ") and queue.endswith(b"\n")):
        raise DataError(path, 0, "not of the form 'VHOST: …', 'QUEUE: …'")
    return vhost[7:], queue[:-1]


class QueueName(NamedTuple):
    """What a ``.queue_name`` says."""

    vhost: bytes
    queue: bytes
    index_version: int


def parse_queue_name(data: bytes, path: str) -> QueueName:
    """What a ``.queue_name`` of either version says. A queue may be called ``INDEX: v2``: a line of its own says it.

    Raises :class:`DataError`.
    """
    head, separator, queue = data.partition(b"\nQUEUE: ")
    index_version = 2 if queue.endswith(_INDEX_V2) else 1
    if index_version == 2:
        queue = queue.removesuffix(_INDEX_V2) + b"\n"
    return QueueName(*parse_queue_name_file(head + separator + queue, path), index_version)


def vhost_config(segment_entry_count: int, *, deliver_with_publish: bool = True) -> bytes:
    """A ``.config``; as RabbitMQ 3.10 writes it, but for a term of our own where deliver records come later."""
    config = (
        b"%%%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, %d}." % segment_entry_count
    )
    return config if deliver_with_publish else config + b"\n{deliver_with_publish, false}."


def parse_vhost_config(data: bytes, path: str) -> int:
    """The ``segment_entry_count`` that a ``.config`` sets."""
    match = _CONFIG.search(_without_comments(data))
    if match is None or not 1 <= int(match[1]) <= DEFAULT_SEGMENT_ENTRY_COUNT:
        raise DataError(path, 0, "says no segment_entry_count of 1 … 16384")
    return int(match[1])


def parse_deliver_with_publish(data: bytes) -> bool:
    """Whether positions in a vhost with that ``.config`` have a deliver record from the beginning, as in RabbitMQ 3.10.
    This is the default."""
    return _DELIVERS_LATER.search(_without_comments(data)) is None


def _without_comments(data: bytes) -> bytes:
    return b"\n".join(line for line in data.splitlines() if not line.lstrip().startswith(b"%"))


def segment_number(file_name: str) -> int | None:
    """The number of the segment that a file of that name holds; ``None`` for any other file, and for a number that no
    segment can have."""
    match = _SEGMENT.fullmatch(file_name)
    number = int(match[1]) if match else -1
    return number if 0 <= number <= MAX_SEQ_ID // DEFAULT_SEGMENT_ENTRY_COUNT else None


def segment_number_v2(file_name: str) -> int | None:
    """The same of version 2 of the index."""
    match = _SEGMENT_V2.fullmatch(file_name)
    return int(match[1]) if match else None


def is_of_v1(file_name: str) -> bool:
    """Whether it is a file of an index of version 1."""
    return file_name == JOURNAL_NAME or segment_number(file_name) is not None


def is_of_v2(file_name: str) -> bool:
    """The same of version 2."""
    return segment_number_v2(file_name) is not None


def has_impossible_number(file_name: str) -> bool:
    """Whether the name is a segment's, but for a number that no segment can have."""
    return _SEGMENT.fullmatch(file_name) is not None and segment_number(file_name) is None


def segment_name(number: int) -> str:
    return f"{number}{SEGMENT_SUFFIX}"
