"""How a command writes messages: their bodies, lines of JSON, or the text of a template, with the letters of kcat.

A template is text with a letter after each percent sign: ``%s`` the body, ``%S`` its size in bytes, ``%k`` the key
(of a queue's message the routing key, of a topic's its keys), ``%K`` its size, ``%t`` the queue or topic, ``%p`` the
topic's queue (0 of a queue), ``%o`` the number in the queue, ``%T`` milliseconds since 1970 (of a topic's message when
it was stored, of a queue's its ``timestamp``; -1 without), ``%h`` headers or properties, ``name=value`` with commas
between, ``%i`` the id of a topic's message, or of a queue's that was only looked at, ``%%`` a percent sign. ``\\n``,
``\\t``, ``\\r``, ``\\0``, ``\\\\`` and ``\\x41`` are what they are in C. Nothing
is added: a template for lines ends in ``\\n``.
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import attrs
import typer

from warren.actors.engines.topics.names import KEYS, RETRY_TOPIC
from warren.commands.options import RawBodiesOption, UsageError
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.msg_store.commit_log.record_bodies import sent_records
from warren.salvage.names import to_json

Lines = Callable[[Any], Iterable[bytes]]
"""Returns the text for a message, in pieces. Raises :class:`~warren.storage.errors.MessageError`."""
Letter = Callable[[Any], bytes]
"""Returns the text for a letter."""

BODY: Final = "body"
JSON: Final = "json"
_NAMED: Final = {BODY: r"%s\n", "keys": r"%k\t%s\n"}
_LETTERS: Final = "sSkKtpoThi"
_PART: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="body (each with a line end), keys (key, tab, body), json, or a template with kcat's letters, as "
        r"'%k %o %T %s\n'; topic read and scan also csv, parquet, bodies.",
    ),
]


@attrs.frozen(kw_only=True)
class RecordForm:
    """How messages of a topic are written."""

    format: FormatOption = None
    raw_bodies: RawBodiesOption = False


def chosen_format(format_name: str | None, *, as_json: bool) -> str:
    """Return the format of ``--format`` and ``--json`` together; by default the body. Raises :class:`UsageError`."""
    if as_json and format_name not in (None, JSON):
        raise UsageError("either --json or --format")
    return format_name or (JSON if as_json else BODY)


def template_lines(template: str, letters: Mapping[str, Letter]) -> Lines:
    """Return the lines of a template, or of the name of one. Raises :class:`UsageError`."""
    parts = _parsed(_NAMED.get(template, template), letters)
    if template not in _NAMED and "%" not in template:
        raise UsageError(f"--format {template}: one of {', '.join([*_NAMED, JSON])}, or a template such as '%k %s\\n'")
    return lambda message: [part if isinstance(part, bytes) else part(message) for part in parts]


def _parsed(template: str, letters: Mapping[str, Letter]) -> list[bytes | Letter]:
    parts: list[bytes | Letter] = []
    end = 0
    for match in _PART.finditer(template):
        parts.append(_encoded(template[end : match.start()]))
        end = match.end()
        letter, escape = match.groups()
        if letter == "%":
            parts.append(b"%")
        elif letter is not None:
            if letter not in letters or not letter:
                listed = ", ".join(f"%{character}" for character in _LETTERS)
                raise UsageError(f"--format {template}: no %{letter}; there are {listed} and %%")
            parts.append(letters[letter])
        elif len(escape) > 1:
            parts.append(bytes.fromhex(escape[1:]))
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise UsageError(f"--format {template}: no \\{escape}")
    return [*parts, _encoded(template[end:])]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _pairs(pairs: Mapping[str, Any]) -> bytes:
    def shown(value: Any) -> bytes:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        return _encoded(value) if isinstance(value, str) else str(value).encode()

    return b",".join(b"%b=%b" % (_encoded(name), shown(value)) for name, value in pairs.items())


# ── messages of a queue ──────────────────────────────────────────────────────────────────────────────────────────────


def queue_lines(format_name: str, vhost: str, queue: str) -> Lines:
    """For messages of a queue, delivered or browsed. Raises :class:`UsageError`."""
    if format_name == JSON:
        return _queue_json(vhost, queue)
    return template_lines(
        format_name,
        {
            "s": lambda message: message.body,
            "S": lambda message: b"%d" % len(message.body),
            "k": lambda message: _encoded(message.routing_key),
            "K": lambda message: b"%d" % len(_encoded(message.routing_key)),
            "t": lambda _: _encoded(queue),
            "p": lambda _: b"0",
            "o": lambda message: b"%d" % _stored(message).seq_id,
            "T": _timestamp,
            "h": lambda message: _pairs(message.headers),
            "i": lambda message: getattr(message, "id", "").encode(),
        },
    )


def _stored(message: Any) -> Any:
    """Return a message as it is stored; a message that was browsed is that itself."""
    return getattr(message, "stored", message)


def _timestamp(message: Any) -> bytes:
    seconds = message.properties.timestamp
    return b"-1" if seconds is None else b"%d" % (1000 * seconds)


def _queue_json(vhost: str, queue: str) -> Lines:
    """Lines as ``warren export`` writes them; ``redelivered`` is null for messages that are only browsed."""
    from warren.salvage.envelopes import Envelopes
    from warren.salvage.json_lines import FLAGS, json_line

    envelopes = Envelopes()
    head = b'{"vhost": %b, "queue": %b, "seq_id": ' % (to_json(vhost), to_json(queue))

    def lines(message: Any) -> Iterable[bytes]:
        stored = _stored(message)
        flags = FLAGS[message.persistent, getattr(message, "redelivered", False)]
        if stored is message:
            flags = flags.replace(b'"redelivered": false', b'"redelivered": null')
        start = (
            head,
            b"%d" % stored.seq_id,
            b', "msg_id": "',
            hexlify(stored.msg_id),
            flags,
            b"%d" % stored.expiry_us if stored.expiry_us else b"null",
        )
        end = b'"}\n'
        if stored is message:
            end = b'", "id": "%b"%b}\n' % (message.id.encode(), b', "unacked": true' if message.unacked else b"")
        return json_line(start, *envelopes.split(stored.encoded), end)

    return lines


# ── messages of a topic ──────────────────────────────────────────────────────────────────────────────────────────────


def topic_lines(format_name: str, *, raw_bodies: bool = False) -> Lines:
    """For messages of topics: records, which are written as they are, or handles on them.

    ``raw_bodies``: of handles, bodies as they are stored. Raises :class:`UsageError`.
    """
    lines = _record_json() if format_name == JSON else template_lines(format_name, _RECORD_LETTERS)

    def of_message(message: Any) -> Iterable[bytes]:
        for record in (message,) if isinstance(message, Record) else _records(message.record, raw_bodies):
            yield from lines(record)

    return of_message


def _record_json() -> Lines:
    from warren.salvage.rocketmq.record_lines import record_line

    return lambda record: (record_line(record),)


def _records(record: Record, raw_bodies: bool) -> Sequence[Record]:
    return (record,) if raw_bodies else sent_records(record)


def _properties(record: Record) -> dict[str, str]:
    return decode_properties(record.properties)


def _keys(record: Record) -> bytes:
    return _encoded(_properties(record).get(KEYS, ""))


_RECORD_LETTERS: Final[Mapping[str, Letter]] = {
    "s": lambda record: record.body,
    "S": lambda record: b"%d" % len(record.body),
    "k": _keys,
    "K": lambda record: b"%d" % len(_keys(record)),
    "t": lambda record: _encoded(_properties(record).get(RETRY_TOPIC) or record.topic),
    "p": lambda record: b"%d" % record.queue_id,
    "o": lambda record: b"%d" % record.queue_offset,
    "T": lambda record: b"%d" % record.store_timestamp,
    "h": lambda record: _pairs(_properties(record)),
    "i": lambda record: record.message_id().encode(),
}
