"""Messages as columns: those of the table ``messages``, which Parquet files of an export have, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warren.arrow.arrays import KINDS, hexadecimal, repeated, rows_of
from warren.salvage.message_batches import MessageBatch, MixedBatch, UniformBatch

_ROUTING_KEYS: Final[pa.DataType] = KINDS["array<string>"]


def message_arrays(batch: MessageBatch, *, bodies: bool = True) -> Mapping[str, Any]:
    """What each column of a batch is made of (:func:`~warren.arrow.arrays.as_array`), but for those that name the
    node and the queue.

    Without ``bodies`` the columns ``body`` and ``body_sha256`` are null.
    """
    columns = _uniform(batch) if isinstance(batch, UniformBatch) else _mixed(batch)
    return {**columns, **({"body": None, "body_sha256": None} if not bodies else {})}


def _uniform(batch: UniformBatch) -> dict[str, Any]:
    run, envelope, count, first = batch.run, batch.envelope, len(batch), batch.first_position
    return {
        "position": lambda: np.arange(first, first + count),
        "seq_id": run.seq_ids,
        "msg_id": lambda: hexadecimal(run.msg_ids),
        "persistent": True,
        "redelivered": run.redelivered,
        "expiry_us": lambda: _expiries(run.expiries_us),
        "size": batch.size,
        "exchange": envelope.exchange,
        "routing_keys": lambda: repeated(envelope.routing_keys, count, _ROUTING_KEYS),
        "properties": envelope.properties,
        "headers": envelope.headers,
        "encoded_properties": envelope.unsaid,
        "body": lambda: rows_of(batch.bodies, pa.binary()),
        "body_sha256": lambda: hexadecimal(batch.digests()),
        "file": run.path,
        "file_offset": run.offsets,
    }


def _mixed(batch: MixedBatch) -> dict[str, Any]:
    column = batch.column
    envelopes = column("envelope")
    return {
        "position": column("position"),
        "seq_id": column("seq_id"),
        "msg_id": lambda: [msg_id.hex() or None for msg_id in column("msg_id")],
        "persistent": column("persistent"),
        "redelivered": column("redelivered"),
        "acked": lambda: [is_acked or None for is_acked in column("acked")],
        "expiry_us": lambda: _expiries(np.array(column("expiry_us"), np.uint64)),
        "delivery_count": column("delivery_count"),
        "stream_offset": column("stream_offset"),
        "size": column("size"),
        "exchange": lambda: [envelope.exchange for envelope in envelopes],
        "routing_keys": lambda: [envelope.routing_keys for envelope in envelopes],
        "properties": lambda: [envelope.properties for envelope in envelopes],
        "headers": lambda: [envelope.headers for envelope in envelopes],
        "encoded_properties": lambda: [envelope.unsaid for envelope in envelopes],
        "body": lambda: column("body"),
        "body_sha256": lambda: _digests(column("body")),
        "file": column("path"),
        "file_offset": column("offset"),
    }


def _expiries(expiries_us: npt.NDArray[np.uint64]) -> pa.Array:
    return pa.array(expiries_us.view(np.int64), mask=expiries_us == 0)


def _digests(bodies: Sequence[bytes | memoryview]) -> pa.Array:
    digests = b"".join([sha256(body).digest() for body in bodies])
    return hexadecimal(np.frombuffer(digests, np.uint8).reshape(-1, sha256().digest_size))
