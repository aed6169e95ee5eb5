"""Works of a server's clients, for the table of costs: messages like a task queue's, no two alike."""

from __future__ import annotations

from typing import Any, Final

from pamqp import commands as c

from benchmarks.amqp_client import Client
from benchmarks.peers.procedures import Run, WrongError
from benchmarks.tasks import ROUTING_KEYS, TaskMessage, task_messages
from tests.support.hand_server import CHANNEL, HandClient, HandServer
from warren.amqp.methods import method_of
from warren.amqp.received import Messages

_TOGETHER: Final = 200
"""Messages of one read."""
_EXCHANGE: Final = "topic"


def served_tasks(run: Run) -> None:
    """Published into one queue with confirms, consumed with an ack each, published to ten queues."""
    messages = task_messages(run.messages)
    with run.opened() as peer:
        server = HandServer(_hand_of(peer))
        publisher, consumer = HandClient(server), HandClient(server)
        _declare(publisher)
        publisher.call(c.Confirm.Select())
        reads, reads_of_ten = _reads("", messages), _reads(_EXCHANGE, messages)
        _publish(publisher, [reads[0], reads_of_ten[0]])  # which fills the caches
        publisher.call(c.Queue.Purge(queue="bench"))
        with run.watch.timing("publish", len(messages)):
            _publish(publisher, reads)
        with run.watch.timing("consume, an ack each", len(messages)):
            _consume(consumer, messages)
        with run.watch.timing("publish to ten queues", len(messages)):
            _publish(publisher, reads_of_ten)
        server.close()


def _hand_of(peer: Any) -> Any:
    return peer.hand


def _declare(client: HandClient) -> None:
    client.call(method_of(c.Queue.Declare, queue="bench", durable=True))
    client.call(method_of(c.Exchange.Declare, exchange=_EXCHANGE, exchange_type="topic", durable=True))
    for number in range(ROUTING_KEYS):
        client.call(method_of(c.Queue.Declare, queue=f"bench-{number}", durable=True))
        client.call(method_of(c.Queue.Bind, queue=f"bench-{number}", exchange=_EXCHANGE, routing_key=f"k{number}"))


def _reads(exchange: str, messages: list[TaskMessage]) -> list[bytes]:
    """What publishes the messages, as the server reads it."""
    publishes = [
        Client.publish_of(exchange, f"k{message.number}" if exchange else "bench", message.properties, [message.body])
        for message in messages
    ]
    return [b"".join(publishes[low : low + _TOGETHER]) for low in range(0, len(publishes), _TOGETHER)]


def _publish(client: HandClient, reads: list[bytes]) -> None:
    for data in reads:
        client.send(data)
        client.exchange()


def _consume(client: HandClient, messages: list[TaskMessage]) -> None:
    client.call(c.Basic.Qos(0, _TOGETHER, False))
    client.engine.send(CHANNEL, method_of(c.Basic.Consume, queue="bench", nowait=True))
    bodies: list[bytes] = []
    while len(bodies) < len(messages):
        events = [event for event in client.exchange() if isinstance(event, Messages)]
        if not events:
            raise WrongError(f"{len(messages)} were published, {len(bodies)} came out")
        for event in events:
            bodies += event.bodies
            client.engine.settle(CHANNEL, method_of(c.Basic.Ack), event.tags)
    client.exchange()
    if bodies != [message.body for message in messages]:
        raise WrongError("other messages came out than were published")
