"""ChannelGets: a channel's gets of single messages, and of batches for guests of the directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pamqp import commands as c

from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_receivers import BUFFER, BUFFER_BYTES
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.runtime.future import Future
from warren.aio import bridge
from warren.amqp.methods import method_of, text_of
from warren.client.calls import packed
from warren.handles.channel import Channel
from warren.queue_index.message.contents import Content, contents_of, counted_contents_of, with_count
from warren.queue_index.queue.fetching import Fetched, FetchedAgain
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.channels.declarations import find_queue
from warren.server.channels.settlements import OF_GET, ChannelSettlements
from warren.server.channels.streams import refuse_stream
from warren.verbs.steps import asked


def contents_for(channel: ChannelLink, fetched: Fetched) -> Iterator[Content | None]:
    """Return messages in the form that is sent: those that came back with their counts, if enabled."""
    if isinstance(fetched, FetchedAgain) and (fetched.tells_count or channel.connection.is_owner):
        return counted_contents_of(fetched)
    return contents_of(fetched)


def counts_of(fetched: Fetched) -> Sequence[int]:
    """Return how often each message came back; nothing if none did."""
    return fetched.delivery_counts if isinstance(fetched, FetchedAgain) else ()


class ChannelGets:
    """The gets of one channel."""

    def __init__(self, channel: ChannelLink, settlements: ChannelSettlements) -> None:
        self._channel = channel
        self._settlements = settlements

    def get(self, method: c.Basic.Get) -> Work:
        channel = self._channel
        name = channel.queue_name(method.queue)
        channel.check("queue", name, "read")
        refuse_stream(channel, name, "basic.get")
        actor = find_queue(channel, name).actor
        through, required = self._settlements.through_for(actor), not method.no_ack
        future = asked(
            actor,
            lambda: (actor.queue_turn.get_many(through.name, 1, ack_required=required), len(actor.process.backing)),
        )
        future.send()
        if not future.done:
            return self._answer_get(method, through, future)
        self._send_get_answer(method, through, *future.get())
        return None

    async def _answer_get(self, method: c.Basic.Get, through: Channel, future: Future) -> None:
        self._send_get_answer(method, through, *await bridge.answer(future))

    def _send_get_answer(self, method: c.Basic.Get, through: Channel, batches: list[Delivered], ready: int) -> None:
        channel, unacked, required = self._channel, self._settlements.unacked, not method.no_ack
        for delivered in batches:
            tag = unacked.give(OF_GET, delivered.tags, through) if required else unacked.pass_by(delivered.count)
            if channel.traffic is not None:
                channel.traffic.get(no_ack=method.no_ack, redelivered=delivered.fetched.redelivered)
            # as RabbitMQ does, a first delivery's count is sent with a get, but not to a consumer
            tells_zero = through.actor.declaration.is_quorum and not any(counts_of(delivered.fetched))
            for fetched in contents_for(self._channel, delivered.fetched):
                content = with_count(fetched, 0) if tells_zero and fetched is not None else fetched
                if content is not None and channel.may_send:
                    if channel.trace is not None:
                        queue = through.actor.declaration.name
                        channel.trace.delivered(queue, content, redelivered=delivered.fetched.redelivered)
                    answer = method_of(
                        c.Basic.GetOk,
                        delivery_tag=tag,
                        redelivered=delivered.fetched.redelivered,
                        exchange=text_of(content.exchange),
                        routing_key=text_of(content.routing_key),
                        message_count=ready,
                    )
                    channel.send_message(answer, content.properties[0], content.bodies[0])
                    return
        if channel.traffic is not None:
            channel.traffic.empty_gets += 1
        channel.send(c.Basic.GetEmpty())

    def get_batch(self, name: str, count: int) -> Any:
        """Get at most ``count`` messages, and few once they have a mebibyte, for :func:`warren.client.received.got_of`:
        similar ones together, with the first one's tag. Returns a coroutine if the queue is busy."""
        refuse_stream(self._channel, name, "basic.get")
        actor = find_queue(self._channel, name).actor
        through = self._settlements.through_for(actor)

        def take() -> list[Delivered]:
            limit = min(count, BUFFER)
            return actor.queue_turn.get_many(through.name, limit, ack_required=True, limit_bytes=BUFFER_BYTES)

        future = asked(actor, take)
        future.send()
        return self._batch_of(through, future.get()) if future.done else self._batch_when(through, future)

    async def take_batch(self, name: str, id: str) -> list[tuple[Any, ...]]:
        """Take one message by its id, from wherever it stands, in the form of :meth:`get_batch`."""
        from warren.verbs.moving import take

        refuse_stream(self._channel, name, "basic.get")
        through = self._settlements.through_for(find_queue(self._channel, name).actor)
        return self._batch_of(through, await bridge.run(take(through, chosen_ids([id]))))

    async def _batch_when(self, through: Channel, future: Future) -> list[tuple[Any, ...]]:
        return self._batch_of(through, await bridge.answer(future))

    def _batch_of(self, through: Channel, batches: list[Delivered]) -> list[tuple[Any, ...]]:
        runs: list[tuple[tuple[Any, ...], int, list[bytes]]] = []
        for delivered in batches:
            redelivered = delivered.fetched.redelivered
            tag = self._settlements.unacked.give(OF_GET, delivered.tags, through)
            for content in contents_for(self._channel, delivered.fetched):
                for part in () if content is None else content.alike():
                    alike = redelivered, part.exchange, part.routing_key, part.properties[0]
                    if runs and runs[-1][0] == alike and runs[-1][1] + len(runs[-1][2]) == tag:
                        runs[-1][2].extend(part.bodies)
                    else:
                        runs.append((alike, tag, list(part.bodies)))
                    tag += len(part.bodies)
                tag += content is None
        return [(tag, *alike, packed(bodies)) for alike, tag, bodies in runs]
