"""Every table's columns, in order, each with what it says.

Spark has no unsigned integers. Of what a file keeps as one, 32 bits become ``bigint`` and 64 bits ``bigint`` with the
same bits: numbers from 2^63 on come out negative. No broker writes such numbers; only damage does. Times stay what the
files say, milliseconds or microseconds since 1970, so that they compare with the single-machine commands; Spark's
``timestamp_millis`` and ``timestamp_micros`` make timestamps of them.

Where a row came from is said by ``node`` (the directory, as it was loaded), ``file`` (its path) and ``file_offset``
(bytes from the file's begin).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_STRING, _LONG, _INT, _BOOLEAN, _BINARY = StringType(), LongType(), IntegerType(), BooleanType(), BinaryType()


def _schema(*columns: tuple[str, DataType, str]) -> StructType:
    return StructType([StructField(name, of, True, {"comment": comment}) for name, of, comment in columns])


_NODE: Final = ("node", _STRING, "the directory that was loaded, as its path was given or matched")
_FILE: Final = ("file", _STRING, "the file that it stands in")
_FILE_OFFSET: Final = ("file_offset", _LONG, "where in that file, bytes from its begin")

QUEUES: Final = _schema(
    _NODE,
    ("vhost", _STRING, "the virtual host's name"),
    ("queue", _STRING, "the queue's name; the levels of a priority queue bear its bare name"),
    ("priority", _INT, "the level of a priority queue; null for other queues"),
    ("dir", _STRING, "the name of the queue's directory"),
    ("kind", _STRING, "the format of its files"),
    ("ready", _LONG, "messages that a restarted broker would deliver"),
    ("bytes", _LONG, "of their payloads"),
    ("details", _STRING, "JSON: all else that warren inspect says of the queue"),
)
"""A row for each queue's directory."""
