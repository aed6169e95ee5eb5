"""Messages for a topic on their way to the process that hosts the node: arguments of a call."""

from __future__ import annotations

from typing import Any

import attrs

from warren.client.calls import packed, unpacked
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.message_batch import Batch
from warren.storage.call_arguments import checked, signature
from warren.storage.errors import MessageError, shown


def batch_to_send(batch: Batch) -> dict[str, Any]:
    """Messages for a topic as an argument; :func:`batch_of` reads it."""
    properties = batch.properties
    return {
        **attrs.asdict(batch, recurse=False),
        "bodies": packed(batch.bodies),
        "properties": properties if isinstance(properties, bytes) else [packed(properties)],
        "born_host": attrs.asdict(batch.born_host),
        "store_host": attrs.asdict(batch.store_host),
    }


def batch_of(fields: dict[str, Any]) -> Batch:
    """The other way round. Raises :class:`InvalidValueError` if a record cannot have these values."""
    properties = fields["properties"]
    values = {
        **fields,
        "bodies": unpacked(fields["bodies"]),
        "properties": unpacked(properties[0]) if isinstance(properties, list) else properties,
        "born_host": _host_of(**fields["born_host"]),
        "store_host": _host_of(**fields["store_host"]),
    }
    signature(Batch.__init__, 1).check((), values)
    batch = Batch(**values)
    if not all(map(_has_32_bits, (batch.queue_id, batch.sys_flag, batch.reconsume_times))):
        raise MessageError(f"no messages of a topic: {shown(values)}")
    return batch


def _has_32_bits(number: int) -> bool:
    return -(1 << 31) <= number < 1 << 31


@checked
def _host_of(address: bytes, port: int) -> Host:
    if len(address) not in {4, 16} or not _has_32_bits(port):
        raise MessageError(f"no host of a message: {shown(address)}, {shown(port)}")
    return Host(address, port)
