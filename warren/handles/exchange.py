"""Exchange: where messages are published that are routed by their key or their headers."""

from __future__ import annotations

from warren.verbs.exchange_verbs import ExchangeHandle, ExchangeVerbs
from warren.verbs.steps import blocking


class Exchange(ExchangeHandle):
    """One exchange. Made by :meth:`warren.Vhost.exchange`."""

    publish = blocking(ExchangeVerbs.publish)
    publish_many = blocking(ExchangeVerbs.publish_many)
