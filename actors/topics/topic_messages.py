"""Messages between a topic store's actors, and from readers to the groups: sender, receiver, reply.

*Ask* goes one way only: user → groups → CommitLog → dispatch; everything upwards is a *tell*. Other requests are a
:class:`~warren.actors.runtime.inbox.Call`. Single appends reach the CommitLog as pending batches
(:class:`warren.actors.node.backpressure.PublishBatch`), not as messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from warren.msg_store.commit_log.commit_log import Batch

if TYPE_CHECKING:
    from warren.actors.runtime.future import Future

# ── CommitLog ────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class AppendBatches:
    """User, groups or schedule → CommitLog. Tell. ``confirm`` is answered with the list of appended batches."""

    batches: Sequence[Batch]
    confirm: Future
    reserved_bytes: int = 0
    """Bytes that the gate counts for it (:mod:`warren.actors.node.gate`)."""


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class JoinGroup:
    """User → groups. Ask; the reply is ``None``. A member of a group begins to read these topics.

    ``consume_from`` applies to the first topic; the others are read completely.
    """

    topics: Sequence[str]
    group: str
    member: str
    consume_from: Any


@attrs.frozen
class JoinBroadcast:
    """User → groups. Ask; the reply is the reader's name as a group, and its positions by queue.

    ``group`` "": its positions are not stored. ``instance``: the instance of the group; ``None``: the first without a
    reader. ``positions``: where it continues, instead of its last positions.
    """

    topic: str
    group: str
    instance: str | None
    member: str
    consume_from: Any
    positions: Mapping[int, int] | None


@attrs.frozen
class LeaveGroup:
    """User → groups. Ask or tell. The member's queues go to others."""

    topics: Sequence[str]
    group: str
    member: str


@attrs.frozen
class Take:
    """User → groups. Ask; the reply is a list of ``(topic, Taken)``."""

    topics: Sequence[str]
    group: str
    member: str
    max_records: int


@attrs.frozen
class CommitOffsets:
    """User → groups. Ask or tell. ``done``: topic, queue, queue offset and claim of each. The reply: lost queues."""

    group: str
    member: str
    done: Sequence[tuple[str, int, int, int]]


@attrs.frozen
class HandBack:
    """User → groups. Ask. A member gives up what it took, from this queue offset on."""

    group: str
    member: str
    topic: str
    taken: Any
    queue_offset: int


@attrs.frozen
class GetGroups:
    """User → groups. Ask; the reply is a dict: members, assignment, committed and lag by topic and group.

    ``broadcast``: of broadcast readers, by ``group@instance``.
    """

    broadcast: bool = False
