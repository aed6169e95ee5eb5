"""Rows of an answer as text for programs, or as Parquet.

What SQL has and a format has not is written so:

======================  ==================================  ==============================================
\\                       CSV                                 JSON lines
======================  ==================================  ==============================================
null                    nothing                             ``null``
a blob                  text; ``\\x0A`` for other bytes      base64, as ``warren export`` writes bodies
lists, maps, structs    JSON                                arrays and objects
JSON                    as it is                            what it says
times                   ISO 8601                            ISO 8601
======================  ==================================  ==============================================

For people, in Markdown and in a table, a blob is text wherever it is UTF-8; all else is as in CSV.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from warren.salvage.names import Json, to_json
from warren.sql import SqlError
from warren.sql.statements import Answer

Write = Callable[[bytes], object]

_ROWS: Final = 1024
_ESCAPES: Final = {byte: f"\\x{byte:02X}" for byte in range(256) if not 32 <= byte < 127 or byte == ord("\\")}

_AS_THEY_ARE: Final = frozenset({"VARCHAR", "BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT"})
_UNPLAIN: Final = re.compile(rb"[^ -\[\]-~]")
"""What is escaped, as a pattern: a search without a match is much faster than translating every character."""


def write_csv(answer: Answer, write: Write) -> None:
    """Write the names, and a line for each row."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(answer.names)
    for number, row in enumerate(_converted(answer, as_text), 1):
        writer.writerow(row)
        if not number % _ROWS:
            write(_taken(lines))
    write(_taken(lines))


def _taken(lines: io.StringIO) -> bytes:
    text = lines.getvalue()
    lines.seek(0)
    lines.truncate()
    return text.encode()


def write_jsonl(answer: Answer, write: Write) -> None:
    """Write a JSON object on a line for each row."""
    names = _distinct(answer.names)
    for row in _converted(answer, as_json):
        write(to_json(dict(zip(names, row, strict=True))) + b"\n")


def _converted(answer: Answer, convert: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Yield the rows, converted, except text and whole numbers. JSON is parsed only for JSON lines."""
    conversions = [
        (number, json.loads if column.kind == "JSON" and convert is as_json else convert)
        for number, column in enumerate(answer.columns)
        if column.kind not in _AS_THEY_ARE
    ]
    for row in answer.rows():
        values = list(row)
        for number, converter in conversions:
            if values[number] is not None:
                values[number] = converter(values[number])
        yield values


def write_markdown(answer: Answer, write: Write) -> None:
    """Write a table in Markdown."""
    write(_markdown_line(answer.names))
    write(_markdown_line("---:" if is_number(column.kind) else "---" for column in answer.columns))
    for row in answer.rows():
        write(_markdown_line(for_people(value) for value in row))


def _markdown_line(cells: Iterable[str]) -> bytes:
    texts = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("\r", "").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(texts)} |\n".encode()


def write_parquet(answer: Answer, write: Write) -> None:
    """Write a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from warren.arrow.parquet_export import GROUP_BYTES, GROUP_ROWS, Sink

    sink = Sink(write)
    try:
        with answer.batches() as batches, pq.ParquetWriter(pa.PythonFile(sink, mode="w"), batches.schema) as writer:
            pending: list[pa.RecordBatch] = []
            for batch in batches:
                pending.append(batch)
                if sum(part.nbytes for part in pending) >= GROUP_BYTES or sum(map(len, pending)) >= GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(pending))
                    pending = []
            writer.write_table(pa.Table.from_batches(pending, batches.schema))
    except pa.ArrowNotImplementedError as error:
        raise SqlError(f"not as Parquet: {' '.join(str(error).split())}") from error
    finally:
        sink.end()


def is_number(kind: str) -> bool:
    """Whether a column of that type has numbers."""
    return (
        kind.startswith(("DECIMAL", "DOUBLE", "FLOAT")) or (kind.endswith("INT") and "[" not in kind) or kind in _INTS
    )


_INTS: Final = ("INTEGER", "UINTEGER")


def _distinct(names: list[str]) -> list[str]:
    """Return the names, made unique: an object has one value for each."""
    distinct: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct[candidate] = None
    return list(distinct)


def as_text(value: Any) -> str:
    """A value as CSV has it."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case bytes():
            text = value.decode("latin-1")
            return text.translate(_ESCAPES) if _UNPLAIN.search(value) else text
        case list() | tuple() | dict():
            return to_json(as_json(value)).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return str(value)


def for_people(value: Any) -> str:
    """A value as a table has it."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return as_text(value)


def as_json(value: Any) -> Json:
    """A value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [as_json(element) for element in value]
        case dict():
            return {str(as_text(key)): as_json(element) for key, element in value.items()}
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | uuid.UUID():
            return str(value)
        case _:
            return str(value)
