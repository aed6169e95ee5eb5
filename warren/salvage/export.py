"""``warren export``: the messages that a restarted broker would deliver, each as a JSON object on a line.

::

    {"vhost", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry_us", "size", "exchange", "routing_keys",
     "properties", "headers", "body", "body_sha256"}           and "acked": true or "orphan": true where it is so

Of a quorum queue ``seq_id`` is the index in its log, and ``delivery_count`` stands behind ``expiry_us``: how often the
message came back; it is not put into the headers.

``msg_id`` (null in a quorum queue) and ``body_sha256`` are hexadecimal, ``body`` base64, ``expiry_us`` microseconds
since the epoch or null. ``properties`` holds those that are set, under AMQP's names; ``headers`` an object or null.
What JSON has no word for stands there as :func:`queue_index.properties.to_json` says it; names:
:mod:`warren.salvage.names`.

Queues come in the order of their names, vhost by vhost. The levels of a priority queue come under its bare name, the
highest first, each with seq_ids of its own. An *orphan* is a message in a store that no unacked message of any queue
refers to; it belongs to no queue, and nothing is known of its delivery (``queue``, ``seq_id``, ``redelivered`` and
``expiry_us`` are null).
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import groupby

import attrs

from storage.errors import DataError, MessageError, WarrenError
from warren.salvage.message_json import FLAGS, FLAGS_WITHOUT_ID, WORDS, MessageJson
from warren.salvage.names import from_text, split_level, to_json, to_text
from warren.salvage.needed import NeededBodies
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, QueueDirectory, StoredMessage, Stretch
from warren.salvage.read_only import below
from warren.salvage.source import Source
from warren.salvage.stretch_lines import stretch_lines
from warren.salvage.vhost import PERSISTENT_STORE, STORES, Vhost

Write = Callable[[bytes], object]
Report = Callable[[Finding], None]


@attrs.frozen(kw_only=True)
class Selection:
    """What of a source is wanted; names in their text form, ``None``: all of them."""

    vhost: str | None = None
    queues: tuple[str, ...] = ()
    """None named: all."""
    include_acked: bool = False
    orphans: bool = False


@attrs.define
class Exported:
    """What came of it."""

    messages: int = 0
    payload_bytes: int = 0
    problems: int = 0


def export_source(source: Source, selection: Selection, write: Write, report: Report) -> Exported:
    """Hand every line to ``write`` (perhaps in pieces), and to ``report`` what could not be exported, and why.

    Raises :class:`WarrenError` where the selection names a vhost or a queue that is not there.
    """
    vhosts = [vhost for vhost in source.vhosts if selection.vhost in (None, to_text(vhost.name))]
    if selection.vhost is not None and not vhosts:
        raise WarrenError(f"{source.path}: no vhost {selection.vhost!r}")
    there = {name for vhost in vhosts for name, _ in chosen_queues(vhost, selection.queues)}
    check_found(source.path, selection, there)
    exporter = Exporter(write, report)
    for vhost in vhosts:
        exporter.vhost(vhost, selection)
    return exporter.exported


def check_found(where: str, selection: Selection, there: Container[bytes]) -> None:
    """Raises :class:`WarrenError` where a queue that is named is not ``there``."""
    missing = [queue for queue in selection.queues if from_text(queue) not in there]
    if missing:
        raise WarrenError(f"{where}: no queue {missing[0]!r} (one that was never written to has no directory)")


def chosen_queues(vhost: Vhost, queues: Sequence[str] = ()) -> list[tuple[bytes, list[QueueDirectory]]]:
    """Bare name → directories, in the order of export; of all queues, or of those of these names."""

    def order(directory: QueueDirectory) -> tuple[bytes, int]:
        bare, level = split_level(directory.name)
        return bare, 0 if level is None else -level

    wanted = {from_text(queue) for queue in queues}
    by_name = groupby(sorted(vhost.queues, key=order), key=lambda directory: split_level(directory.name)[0])
    return [(name, list(directories)) for name, directories in by_name if not wanted or name in wanted]


def problems_of(vhost: Vhost, queues: Sequence[str] = ()) -> Iterator[Finding]:
    """What could not be read of a vhost so far, without what concerns only queues of other names."""
    wanted = {directory.path for _, directories in chosen_queues(vhost, queues) for directory in directories}
    others = tuple(other.path for other in vhost.queues if other.path not in wanted)
    for problem in vhost.problems:
        if not problem.path.startswith(others):
            yield problem


class Exporter:
    """Turns messages into lines, and counts.

    ``numbered``: what every line begins with, behind which the number of the message stands. A message that is there
    and cannot be read has a number, too, which is left out: numbers can be told without reading messages.
    """

    def __init__(self, write: Write, report: Report, numbered: bytes | None = None) -> None:
        self.exported = Exported()
        self.number = 0
        """Of the next message."""
        self.write = write
        self._report = report
        self._numbered = numbered
        self._json = MessageJson()

    def vhost(self, vhost: Vhost, selection: Selection) -> None:
        """All that is wanted of a vhost."""
        for name, directories in chosen_queues(vhost, selection.queues):
            for directory in directories:
                self.messages(vhost.name, name, directory.stretches(include_acked=selection.include_acked))
        if selection.orphans and vhost.knows_needs:
            for store in STORES:
                self._orphans(vhost, store)
        for problem in problems_of(vhost, selection.queues):
            self.problem(problem)

    def problem(self, finding: Finding) -> None:
        """Tell it, and count it, if it is damage."""
        if finding.severity == "damage":
            self.exported.problems += 1
            self._report(finding)

    def messages(self, vhost: bytes, queue: bytes, found: Iterable[StoredMessage | Stretch | Finding]) -> None:
        """Some of the messages of a queue, in order."""
        begin = b"{" if self._numbered is None else b", "
        head = b'%b"vhost": %b, "queue": %b, "seq_id": ' % (begin, to_json(to_text(vhost)), to_json(to_text(queue)))
        for one in found:
            if isinstance(one, Finding):
                self.number += one.kind == UNREADABLE_BODY
                self.problem(one)
            elif isinstance(one, StoredMessage):
                self._message(head, one)
            elif (lines := stretch_lines(head, one, self._json, self._number())) is not None:
                self.count(lines.count, lines.payload_bytes)
                for piece in lines.pieces:
                    self.write(piece)
            else:
                for message in one.messages():
                    self._message(head, message)

    def _number(self) -> tuple[bytes, int] | None:
        return None if self._numbered is None else (self._numbered, self.number)

    def count(self, messages: int, payload_bytes: int) -> None:
        """So many were written."""
        self.number += messages
        self.exported.messages += messages
        self.exported.payload_bytes += payload_bytes

    def _message(self, head: bytes, message: StoredMessage) -> None:
        seq_id, msg_id, persistent, redelivered, acked, expiry_us, encoded, path, offset, delivery_count = message
        start = (
            head if self._numbered is None else b"%b%d%b" % (self._numbered, self.number, head),
            b"%d" % seq_id,
            *((b', "msg_id": "', hexlify(msg_id)) if msg_id else (b', "msg_id": null',)),
            FLAGS[persistent, redelivered] if msg_id else FLAGS_WITHOUT_ID[persistent, redelivered],
            b"%d" % expiry_us if expiry_us else b"null",
            b"" if delivery_count is None else b', "delivery_count": %d' % delivery_count,
        )
        try:
            self._line(start, encoded, b'", "acked": true}\n' if acked else b'"}\n')
        except MessageError as error:
            self.number += 1
            self.problem(Finding("unreadable message", "damage", path, offset, f"message {seq_id}: {error}"))

    def _orphans(self, vhost: Vhost, store_name: str) -> None:
        """The bodies that nobody needs."""
        store = vhost.store(store_name)
        head = b'{"vhost": %b, "queue": null, "seq_id": null, "msg_id": "' % to_json(to_text(vhost.name))
        flags = b'", "persistent": %b, "redelivered": null, "expiry_us": null' % WORDS[store_name == PERSISTENT_STORE]
        for file, record in NeededBodies.of(vhost, store_name).orphans(store):
            try:
                self._line((head, hexlify(record.msg_id), flags), store.read(record.msg_id), b'", "orphan": true}\n')
            except (DataError, MessageError) as error:
                path = below(below(vhost.path, store_name), file)
                self.problem(Finding("unreadable message", "damage", path, record.offset, str(error)))

    def _line(self, start: tuple[bytes, ...], encoded: bytes, end: bytes) -> None:
        """Write one message; raises :class:`MessageError`, before anything is written, where it is none."""
        size, pieces = self._json.line(start, encoded, end)
        self.count(1, size)
        for piece in pieces:
            self.write(piece)
