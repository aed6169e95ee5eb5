"""The text of consumerOffset.json, delayOffset.json and offsets.json, both directions, as RocketMQ's JSON library
writes it.

::

    {                                        {
    ⇥"offsetTable":{                         ⇥"offsetTable":{1:5,2:7
    ⇥⇥"topic@group":{0:123,1:4               ⇥}
    ⇥⇥},                                     }
    ⇥⇥"topic@other":{0:1
    ⇥⇥}
    ⇥}
    }

The keys of the innermost objects are numbers without quotes (a queue's id; a delay level), so it is no JSON. The
compact form is the same without line ends and tabs. Both are read, also with quoted numbers and unknown members. The
order of keys is that of the table.

In offsets.json, where a consumer that reads everything for itself keeps how far it is, the keys are objects::

    {
    ⇥"offsetTable":{{
    ⇥⇥⇥"brokerName":"broker-a",
    ⇥⇥⇥"queueId":3,
    ⇥⇥⇥"topic":"events"
    ⇥⇥}:14,{
    ⇥⇥⇥"brokerName":"broker-a",
    …
    ⇥}
    }
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from warren.storage.errors import WarrenError, shortly, shown

Offsets = dict[int, int]
"""The queue offset of the next message, by queue (or delay level)."""

OffsetTable = dict[str, Offsets]
"""The offsets of each ``topic@group``."""

MessageQueue = tuple[str, str, int]
"""Broker name, topic and queue id."""

LocalOffsetTable = dict[MessageQueue, int]
"""The queue offset of the next message, by queue."""

QUEUE_IDS: Final = range(-(2**31), 2**31)
QUEUE_OFFSETS: Final = range(-(2**63), 2**63)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_LOCAL_ENTRY = re.compile(r"(\{[^{}]*\})\s*:\s*([^\s,{}]+)")
_EMPTY_TABLES: Final = ("", "{}", '{"offsetTable":{}}')
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_SPECIAL = re.compile('["\\\\\x00-\x1f\x7f-\xa0\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class OffsetTextError(WarrenError):
    """A text that is no table of offsets; the message says why."""


def check_offset(queue_id: int, offset: int) -> None:
    """Raise ``RuntimeError`` for a queue's offset that cannot be read again."""
    if type(queue_id) is not int or type(offset) is not int or queue_id not in QUEUE_IDS or offset not in QUEUE_OFFSETS:
        raise RuntimeError(f"no offset of a queue: {queue_id!r}, {offset!r}")


def encode_consumer_offsets(table: Mapping[str, Mapping[int, int]], *, pretty: bool) -> str:
    """The text of consumerOffset.json."""
    line = "\n\t\t" if pretty else ""
    parts = [f"{line}{_quoted(name)}:{_numbers(offsets, line)}" for name, offsets in table.items()]
    return _whole("{" + ",".join(parts) + ("\n\t}" if pretty and parts else "}"), pretty=pretty)


def encode_delay_offsets(offsets: Mapping[int, int], *, pretty: bool) -> str:
    """The text of delayOffset.json."""
    return _whole(_numbers(offsets, "\n\t" if pretty else ""), pretty=pretty)


def encode_local_offsets(table: Mapping[MessageQueue, int]) -> str:
    """The text of offsets.json."""
    entries = [
        f'{{\n\t\t\t"brokerName":{_quoted(broker)},\n\t\t\t"queueId":{queue_id},\n\t\t\t"topic":{_quoted(topic)}\n\t\t}}'
        f":{offset}"
        for (broker, topic, queue_id), offset in table.items()
    ]
    return _whole("{" + ",".join(entries) + ("\n\t}" if entries else "}"), pretty=True)


def _whole(table: str, *, pretty: bool) -> str:
    return f'{{\n\t"offsetTable":{table}\n}}' if pretty else f'{{"offsetTable":{table}}}'


def _numbers(offsets: Mapping[int, int], line: str) -> str:
    return "{" + ",".join(f"{number}:{offset}" for number, offset in offsets.items()) + (line if offsets else "") + "}"


def _quoted(text: str) -> str:
    return '"' + _SPECIAL.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", text) + '"'


def decode_consumer_offsets(text: str) -> OffsetTable:
    """The table in consumerOffset.json; raises :class:`OffsetTextError`."""
    return {name: _offsets(name, offsets) for name, offsets in _table(text).items()}


def decode_delay_offsets(text: str) -> Offsets:
    """The table in delayOffset.json; raises :class:`OffsetTextError`."""
    return _offsets("offsetTable", _table(text))


def decode_local_offsets(text: str) -> LocalOffsetTable:
    """The table in offsets.json; raises :class:`OffsetTextError`."""
    if "".join(_LOCAL_ENTRY.sub("", text).replace(",", "").split()) not in _EMPTY_TABLES:
        raise OffsetTextError("holds no table of offsets")
    return dict(_local_entry(entry[1], entry[2]) for entry in _LOCAL_ENTRY.finditer(text))


def _local_entry(queue: str, offset: str) -> tuple[MessageQueue, int]:
    try:
        fields = json.loads(queue, strict=False)
        broker, topic, queue_id = fields["brokerName"], fields["topic"], fields["queueId"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OffsetTextError(f"{queue!r:.100} is no queue: {error}") from None
    if not isinstance(broker, str) or not isinstance(topic, str):
        raise OffsetTextError(f"{queue!r:.100} is no queue")
    return (broker, topic, _number(topic, queue_id, QUEUE_IDS)), _number(topic, offset, QUEUE_OFFSETS)


def _table(text: str) -> dict[str, Any]:
    tokens = _TOKEN.findall(text)
    for position, following in enumerate(tokens[1:]):
        if following == ":" and tokens[position][0] not in '"{}[]:,':
            tokens[position] = json.dumps(tokens[position])
    try:
        content = json.loads(" ".join(tokens), strict=False)
    except (ValueError, RecursionError) as error:
        raise OffsetTextError(f"cannot be parsed: {error}") from None
    table = content.get("offsetTable", {}) if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise OffsetTextError("holds no table of offsets")
    return table


def _offsets(name: str, offsets: object) -> Offsets:
    if not isinstance(offsets, dict):
        raise OffsetTextError(f"{shortly(name)}: no table of offsets")
    return {_number(name, key, QUEUE_IDS): _number(name, value, QUEUE_OFFSETS) for key, value in offsets.items()}


def _number(name: str, value: object, allowed: range) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise OffsetTextError(f"{shortly(name)}: {shown(value)} is no number that may stand there")
    return value
