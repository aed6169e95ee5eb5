"""An exported message on its way back: from a line of JSON, or a row of a table, to a letter.

A *row* is a mapping of the fields of a line (:mod:`warren.salvage.json_lines`) as columns have them: names in the form
of :func:`~warren.salvage.names.as_text`, ``properties`` and ``headers`` as JSON, ``body`` and ``encoded_properties`` as
bytes. Only ``body`` is required; other fields have defaults, so that a line can be written by hand. The remaining
fields of an export are kept for conditions.

The properties are those that were exported, byte for byte: ``encoded_properties`` if present, else those from JSON,
which the export has checked to be equivalent.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warren.queue_index.properties import from_json
from warren.salvage.names import as_text, from_text, to_json
from warren.shovel.letter import Letter, Position
from warren.storage.errors import MessageError

Row = Mapping[str, Any]


class Mark(NamedTuple):
    """Where a row begins."""

    number: int
    at: int
    """Bytes, or what else the format counts."""


Marked = tuple[Mark, Row | MessageError]
START: Final = Mark(0, 0)

_ESCAPED = re.compile(r"\\udc([89a-f][0-9a-f])")
_U64: Final = (1 << 64) - 1
_BROKEN: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What other people's JSON can end in."""
_JSON_CELLS: Final = frozenset(
    (
        *("routing_keys", "properties", "headers", "expiry_us", "seq_id", "delivery_count", "stream_offset", "size"),
        *("persistent", "redelivered", "acked", "orphan"),
    )
)
"""Cells of CSV that are JSON; others are text."""
_PLAIN_FIELDS: Final = ("seq_id", "msg_id", "persistent", "redelivered", "delivery_count", "stream_offset")

_TEXT, _NUMBER, _TRUTH, _BYTES = (str, "text"), (int, "a whole number"), (bool, "true or false"), (bytes, "bytes")
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    **dict.fromkeys(("vhost", "queue", "msg_id", "exchange", "properties", "headers"), _TEXT),
    **dict.fromkeys(("seq_id", "delivery_count", "stream_offset", "expiry_us"), _NUMBER),
    **dict.fromkeys(("persistent", "redelivered", "acked", "orphan"), _TRUTH),
    **dict.fromkeys(("body", "encoded_properties"), _BYTES),
    "routing_keys": (list, "a list"),
}
"""The type of a column, as Python types and in words."""
_NEEDED: Final = frozenset(("exchange", "routing_keys", "properties", "body"))
"""Columns that cannot be null."""


def row_of_line(line: str | bytes) -> dict[str, Any]:
    """The row in a line; raises :class:`MessageError` if it is invalid."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict) or "body" not in fields:
            raise MessageError("no object of JSON with a body")
        return row_of_fields(fields)
    except _BROKEN as error:
        raise MessageError(_error_text(error)) from error


def _error_text(error: Exception) -> str:
    is_plain = type(error) is ValueError or isinstance(error, MessageError)
    return str(error) if is_plain else f"{type(error).__name__}: {error}"


def row_of_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an object of JSON. Raises :class:`MessageError` for messages of topics, and what Python raises."""
    if "topic" in fields:
        raise MessageError("a message of a topic, which goes into no queue")
    headers, encoded = fields.get("headers"), fields.get("encoded_properties")
    queue = fields.get("queue")
    keys = fields.get("routing_keys", [queue or ""])
    row = {
        **{name: fields.get(name) for name in _PLAIN_FIELDS},
        "acked": fields.get("acked", False),
        "orphan": fields.get("orphan", False),
        "vhost": as_text(fields.get("vhost", "/")),
        "queue": as_text(queue),
        "expiry_us": fields.get("expiry_us"),
        "exchange": as_text(fields.get("exchange", "")),
        "routing_keys": [as_text(key) for key in keys] if isinstance(keys, list) else keys,
        "properties": to_json(fields.get("properties", {})).decode(),
        "headers": None if headers is None else to_json(headers).decode(),
        "encoded_properties": None if encoded is None else base64.b64decode(encoded, validate=True),
        "body": body_of(fields["body"], fields.get("body_encoding", "base64")),
    }
    check_types(row)
    return row


def check_types(row: Row) -> None:
    """Check the type of each column of a row; raises :class:`MessageError` for a wrong value.

    Rows from foreign data are checked once, by the code that makes them; their readers need not check again.
    """
    for name, (kind, words) in _TYPES.items():
        value = row.get(name)
        if value is None:
            if name in _NEEDED:
                raise MessageError(f"no {name}")
        elif type(value) is not kind:
            raise MessageError(f"{name} is {words}, not {value!r:.40}")
    if not all(isinstance(key, str) for key in row["routing_keys"]):
        raise MessageError(f"a routing key is text, not {row['routing_keys']!r:.40}")
    if not -1 << 63 <= (row.get("expiry_us") or 0) <= _U64:
        raise MessageError(f"expiry_us is of 64 bits, not {row['expiry_us']!r:.40}")


def body_of(text: str, encoding: str) -> bytes:
    """Decode the body in a line or a cell."""
    if encoding == "string":
        return text.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError('its body is no base64; of a text say "body_encoding": "string"') from None
    raise ValueError(f"body_encoding is 'string' or 'base64', not {encoding!r}")


def letter_of(row: Row, position: Position) -> Letter:
    """Return the message of a row whose columns have the right types (:func:`check_types`).

    Raises :class:`MessageError` if the values are invalid.
    """
    keys = tuple(name_of(key) for key in row["routing_keys"])
    if not keys:
        raise MessageError("the row has no routing key")
    encoded = row.get("encoded_properties")
    return Letter(
        exchange=name_of(row["exchange"]),
        routing_keys=keys,
        properties=_encoded(row["properties"], row["headers"]) if encoded is None else encoded,
        body=row["body"],
        expiry_us=(row["expiry_us"] or 0) & _U64,
        position=position,
    )


def name_of(text: str) -> bytes:
    """Return the name in a column; the inverse of :func:`warren.arrow.arrays.as_text`.

    Raises :class:`MessageError` if it is not text.
    """
    if not isinstance(text, str):
        raise MessageError(f"a name is text, not {text!r:.40}")
    if "\\udc" in text:
        text = _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), text)
    return from_text(text)


@functools.lru_cache(maxsize=4096)
def _encoded(properties: str, headers: str | None) -> bytes:
    try:
        return from_json(json.loads(properties), None if headers is None else json.loads(headers))
    except (MessageError, *_BROKEN) as error:
        raise MessageError(f"no properties of a message ({error}): {properties[:80]!r}") from error


def row_of_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """The row in cells of CSV, by the names of their columns; raises :class:`MessageError` if they are invalid."""
    try:
        if "topic" in cells:
            raise MessageError("a message of a topic, which goes into no queue")
        fields: dict[str, Any] = {name: text for name, text in cells.items() if text}
        for name in _JSON_CELLS & fields.keys():
            fields[name] = json.loads(fields[name])
        return row_of_fields({"body": "", **fields})
    except _BROKEN as error:
        raise MessageError(_error_text(error)) from error
