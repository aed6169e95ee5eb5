"""The exchange type ``x-delayed-message``: what a message's header ``x-delay`` says, as RabbitMQ's plugin reads it.

The value is a whole number of milliseconds, or a text or a fraction that is one. The message waits for this time and is
then routed as the exchange's ``x-delayed-type`` says. Without the header, or with 0 or less, it is routed at once. The
header of a message that has waited is negative.
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
    """The headers of a message once it has waited as they say."""
    delay_ms = delay_of(headers)
    return {**headers, X_DELAY: -delay_ms} if delay_ms else headers
