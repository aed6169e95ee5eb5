"""ChannelReader: the host's side of a topic's reader in another process (:mod:`warren.client.reader_verbs`).

It is a member of its group for as long as its channel is open. If the topics are reopened, the channel is closed and
the reader begins another. The reader itself knows what it has read and done: this only serves its requests to the
groups and the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.runtime.future import Future
from warren.actors.topics.running_topics import RunningTopics
from warren.amqp.own_methods import Arrived
from warren.client.calls import packed, refusal_of
from warren.msg_store.commit_log.commit_log_format import decode
from warren.server.channels.channel_link import ChannelLink
from warren.server.replies import PRECONDITION_FAILED, Refusal
from warren.storage.call_arguments import checked, signature
from warren.storage.errors import WarrenError
from warren.verbs.steps import Reading, Steps
from warren.verbs.topics.reader_verbs import ReaderVerbs

TAKEN_BYTES: Final = 1 << 20
"""About this many bytes go to a reader at a time."""

Place = tuple[str, Taken]
"""A topic, and what was taken from it."""


@checked
def _done(topic: str, queue_id: int, queue_offset: int, claim: int) -> tuple[str, int, int, int]:
    return topic, queue_id, queue_offset, claim


class ChannelReader:
    """The reader of one channel."""

    def __init__(self, channel: ChannelLink, arguments: Mapping[str, Any]) -> None:
        self._channel = channel
        self._verbs = ReaderVerbs(channel.node, auto_commit=False, **arguments)
        self._joined: RunningTopics | None = None
        self._arrival: Future | None = None
        self._is_awaited = False
        self._last: tuple[str, int] | None = None

    def join(self) -> Steps[list[Any]]:
        """Become a member; return the group's key, and the positions of a broadcast reader."""
        yield from self._verbs.begin()
        self._joined = self._verbs.joined
        return [self._verbs.group_key, self._verbs.positions]

    def _running(self) -> Steps[RunningTopics]:
        """Return the topics that it is a member of; if they are gone, raise :class:`Refusal`: it ends the channel."""
        running = yield from self._channel.node.topics()
        if running is not self._joined:
            raise Refusal(PRECONDITION_FAILED, "the topics were reopened")
        return running

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, max_records: int) -> Steps[dict[str, Any]]:
        """Return messages with the places that they were taken from. If there is no message, :class:`Arrived` says when
        to ask again."""
        running, verbs = (yield from self._running()), self._verbs
        if self._arrival is None:
            self._is_awaited = False
            self._arrival = arrival = verbs.listen(running)
            arrival.on_done(lambda _: self._channel.server.rounds.post(self._arrived))
        taking = yield from verbs.ask_to_take(running, max_records)
        taking.hurry()
        places: list[Place] = yield taking
        answer: dict[str, Any] = yield Reading(lambda: self._read(running, places))
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

    def _read(self, running: RunningTopics, places: list[Place]) -> dict[str, Any]:
        """Return the messages up to one that cannot be read or to the size limit; hand the rest back."""
        sent, error, size = [], None, 0
        remaining = iter(self._in_turn(places))
        for topic, taken in remaining:
            records: list[bytes] = []
            try:
                batches = self._verbs.records_of(running, topic, taken)
                for packed_records, row in ((batch, row) for batch in batches for row in range(len(batch))):
                    records.append(packed_records.data(row))
                    size += len(records[-1])
                    if size >= TAKEN_BYTES:
                        reached = packed_records.queue_offsets[row] + 1
                        taken = self._taken_back(running, topic, taken, reached)  # noqa: PLW2901
                        break
            except WarrenError as raised:
                error = raised
            sent.append({"topic": topic, "taken": attrs.asdict(taken), "records": packed(records)})
            if error is not None or size >= TAKEN_BYTES:
                self._last = topic, taken.queue_id
                break
        for topic, taken in remaining:
            self._taken_back(running, topic, taken, taken.queue_offset)
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

    def _taken_back(self, running: RunningTopics, topic: str, taken: Taken, queue_offset: int) -> Taken:
        if queue_offset < taken.end:
            self._verbs.ask_to_take_back(running, topic, taken, queue_offset)
        return attrs.evolve(taken, count=queue_offset - taken.queue_offset)

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, done: list[list[Any]]) -> Steps[list[str]]:
        running = yield from self._running()
        committing = self._verbs.ask_to_commit(running, [_done(*place) for place in done])
        committing.hurry()
        uncommitted: list[str] = yield committing
        return uncommitted

    def take_back(self, topic: str, taken: dict[str, int], queue_offset: int) -> Steps[None]:
        running = yield from self._running()
        signature(Taken.__init__, 1).check((), taken)
        yield self._verbs.ask_to_take_back(running, topic, Taken(**taken), queue_offset)

    def send_back(self, record: bytes, delay_level: int) -> Steps[None]:
        yield from self._running()
        yield from self._verbs.send_back(decode(record), delay_level)

    def queues(self) -> Steps[list[int]]:
        yield from self._running()
        return (yield from self._verbs.queues())

    def leave(self) -> Steps[None]:
        """Leave the group."""
        joined, arrival = self._joined, self._arrival
        if joined is not None and arrival is not None:
            self._verbs.stop_listening(joined, arrival)
        self._joined = self._arrival = None
        yield from self._verbs.leave(is_done=False)
