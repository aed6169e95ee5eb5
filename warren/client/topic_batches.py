"""Messages for a topic on their way to the process that hosts the node: arguments of a call."""

from __future__ import annotations

from typing import Any

import attrs

from warren.client.calls import packed, unpacked
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.message_batch import Batch


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
    """The other way round."""
    properties = fields.pop("properties")
    return Batch(
        bodies=unpacked(fields.pop("bodies")),
        properties=unpacked(properties[0]) if isinstance(properties, list) else properties,
        born_host=Host(**fields.pop("born_host")),
        store_host=Host(**fields.pop("store_host")),
        **fields,
    )
