"""NodeStreams: the streams of a node (:mod:`warren.actors.topics.streams`), imported with the first stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.policies import PoliciesOf
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.topics.node_topics import NodeTopics
from warren.storage.errors import WarrenError
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.engines.topics.stream_retention import StreamRetention
    from warren.actors.topics.streams import Stream

_LOG = logger("node")


class NodeStreams:
    """The streams of a node. Changed by the node's actor alone; any thread may read it."""

    def __init__(
        self,
        context: NodeContext,
        settings: TopicSettings,
        topics: NodeTopics,
        policies_of: PoliciesOf,
    ) -> None:
        self._policies_of = policies_of
        self._context = context
        self._settings = settings
        self._topics = topics
        self._streams: dict[tuple[str, str], Stream] = {}

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._streams.values()))

    def find(self, vhost: str, name: str) -> Stream | None:
        """Return a stream by name."""
        return self._streams.get((vhost, name))

    def of(self, vhost: str) -> list[Stream]:
        """Return the streams of a vhost."""
        return [stream for stream in self if stream.declaration.vhost == vhost]

    def restore(self, definitions: Definitions) -> None:
        """Add all declared streams, including those of vhosts that are down, which keep files."""
        for vhost in definitions.vhosts():
            for declaration in definitions.vhost(vhost).queues():
                if declaration.is_stream:
                    self.add(declaration)

    def add(self, declaration: QueueDeclaration) -> Stream:
        """Add a declared stream."""
        from warren.actors.topics.streams import Stream

        stream = Stream(declaration, self._context, self._settings, self._topics.existing, self._policies_of)
        self._streams[declaration.vhost, declaration.name] = stream
        return stream

    def remove(self, stream: Stream) -> None:
        """Remove a deleted stream with its topic, and wake its consumers so that they notice."""
        stream.deleted = True
        del self._streams[stream.declaration.vhost, stream.declaration.name]
        for wake in list(stream.consumers):
            wake()
        try:
            self._topics.delete(stream.topic)
        except WarrenError as error:
            _LOG.warning(
                "the topic of the deleted %s could not be deleted: %s",
                stream.declaration,
                error,
                extra=log_event("stream_topic_kept", error, of=stream.declaration, topic=stream.topic),
            )

    def declare_topics(self) -> None:
        """Declare topics that a crash kept from being declared, or that were lost with the topics' folder."""
        for stream in self:
            with contextlib.suppress(WarrenError):  # the topics are down: using the stream raises the error
                topics = self._topics.get()
                if topics is None or topics.table.queues(stream.topic) is None:
                    self._topics.declare(stream.topic, 1)

    def retentions(self) -> Mapping[str, StreamRetention]:
        """Return each stream's retention, by topic."""
        return {stream.topic: stream.retention for stream in self}
