"""RetryPolicy: how often a message may come back to its queue, and how long it waits there each time.

The arguments are those of quorum queues and of LavinMQ. ``x-delivery-limit`` is how often a message may come back
before it dies. ``x-delayed-retry-min`` (ms) is how long a message that comes back waits, in its old position, before it
is delivered again. The wait grows each time:

===============================  =====================================================
``x-delayed-retry-multiplier``   the wait when it comes back for the n-th time
===============================  =====================================================
none                             min × n
1                                min
m ≥ 2                            min × m to the power of n - 1
===============================  =====================================================

``x-delayed-retry-max`` (ms) bounds it. ``x-delayed-retry-jitter`` shortens it by up to this percentage, differently for
each message, so that messages that failed together do not come back together. The percentage is derived from the
message's seq_id, so that the same queue behaves the same way twice.

``x-delayed-retry-type`` says which messages wait, as for the quorum queues of RabbitMQ 4.3. A delivery *failed* if the
message was rejected (``basic.reject`` with ``requeue``), if it was given to ``retry``, or if its channel ended; it was
*returned* if it came back in any other way: ``basic.nack``, ``basic.recover``, an ack timeout.

================  ==================================
type              waits
================  ==================================
none, ``all``     every message that comes back
``failed``        messages whose delivery failed
``returned``      messages that were returned
``disabled``      no message
================  ==================================

A message that is given to ``retry`` waits in any case: as :data:`OF_FAILURES` says if the queue's arguments do not
apply to it, or there is no ``x-delayed-retry-min``.
"""

from __future__ import annotations

import zlib
from typing import Final

import attrs

from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS, QueueArguments


@attrs.frozen
class RetryPolicy:
    """How long messages that come back wait. All times in milliseconds."""

    min_ms: int
    max_ms: int | None = None
    multiplier: int | None = None
    jitter_percent: int = 0

    @classmethod
    def of(cls, arguments: QueueArguments, *, failed: bool) -> RetryPolicy | None:
        """The policy for a message that failed, or that was returned; ``None``: it does not wait."""
        min_ms = arguments.delayed_retry_min_ms
        if min_ms is None or arguments.delayed_retry_type not in ("all", "failed" if failed else "returned"):
            return None
        return cls(
            min_ms,
            arguments.delayed_retry_max_ms,
            arguments.delayed_retry_multiplier,
            arguments.delayed_retry_jitter,
        )

    def wait_us(self, count: int, seq_id: int) -> int:
        """How long a message waits when it comes back for the ``count``-th time, in microseconds."""
        most_ms = MAX_PERIOD_MS if self.max_ms is None else self.max_ms
        if self.multiplier is None:
            wait_ms = self.min_ms * max(count, 1)
        else:  # the power exceeds any bound, so do not compute it
            wait_ms = self.min_ms * self.multiplier ** min(max(count - 1, 0), 64)
        wait_us = min(wait_ms, most_ms) * 1000
        if not self.jitter_percent:
            return wait_us
        share = zlib.crc32(b"%d %d" % (seq_id, count)) / (1 << 32)
        return wait_us - int(wait_us * share * self.jitter_percent / 100)


OF_FAILURES: Final = RetryPolicy(1000, 300_000, 2)
"""The default for messages given to ``retry``: 1, 2, 4 … seconds, and five minutes at most."""
