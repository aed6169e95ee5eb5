"""The host's side of a topic's reader (:mod:`warren.client.link_reader`) or a queue's tail in another process.

A reader is a member of its group for as long as its channel is open. If the topics are reopened, the channel is closed
and the reader begins another. The reader itself knows what it has read and done: this only serves its requests to the
groups and the files.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.runtime.future import Future
from warren.amqp.own_methods import Arrived
from warren.client.calls import packed, refusal_of
from warren.msg_store.commit_log.commit_log_format import decode
from warren.server.channels.channel_link import ChannelLink
from warren.server.replies import PRECONDITION_FAILED, Refusal
from warren.storage.call_arguments import checked, signature
from warren.storage.errors import WarrenError
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.selecting import browsed_to_plain
from warren.verbs.steps import Reading, Steps, Within
from warren.verbs.tail_verbs import LocalTail
from warren.verbs.topics.member import Member
from warren.verbs.topics.reader_host import LocalMembership, LocalReader, Place

TAKEN_BYTES: Final = 1 << 20
"""About this many bytes go to a reader at a time."""


@checked
def _done(topic: str, queue_id: int, queue_offset: int, claim: int) -> tuple[str, int, int, int]:
    return topic, queue_id, queue_offset, claim


class ChannelReader:
    """The reader of one channel."""

    def __init__(self, channel: ChannelLink, member: Member) -> None:
        self._channel = channel
        self._host = LocalReader(channel.node, member)
        self._membership: LocalMembership | None = None
        self._arrival: Future | None = None
        self._is_awaited = False
        self._last: tuple[str, int] | None = None

    def join(self) -> Steps[list[Any]]:
        """Become a member; return the group's key, and the positions of a broadcast reader."""
        self._membership = yield from self._host.join()
        return [self._host.member.key, self._host.member.places]

    def _now(self) -> Steps[LocalMembership]:
        """Return the membership; if it is over, raise :class:`Refusal`: it ends the channel."""
        membership = self._membership
        if membership is None or not (yield from membership.is_current()):
            raise Refusal(PRECONDITION_FAILED, "the topics were reopened")
        return membership

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, max_records: int) -> Steps[dict[str, Any]]:
        """Return messages with the places that they were taken from. If there is no message, :class:`Arrived` says when
        to ask again."""
        membership = yield from self._now()
        if self._arrival is None:
            self._is_awaited = False
            self._arrival = arrival = membership.listen()
            arrival.on_done(lambda _: self._channel.server.rounds.post(self._arrived))
        taking = yield from membership.take(max_records)
        taking.hurry()
        places: list[Place] = yield taking
        answer: dict[str, Any] = yield Reading(lambda: self._read(membership, places))
        if not places:
            self._is_awaited = True
            if self._arrival is None:
                self._tell()
        return answer

    def _arrived(self) -> None:
        self._arrival = None
        if self._is_awaited:
            self._tell()

    def _tell(self) -> None:
        self._is_awaited = False
        self._channel.send(Arrived())

    def _read(self, membership: LocalMembership, places: list[Place]) -> dict[str, Any]:
        """Return the messages up to one that cannot be read or to the size limit; hand the rest back."""
        sent, error, size = [], None, 0
        remaining = iter(self._in_turn(places))
        for topic, place in remaining:
            taken = place
            records: list[bytes] = []
            try:
                batches = membership.records_of(topic, taken)
                for packed_records, row in ((batch, row) for batch in batches for row in range(len(batch))):
                    records.append(packed_records.data(row))
                    size += len(records[-1])
                    if size >= TAKEN_BYTES:
                        reached = packed_records.queue_offsets[row] + 1
                        taken = self._taken_back(membership, topic, taken, reached)
                        break
            except WarrenError as raised:
                error = raised
            sent.append({"topic": topic, "taken": attrs.asdict(taken), "records": packed(records)})
            if error is not None or size >= TAKEN_BYTES:
                self._last = topic, taken.queue_id
                break
        for topic, taken in remaining:
            self._taken_back(membership, topic, taken, taken.queue_offset)
        refusal = None if error is None else refusal_of(error)
        return {
            "places": sent,
            "error": refusal and {"type": refusal.type, "text": refusal.text, "details": refusal.details},
        }

    def _in_turn(self, places: list[Place]) -> list[Place]:
        """Rotate the places, to begin after the queue that the size limit stopped at last time."""
        last, self._last = self._last, None
        queues = [(topic, taken.queue_id) for topic, taken in places]
        start = queues.index(last) + 1 if last in queues else 0
        return places[start:] + places[:start]

    def _taken_back(self, membership: LocalMembership, topic: str, taken: Taken, queue_offset: int) -> Taken:
        if queue_offset < taken.end:
            membership.take_back(topic, taken, queue_offset)
        return attrs.evolve(taken, count=queue_offset - taken.queue_offset)

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, done: list[list[Any]]) -> Steps[list[str]]:
        committing = (yield from self._now()).commit([_done(*place) for place in done])
        committing.hurry()
        uncommitted: list[str] = yield committing
        return uncommitted

    def take_back(self, topic: str, taken: dict[str, int], queue_offset: int) -> Steps[None]:
        membership = yield from self._now()
        signature(Taken.__init__, 1).check((), taken)
        yield membership.take_back(topic, Taken(**taken), queue_offset)

    def send_back(self, record: bytes, delay_level: int) -> Steps[None]:
        membership = yield from self._now()
        yield from membership.send_back(decode(record), delay_level)

    def queues(self) -> Steps[list[int]]:
        return (yield from (yield from self._now()).queues())

    def leave(self) -> Steps[None]:
        """Leave the group."""
        membership, arrival = self._membership, self._arrival
        self._membership = self._arrival = None
        if membership is not None:
            if arrival is not None:
                membership.stop_listening(arrival)
            yield Within(membership.leave(), None)


class ChannelTail:
    """The tail of one channel."""

    def __init__(self, channel: ChannelLink, queue: QueueVerbs) -> None:
        self._channel = channel
        self._verbs = LocalTail(queue.actor)
        self._is_left = False

    def join(self, last: int) -> Steps[None]:
        """Start ``last`` messages before the end."""
        return self._verbs.begin(last)

    def take(self, max_records: int) -> Steps[list[dict[str, Any]]]:
        """Return the next messages. If there is no message, :class:`Arrived` says when to ask again."""
        page = yield from self._verbs.page(max_records)
        if not page:
            arrival = self._verbs.arrival()
            arrival.on_done(self._arrived)
            arrival.hurry()
        return browsed_to_plain(page)

    def _arrived(self, _: Future) -> None:
        if not self._is_left:
            self._channel.server.rounds.post(self._tell)

    def _tell(self) -> None:
        if not self._is_left:
            self._channel.send(Arrived())

    def leave(self) -> Steps[None]:
        """End the tail."""
        self._is_left = True
        return self._verbs.close()
