"""The server properties in ``connection.start``. Clients adapt to them, so they name the broker that it imitates."""

from __future__ import annotations

from typing import Any, Final

PRODUCT: Final = "RabbitMQ"
VERSION: Final = "3.10.8"
PLATFORM: Final = "Erlang/OTP 25.2.3"
"""The broker whose behaviour this is, and what it runs on: clients ask for it by name, version and platform."""

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def server_properties(cluster_name: str) -> dict[str, Any]:
    return {
        "capabilities": CAPABILITIES,
        "cluster_name": cluster_name,
        "copyright": "the developers of warren",
        "information": "warren: RabbitMQ's classic queues, embedded",
        "platform": PLATFORM,
        "product": PRODUCT,
        "version": VERSION,
    }
