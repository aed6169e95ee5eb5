"""``warren export``: the messages that a restarted broker would deliver, each as a JSON object on a line.

::

    {"vhost", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry_us", "size", "exchange", "routing_keys",
     "properties", "headers", "body", "body_sha256"}           and "acked": true or "orphan": true where it is so

``msg_id`` and ``body_sha256`` are hexadecimal, ``body`` base64, ``expiry_us`` microseconds since the epoch or null.
``properties`` holds those that are set, under AMQP's names; ``headers`` an object or null. What JSON cannot say stands
there as :func:`queue_index.properties.to_json` says it; names: :mod:`warren.salvage.names`.

Queues come in the order of their names, vhost by vhost. The levels of a priority queue come under its bare name, the
highest first, each with seq_ids of its own. An *orphan* is a message in a store that no unacked message of any queue
refers to; it belongs to no queue (``queue``, ``seq_id``, ``redelivered`` and ``expiry_us`` are null).

Lines are put together by hand: what messages of one publisher have in common is turned into JSON once.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import attrs

from queue_index.message_format import decode_message, locate_body
from queue_index.properties import to_json as properties_to_json
from storage.errors import MessageError, UnknownMessageError, WarrenError
from warren.salvage.names import from_text, split_level, to_json, to_text
from warren.salvage.needed import NeededBodies
from warren.salvage.queue_directory import Finding, QueueDirectory, StoredMessage
from warren.salvage.source import Source
from warren.salvage.vhost import PERSISTENT_STORE, STORES, Vhost

_CACHED_ENVELOPES = 1024
_BASE64_PIECE = 3 << 18
"""A body is encoded in pieces of this size (a multiple of 3), so that a large one is not in memory twice more."""


@attrs.frozen(kw_only=True)
class Selection:
    """What of a source is wanted; names in their text form, ``None``: all of them."""

    vhost: str | None = None
    queue: str | None = None
    include_acked: bool = False
    orphans: bool = False


@attrs.define
class Exported:
    """What came of it."""

    messages: int = 0
    payload_bytes: int = 0
    problems: int = 0


def export_source(
    source: Source, selection: Selection, write: Callable[[bytes], object], report: Callable[[Finding], None]
) -> Exported:
    """Hand every line to ``write`` (a large one in pieces), and to ``report`` what could not be exported.

    Raises :class:`WarrenError` where the selection names a vhost or a queue that is not there.
    """
    _check(source, selection)
    exporter = _Exporter(write, report)
    for vhost in source.vhosts:
        if selection.vhost in (None, to_text(vhost.name)):
            exporter.vhost(vhost, selection)
    return exporter.exported


def _check(source: Source, selection: Selection) -> None:
    vhosts = [vhost for vhost in source.vhosts if selection.vhost in (None, to_text(vhost.name))]
    if selection.vhost is not None and not vhosts:
        raise WarrenError(f"{source.path}: no vhost {selection.vhost!r}")
    if selection.queue is not None and not any(_selected(vhost, selection.queue) for vhost in vhosts):
        raise WarrenError(f"{source.path}: no queue {selection.queue!r} (one that never held a message has no directory)")


def _selected(vhost: Vhost, queue: str | None) -> list[tuple[bytes, list[QueueDirectory]]]:
    """Bare name → directories, in the order of export: the levels of a priority queue from the highest down."""

    def order(directory: QueueDirectory) -> tuple[bytes, int]:
        bare, level = split_level(directory.name)
        return bare, -1 if level is None else -level

    ordered = sorted(vhost.queues, key=order)
    by_name = groupby(ordered, key=lambda directory: split_level(directory.name)[0])
    wanted = None if queue is None else from_text(queue)
    return [(name, list(directories)) for name, directories in by_name if wanted in (None, name)]


class _Exporter:
    """Turns messages into lines."""

    def __init__(self, write: Callable[[bytes], object], report: Callable[[Finding], None]) -> None:
        self.exported = Exported()
        self._write = write
        self._report = report
        self._envelopes: dict[bytes, bytes] = {}

    def vhost(self, vhost: Vhost, selection: Selection) -> None:
        for problem in vhost.problems:
            self._problem(problem)
        already = len(vhost.problems)
        for name, directories in _selected(vhost, selection.queue):
            head = b'{"vhost": %b, "queue": %b, "seq_id": ' % (to_json(to_text(vhost.name)), to_json(to_text(name)))
            for directory in directories:
                self._messages(head, directory.messages(include_acked=selection.include_acked))
        if selection.orphans:
            for store in STORES:
                self._orphans(vhost, store)
        for problem in vhost.problems[already:]:
            self._problem(problem)

    def _problem(self, finding: Finding) -> None:
        if finding.severity == "damage":
            self.exported.problems += 1
            self._report(finding)

    def _messages(self, head: bytes, messages: Iterable[StoredMessage | Finding]) -> None:
        for message in messages:
            if isinstance(message, Finding):
                self._problem(message)
                continue
            seq_id, msg_id, persistent, redelivered, acked, expiry_us, encoded, path, offset = message
            start = b'%b%d, "msg_id": "%b", "persistent": %b, "redelivered": %b, "expiry_us": %b' % (
                head,
                seq_id,
                binascii.hexlify(msg_id),
                b"true" if persistent else b"false",
                b"true" if redelivered else b"false",
                b"%d" % expiry_us if expiry_us else b"null",
            )
            try:
                self._line(start, encoded, b', "acked": true}\n' if acked else b"}\n")
            except MessageError as error:
                self._problem(Finding("unreadable message", "damage", path, offset, f"message {seq_id}: {error}"))

    def _orphans(self, vhost: Vhost, store_name: str) -> None:
        if not vhost.is_whole:
            return
        store = vhost.store(store_name)
        head = b'{"vhost": %b, "queue": null, "seq_id": null, "msg_id": "' % to_json(to_text(vhost.name))
        persistent = b"true" if store_name == PERSISTENT_STORE else b"false"
        ...

    def _line(self, start: bytes, encoded: bytes, end: bytes) -> None:
        """One message; raises :class:`MessageError`, before anything is written, where it is none."""
        found = locate_body(encoded)
        if found is None:
            message = decode_message(encoded)
            envelope, body = _envelope(encoded), memoryview(message.body)
        else:
            at, size, _ = found
            common = encoded[: at - 4 if size else at]
            envelope = self._envelopes.get(common)
            if envelope is None:
                envelope = self._remember(common, encoded)
            body = memoryview(encoded)[at : at + size]
        size = len(body)
        ...
