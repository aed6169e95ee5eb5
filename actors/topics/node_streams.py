"""NodeStreams: the streams of a node (:mod:`warren.actors.topics.streams`), imported with the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.node.node_context import NodeContext
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.engines.topics.stream_retention import StreamRetention
    from warren.actors.topics.running_topics import RunningTopics
    from warren.actors.topics.streams import Stream

PoliciesOf = Callable[[str, str], AppliedPolicies]
"""Vhost, queue → the policies that it has."""


class NodeStreams:
    """The streams of a node. Changed by the node's actor alone; any thread may look."""

    def __init__(
        self,
        context: NodeContext,
        settings: TopicSettings,
        topics: Callable[[], RunningTopics],
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
        """The stream of that name."""
        return self._streams.get((vhost, name))

    def of(self, vhost: str) -> list[Stream]:
        """Those of a vhost."""
        return [stream for stream in self if stream.declaration.vhost == vhost]

    def restore(self, definitions: Definitions) -> None:
        """Have all that are declared; those of vhosts that are down, too, for they keep files."""
        for vhost in definitions.vhosts():
            for declaration in definitions.vhost(vhost).queues():
                if declaration.is_stream:
                    self.add(declaration)

    def add(self, declaration: QueueDeclaration) -> Stream:
        """A stream that is declared."""
        from warren.actors.topics.streams import Stream  # noqa: PLC0415 - most nodes have none

        stream = Stream(declaration, self._context, self._settings, self._topics, self._policies_of)
        self._streams[declaration.vhost, declaration.name] = stream
        return stream

    def remove(self, stream: Stream) -> None:
        """One that is deleted: whoever reads or writes it is told so."""
        stream.deleted = True
        del self._streams[stream.declaration.vhost, stream.declaration.name]
        for wake in list(stream.consumers):
            wake()

    def retentions(self) -> Mapping[str, StreamRetention]:
        """What each keeps, by topic."""
        return {stream.topic: stream.retention for stream in self}
