"""The feature flags of RabbitMQ 3.10.8, with what they say of a warren: *enabled*, or *unavailable*."""

from __future__ import annotations

from typing import Any, Final

_AGENT: Final = "rabbitmq_management_agent"
_RABBIT: Final = "rabbit"


def _flag(name: str, text: str, state: str = "enabled", *, by: str = _RABBIT, url: str = "") -> dict[str, Any]:
    return {"name": name, "desc": text, "doc_url": url, "state": state, "stability": "stable", "provided_by": by}


FEATURE_FLAGS: Final = (
    _flag("classic_mirrored_queue_version", "Support setting version for classic mirrored queues", "unavailable"),
    _flag("drop_unroutable_metric", "Count unroutable publishes to be dropped in stats", by=_AGENT),
    _flag("empty_basic_get_metric", "Count AMQP `basic.get` on empty queues in stats", by=_AGENT),
    _flag(
        "implicit_default_bindings",
        "Default bindings are now implicit, instead of being stored in the database",
    ),
    _flag("maintenance_mode_status", "Maintenance mode status", "unavailable"),
    _flag("quorum_queue", "Support queues of type `quorum`", url="https://www.rabbitmq.com/quorum-queues.html"),
    _flag("stream_queue", "Support queues of type `stream`", url="https://www.rabbitmq.com/stream.html"),
    _flag("user_limits", "Configure connection and channel limits for a user"),
    _flag("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)
"""As the management API has them. A single node has no mirrors and no maintenance."""
