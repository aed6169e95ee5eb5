"""A transport for Kombu, and so for Celery: their queues in a directory of this process, without a server.

After ``import warren.kombu``, the URL ``warren:///path/to/directory`` works wherever Kombu takes one. Where nothing can
be imported first, name the class: ``Connection(url, transport="warren.kombu:Transport")``, in Celery's configuration
``broker_transport = "warren.kombu:Transport"``.

Needs ``pip install "warrenmq[kombu]"``.

How it is made. AMQP's model is warren's own, so nothing of it is imitated: an AMQP method is a verb of the node
(:mod:`warren.kombu.channel`). What Kombu has beyond that is here. A *connection* (:mod:`warren.kombu.connection`) is a
share in the node of its directory, the owner of its exclusive queues, and the one place where all its consumers'
messages come together. A *subscription* (:mod:`warren.kombu.subscription`) is one consumer of a channel.
"""

from __future__ import annotations

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise ImportError('the transport for Kombu needs Kombu: pip install "warrenmq[kombu]"') from error

from warren.kombu.transport import Transport

TRANSPORT_ALIASES["warren"] = "warren.kombu:Transport"

__all__ = ["Transport"]
