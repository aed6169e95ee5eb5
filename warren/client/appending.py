"""Calls on their way to the host whose answers confirm something: messages for topics, and what is decided of them.

They are done in order and answered in order; what is not answered is sent again over the next socket
(:mod:`warren.client.resending`). Single messages join the last :class:`AppendRun` while that has not been sent.
"""

from __future__ import annotations

import time
from typing import Any

import attrs
import numpy as np
from pamqp.base import Frame as Method

from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.leader_follower import Later
from warren.actors.topics.log_intake import AppendConfirm, AppendKey, batch_of_items, size_of, went_all
from warren.amqp.connection import Connection
from warren.amqp.own_methods import Call, CallError
from warren.client.calls import check_fits, error_of, plain, result_of
from warren.client.resending import RUN_MESSAGES, WINDOW_BYTES, ResendingChannel
from warren.client.topic_batches import batch_to_send
from warren.msg_store.commit_log.commit_log import Appended
from warren.msg_store.commit_log.message_batch import Batch
from warren.storage.errors import WarrenError


@attrs.define(eq=False)
class ConfirmedCall:
    """One call."""

    channel: ConfirmedCalls
    verb: str
    arguments: dict[str, Any]
    confirm: Confirm
    size: int = 0

    def encode(self, engine: Connection) -> None:
        self.channel.encode(self, engine)

    def call(self) -> Call:
        """What is sent."""
        return Call(self.verb, plain(self.arguments))

    def answer(self, result: Any) -> Any:
        """What the confirm is answered with."""
        return result


@attrs.define(eq=False)
class AppendCall(ConfirmedCall):
    """Batches. The confirm is answered with what was appended, as that of the CommitLog's actor."""

    topics: dict[str, int] = attrs.Factory(dict)
    """Where to note how many queues a topic has."""
    batches: list[Batch] = attrs.Factory(list)

    def call(self) -> Call:
        return Call(self.verb, {"batches": list(map(batch_to_send, self.batches))})

    def answer(self, result: Any) -> Any:
        self.topics.update((batch.topic, entry["queues"]) for batch, entry in zip(self.batches, result, strict=True))
        return [
            Appended(
                np.frombuffer(entry["physical_offsets"], np.int64),
                np.frombuffer(entry["sizes"], np.int32),
                entry["queue_offset"],
            )
            for entry in result
        ]


@attrs.define(eq=False)
class AppendRun(AppendCall):
    """Messages that were appended one by one, with one confirm."""

    key: AppendKey | None = None
    items: list[AppendConfirm] = attrs.Factory(list)
    by_queue: list[list[AppendConfirm]] = attrs.Factory(list)

    def call(self) -> Call:
        if not self.batches and self.key is not None:
            by_queue_id: dict[int, list[AppendConfirm]] = {}
            for item in self.items:
                by_queue_id.setdefault(item.queue_id, []).append(item)
            self.by_queue = list(by_queue_id.values())
            now_ms = time.time_ns() // 1_000_000
            self.batches = [batch_of_items(self.key, items[0].queue_id, items, now_ms) for items in self.by_queue]
        return super().call()

    def answer(self, result: Any) -> Any:
        for items, appended in zip(self.by_queue, super().answer(result), strict=True):
            went_all(items, appended)


class ConfirmedCalls(ResendingChannel[ConfirmedCall]):
    """The channel of a vhost's calls of this kind."""

    tries_full_disk = True

    # ── handing over ────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, verb: str, arguments: dict[str, Any]) -> Confirm | Future:
        """Call a verb; a future that is no confirm says what to wait for before that."""
        check_fits(arguments)
        return self.hand_over(lambda: ConfirmedCall(self, verb, arguments, Confirm(self.link)))

    def append_many(self, batches: list[Batch], topics: dict[str, int]) -> Confirm | Future:
        """The same for messages in batches."""
        return self.hand_over(
            lambda: AppendCall(self, "topic.append", {}, Confirm(self.link), size_of(batches), topics, batches)
        )

    def append(self, item: AppendConfirm, topics: dict[str, int]) -> Confirm | Future:
        """The same for one message, which may join others."""
        link, size = self.link, item.size_bytes
        with link.locked():
            run = link.outbox.last_gathered
            if (
                isinstance(run, AppendRun)
                and run.key is item.key
                and len(run.items) < RUN_MESSAGES
                and self.window.used_bytes < WINDOW_BYTES
                and link.refusing is None
            ):
                run.items.append(item)
                run.size += size
                self.window.used_bytes += size
                link.outbox.gather(None, size)
                return run.confirm
        return self.hand_over(
            lambda: AppendRun(self, "topic.append", {}, Confirm(self.link), size, topics, key=item.key, items=[item])
        )

    def send(self, call: ConfirmedCall, engine: Connection) -> None:
        engine.send(self.number, call.call())

    def send_again(self, engine: Connection) -> None:
        for call in self.sent:
            self.send(call, engine)

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def is_answer(self, method: Method, later: Later) -> bool:
        if not self.sent or self.asked:
            return True  # to what opens the channel
        call = self.sent.pop(0)
        if isinstance(method, CallError):
            error = error_of(method)
            self.finish(call, error if isinstance(error, WarrenError) else WarrenError(str(error)), later)
        else:
            later.append((_answer, (call, method)))
            self.window.give_back(call.size, later)
        self.tell_idle(later)
        return False


def _answer(call: ConfirmedCall, method: Method) -> None:
    try:
        call.confirm.offer(call.answer(result_of(method)))
    except Exception as error:
        call.confirm.fail(error)
