"""Messages as Arrow arrays: the columns of the table ``messages``, which Parquet files of an export have, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from warren.pipeline.arrays import hexadecimal, repeated, rows_of
from warren.pipeline.schemas import MESSAGES
from warren.salvage.message_batches import MessageBatch, MixedBatch, UniformBatch

_TYPES: Final[dict[str, pa.DataType]] = {field.name: to_arrow_type(field.dataType) for field in MESSAGES}

Arrays = Mapping[str, Callable[[], pa.Array]]


def message_arrays(batch: MessageBatch, *, bodies: bool = True) -> Arrays:
    """What makes each column of a batch, but for those that name the node and the queue.

    Without ``bodies`` they are null, and so are their digests.
    """
    return _uniform(batch, bodies=bodies) if isinstance(batch, UniformBatch) else _mixed(batch, bodies=bodies)


def same(values: Mapping[str, Any], count: int) -> Arrays:
    """Columns that have one value in all rows."""
    return {name: _repeated(name, value, count) for name, value in values.items()}


def _repeated(name: str, value: Any, count: int) -> Callable[[], pa.Array]:
    return lambda: repeated(value, count, _TYPES[name])


def _listed(name: str, values: Iterable[Any]) -> Callable[[], pa.Array]:
    return lambda: pa.array(values, _TYPES[name])


def _uniform(batch: UniformBatch, *, bodies: bool) -> Arrays:
    run, envelope, count, first = batch.run, batch.envelope, len(batch), batch.first_position
    constant = {
        "persistent": True,
        "redelivered": run.redelivered,
        "delivery_count": None,
        "size": batch.size,
        "exchange": envelope.exchange,
        "routing_keys": envelope.routing_keys,
        "properties": envelope.properties,
        "headers": envelope.headers,
        "body": None,
        "body_sha256": None,
        "file": run.path,
    }
    arrays = {
        **same(constant, count),
        "position": lambda: pa.array(np.arange(first, first + count, dtype=np.int64)),
        "seq_id": lambda: pa.array(run.seq_ids),
        "msg_id": lambda: hexadecimal(run.msg_ids),
        "expiry_us": lambda: _expiries(run.expiries_us),
        "file_offset": lambda: pa.array(run.offsets),
    }
    if bodies:
        arrays["body"] = lambda: rows_of(batch.bodies, pa.binary())
        arrays["body_sha256"] = lambda: _digests(batch.bodies)
    return arrays


def _mixed(batch: MixedBatch, *, bodies: bool) -> Arrays:
    envelopes = batch.envelopes
    arrays = {
        "position": _listed("position", batch.positions),
        "seq_id": _listed("seq_id", batch.seq_ids),
        "msg_id": lambda: pa.array([msg_id.hex() or None for msg_id in batch.msg_ids], pa.string()),
        "persistent": _listed("persistent", batch.persistent),
        "redelivered": _listed("redelivered", batch.redelivered),
        "expiry_us": lambda: _expiries(np.array(batch.expiries_us, np.uint64)),
        "delivery_count": _listed("delivery_count", batch.delivery_counts),
        "size": _listed("size", batch.sizes),
        "exchange": lambda: pa.array([one.exchange for one in envelopes], pa.string()),
        "routing_keys": lambda: pa.array([one.routing_keys for one in envelopes], _TYPES["routing_keys"]),
        "properties": lambda: pa.array([one.properties for one in envelopes], pa.string()),
        "headers": lambda: pa.array([one.headers for one in envelopes], pa.string()),
        **same({"body": None, "body_sha256": None}, len(batch)),
        "file": _listed("file", batch.paths),
        "file_offset": _listed("file_offset", batch.offsets),
    }
    if bodies:
        arrays["body"] = _listed("body", batch.bodies)
        arrays["body_sha256"] = lambda: _digests(batch.bodies)
    return arrays


def _expiries(expiries_us: npt.NDArray[np.uint64]) -> pa.Array:
    return pa.array(expiries_us.view(np.int64), mask=expiries_us == 0)


def _digests(bodies: Sequence[bytes | memoryview] | npt.NDArray[np.uint8]) -> pa.Array:
    digests = b"".join([sha256(body).digest() for body in bodies])
    return hexadecimal(np.frombuffer(digests, np.uint8).reshape(-1, sha256().digest_size))
