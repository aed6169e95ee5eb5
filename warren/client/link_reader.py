"""LinkReader: a reader of a topic that another process hosts.

It has a channel of its own, and is a member of its group while that is open. A new socket, a new host, or reopened
topics mean a new channel, and the reader joins again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
from pamqp.base import Frame as Method

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import Later
from warren.amqp.own_methods import Arrived, Call, CallError, CallOk
from warren.client.calls import error_of, plain, restored, unpacked
from warren.client.channels import ClientChannel
from warren.client.errors import LinkLostError
from warren.client.remote import RemoteVhost
from warren.msg_store.commit_log.commit_log_format import Record, encode
from warren.msg_store.commit_log.packed_records import packed
from warren.queue_index.topics.local_offsets import SEPARATOR
from warren.storage.errors import WarrenError
from warren.values.topic_record import to_ms
from warren.verbs.steps import Steps, answered
from warren.verbs.topics.member import Member
from warren.verbs.topics.reader_host import Done, Fetched, Place

T = TypeVar("T")


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

    def let_go(self) -> None:
        """Close the channel, without any lock."""
        self.link.abandoned.append(self._leave)
        self.link.wake()

    def _leave(self, _: Later) -> None:
        if self.error is None:
            self.error = LinkLostError("the reader is closed")
            self.link.leave(self)


@attrs.frozen(eq=False)
class LinkMembership:
    """A member of a group of a node in another process, while its channel is open."""

    _channel: ReaderChannel

    def is_current(self) -> Steps[bool]:
        error = self._channel.error
        if error is not None and not isinstance(error, LinkLostError):
            raise error
        return error is None
        yield

    def queues(self) -> Steps[list[int]]:
        queue_ids: list[int] = yield self._channel.call("queues")
        return queue_ids

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def listen(self) -> Future:
        return self._channel.listen()

    def stop_listening(self, arrival: Future) -> None:
        if self._channel.arrival is arrival:
            self._channel.arrival = None

    def take(self, max_records: int) -> Steps[Future]:
        return answered(self._channel.call("take", max_records=max_records))

    def places(self, answer: Any) -> list[Place]:
        return [(place["topic"], Taken(**place["taken"])) for place in answer["places"]]

    def fetch(self, answer: Any) -> Steps[Fetched]:
        fetched = [[packed(*records)] if (records := unpacked(place["records"])) else [] for place in answer["places"]]
        if answer["error"] is None:
            return answered((fetched, None))
        error = error_of(CallError(**answer["error"]))
        return answered((fetched, error if isinstance(error, WarrenError) else WarrenError(str(error))))

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, done: Done) -> Future:
        return self._channel.call("commit", done=done)

    def wake(self) -> None:
        """Do nothing: the host commits at once."""

    def take_back(self, topic: str, taken: Taken, queue_offset: int) -> Future:
        return self._channel.call("take_back", topic=topic, taken=taken, queue_offset=queue_offset)

    def send_back(self, record: Record, delay_level: int) -> Steps[None]:
        yield self._channel.call("send_back", record=encode(record), delay_level=delay_level)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> Future:
        left = self._channel.call("leave")
        left.on_done(lambda _: self.let_go())
        return left

    def let_go(self) -> None:
        self._channel.let_go()


class LinkReader:
    """A reader of a topic that another process hosts; a :class:`~warren.verbs.topics.reader_host.ReaderHost`."""

    def __init__(self, remote: RemoteVhost, member: Member) -> None:
        self._remote = remote
        self.member = member

    def join(self) -> Steps[LinkMembership]:
        link, member = self._remote.link, self.member
        while True:
            channel = ReaderChannel(link)
            try:
                yield link.ready()
                yield channel.open()
                answer = yield channel.join(**self._arguments())
            except LinkLostError:
                continue
            except BaseException:  # closing the channel leaves the group
                channel.let_go()
                raise
            if member.broadcast:
                member.key, member.places = answer
            return LinkMembership(channel)

    def _arguments(self) -> dict[str, Any]:
        member = self.member
        place = member.consume_from
        member.name = f"{member.group}-{os.urandom(6).hex()}"  # unique among all processes
        arguments = {
            "topic": member.topic,
            "group": member.group,
            "name": member.name,
            "tags": member.tags,
            "consume_from": place if isinstance(place, str | Mapping | int) else to_ms(place) / 1000,
            "broadcast": member.broadcast,
        }
        if member.broadcast:
            instance = member.key.partition(SEPARATOR)[2]  # what it had when it joined last
            arguments["instance_name"] = (instance if member.group else None) or member.instance_name
            arguments["positions"] = member.positions
        return arguments

    def lost(self, error: WarrenError) -> bool:
        if not isinstance(error, LinkLostError):
            return False
        if (closed := self._remote.link.closed) is not None:
            raise closed from error
        return True

    def within(self, timeout: float | None, steps: Steps[T]) -> Steps[T]:
        return self._remote.within(timeout, steps)

    def check_heard(self, waited_s: float | None) -> None:
        self._remote.link.check_heard(waited_s)
