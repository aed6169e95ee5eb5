"""A reader of a topic that another process hosts. The verbs are those of :mod:`warren.verbs.topics.reader_verbs`.

It has a channel of its own, and is a member of its group while that is open. So its claims name the channel where those
of the host's readers name the running topics. A new socket, a new host, or reopened topics mean a new channel, and the
reader joins again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Unpack

import attrs
from pamqp.base import Frame as Method

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.engines.topics.errors import QueueLostError
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import Later
from warren.amqp.own_methods import Arrived, Call, CallError, CallOk
from warren.client.calls import error_of, plain, restored, unpacked
from warren.client.channels import ClientChannel
from warren.client.errors import LinkLostError
from warren.client.remote import RemoteVhost
from warren.msg_store.commit_log.commit_log_format import Record, encode
from warren.msg_store.commit_log.packed_records import PackedRecords, packed
from warren.queue_index.topics.local_offsets import SEPARATOR
from warren.storage.call_arguments import as_texts
from warren.storage.errors import WarrenError
from warren.values.topic_record import to_ms
from warren.verbs.steps import Steps
from warren.verbs.topics.reader_verbs import Claim, Done, Fetched, Read, ReaderArguments, ReaderVerbs


class ReaderChannel(ClientChannel):
    """The channel of one reader. The answer to a request is what the verb returns."""

    arrival: Future | None = None

    def call(self, verb: str, **arguments: Any) -> Future:
        """Call a verb of the reader."""
        return self.ask(Call("reader", plain({"verb": verb, **arguments})))

    def join(self, **arguments: Any) -> Future:
        """Become a member."""
        return self.ask(Call("reader.join", plain(arguments)))

    def is_answer(self, method: Method, later: Later) -> bool:
        match method:
            case Arrived():
                self._ring(later)
            case CallError():
                later.append((self.asked.popleft().fail, (error_of(method),)))
            case CallOk():
                later.append((self.asked.popleft().offer, (restored(method.result["result"]),)))
            case _:
                return True
        return False

    def listen(self) -> Future:
        """Return a future that is answered when there may be more messages, or the channel is over."""
        with self.link.locked():
            arrival = Future(self.link)
            if self.error is None:
                self.arrival = arrival
                return arrival
        arrival.set()
        return arrival

    def closed(self, error: WarrenError, later: Later) -> None:
        self.end(LinkLostError(str(error)), later)

    def end(self, error: WarrenError, later: Later) -> None:
        super().end(error, later)
        self._ring(later)

    def _ring(self, later: Later) -> None:
        arrival, self.arrival = self.arrival, None
        if arrival is not None:
            later.append((arrival.offer, (None,)))

    def leave(self, _: Later) -> None:
        """Close the channel."""
        if self.error is None:
            self.error = LinkLostError("the reader is closed")
            self.link.leave(self)


@attrs.define(eq=False)
class RemoteClaim(Claim):
    """A claim with its records."""

    records: list[PackedRecords] = attrs.field(factory=list, kw_only=True)
    failure: WarrenError | None = attrs.field(default=None, kw_only=True)
    """Why the records after them could not be read."""


class RemoteReaderVerbs(ReaderVerbs):
    """The verbs of one reader."""

    _joined: Any = None

    def __init__(self, remote: RemoteVhost, topic: str, group: str, **arguments: Unpack[ReaderArguments]) -> None:
        tags = arguments.get("tags")
        if tags is not None and not isinstance(tags, str):
            arguments["tags"] = tags = as_texts(tags, "tags")
        self._said_tags = tags
        super().__init__(remote, topic, group, **arguments)  # type: ignore[arg-type]
        self._remote = remote

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> Steps[Any]:
        self._check_open()
        while self._joined is None or not self._joined.alive:
            error = None if self._joined is None else self._joined.error
            if error is not None and not isinstance(error, LinkLostError):
                raise error
            channel = ReaderChannel(self._remote.link)
            try:
                yield self._remote.link.ready()
                yield channel.open()
                yield from self._join(channel)  # type: ignore[arg-type]
            except LinkLostError:
                continue
            except BaseException:
                self._let_go(channel)
                raise
        return self._joined

    def _ask_to_join(self, running: Any) -> Steps[Future]:
        place, broadcast = self._consume_from, self._broadcast
        self.name = f"{self.group}-{os.urandom(6).hex()}"  # unique among all processes
        arguments = {
            "topic": self.topic,
            "group": self.group,
            "name": self.name,
            "tags": self._said_tags,
            "consume_from": place if isinstance(place, str | Mapping | int) else to_ms(place) / 1000,
            "broadcast": broadcast is not None,
        }
        if broadcast is not None:
            instance = self.group_key.partition(SEPARATOR)[2] if self._joined is not None else None
            arguments["instance_name"] = (instance if self.group else None) or broadcast.instance_name
            arguments["positions"] = broadcast.positions
        joined: Future = running.join(**arguments)
        return joined
        yield

    def _leave_again(self, running: Any, joined: Future) -> None:
        """Do nothing: closing the channel leaves the group."""

    def queues(self) -> Steps[list[int]]:
        while True:
            try:
                channel = yield from self._now()
                queue_ids: list[int] = yield channel.call("queues")
            except LinkLostError:
                continue
            return queue_ids

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def go_on(self, max_records: int, timeout: float | None) -> Steps[Read]:
        read = yield from self._remote.within(timeout or None, super().go_on(max_records, timeout))
        if not read:
            self._remote.link.check_heard(timeout)
        return read

    def take(self, max_records: int, timeout: float | None) -> Steps[Read]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                return (yield from super().take(max_records, left))
            except LinkLostError:
                continue

    def listen(self, running: Any) -> Future:
        arrival: Future = running.listen()
        return arrival

    def stop_listening(self, running: Any, arrival: Future) -> None:
        if running.arrival is arrival:
            running.arrival = None

    def ask_to_take(self, running: Any, max_records: int) -> Steps[Future]:
        taking: Future = running.call("take", max_records=max_records)
        return taking
        yield

    def _claims(self, running: Any, answer: Any) -> list[Claim]:
        claims = [
            RemoteClaim(
                self,
                running,
                place["topic"],
                Taken(**place["taken"]),
                records=[packed(*records)] if (records := unpacked(place["records"])) else [],
            )
            for place in answer["places"]
        ]
        if answer["error"] is not None:
            error = error_of(CallError(**answer["error"]))
            claims[-1].failure = error if isinstance(error, WarrenError) else WarrenError(str(error))
        return list[Claim](claims)

    def _fetch(self, running: Any, claims: list[Claim]) -> Steps[Fetched]:
        records = [claim.records for claim in claims if isinstance(claim, RemoteClaim)]
        return records, getattr(claims[-1], "failure", None)
        yield

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit_up_to(self, places: list[tuple[Claim, int]]) -> Steps[None]:
        try:
            yield from super().commit_up_to(places)
        except LinkLostError as error:
            if (closed := self._remote.link.closed) is not None:
                raise closed from error
            raise QueueLostError(f"group {self.group!r}, topic {self.topic!r}: {error}") from error

    def wake(self, running: Any) -> None:
        """Do nothing: the host commits at once."""

    def ask_to_commit(self, running: Any, done: Done) -> Future:
        asked: Future = running.call("commit", done=done)
        return asked

    def ask_to_take_back(self, running: Any, topic: str, taken: Taken, queue_offset: int) -> Future:
        asked: Future = running.call("take_back", topic=topic, taken=taken, queue_offset=queue_offset)
        return asked

    def _send_back(self, running: Any, record: Record, delay_level: int) -> Steps[None]:
        while True:
            try:
                yield running.call("send_back", record=encode(record), delay_level=delay_level)
            except LinkLostError:
                running = yield from self._now()
                continue
            return

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self, *, is_done: bool) -> Steps[None]:
        return self._remote.within(0.0, super().leave(is_done=is_done))

    def _ask_to_leave(self, running: Any) -> Future:
        left: Future = running.call("leave")
        left.on_done(lambda _: self._let_go(running))
        return left

    def _let_go(self, running: Any) -> None:
        link = self._remote.link
        link.abandoned.append(running.leave)
        link.wake()
