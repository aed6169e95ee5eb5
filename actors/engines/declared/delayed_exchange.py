"""The exchange type ``x-delayed-message``: the header ``x-delay``, parsed as by RabbitMQ's plugin.

The value is a whole number of milliseconds, also as a text or a float. The message waits for this time and is then
routed by the exchange's ``x-delayed-type``. Without the header, or with 0 or less, it is routed at once. Once the
message has waited, its header is negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

X_DELAY: Final = "x-delay"


def delay_of(headers: Mapping[str, Any]) -> int:
    """Milliseconds; 0: at once."""
    value = headers.get(X_DELAY)
    match value:
        case bool():
            return 0
        case int():
            return max(int(value), 0)
        case float() if math.isfinite(value):
            return max(int(value), 0)
        case str() | bytes():
            try:
                return max(int(value), 0)
            except ValueError:
                return 0
    return 0


def has_waited(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers of a message after it has waited."""
    delay_ms = delay_of(headers)
    return {**headers, X_DELAY: -delay_ms} if delay_ms else headers
