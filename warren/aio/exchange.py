"""Exchange: the one of :mod:`warren.handles.exchange`, for coroutines."""

from __future__ import annotations

import functools
from typing import Unpack

from warren.aio.bridge import awaited_safe, run_now
from warren.aio.confirm import Confirm
from warren.handles import exchange
from warren.storage.call_arguments import checked
from warren.values.messages import PublishArguments
from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.instrumentation import called


class Exchange(ExchangeHandle):
    """One exchange. ``publish`` and ``publish_many`` come back when the messages are safe in all queues."""

    @functools.cached_property
    def blocking(self) -> exchange.Exchange:
        """The same exchange, for threads."""
        return exchange.Exchange(self._verbs)

    publish = awaited_safe(ExchangeVerbs.publish)
    publish_many = awaited_safe(ExchangeVerbs.publish_many)

    @checked
    def publish_nowait(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        publish = self._verbs.publish
        return Confirm(run_now(called(publish, body, routing_key, mandatory=mandatory, block=False, **properties)))
