"""What a topic store's actors tell each other, and what readers ask the groups: who, whom, the reply.

*Ask* goes one way only: user → groups → CommitLog → dispatch; everything upwards is a *tell*. What else is asked is a
:class:`~warren.actors.runtime.inbox.Call`. Single appends reach the CommitLog as pending batches
(:class:`warren.actors.node.front_end.PublishBatch`), not as messages.
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
    """User, groups or schedule → CommitLog. Tell. ``confirm`` is answered with the list of what was appended."""

    batches: Sequence[Batch]
    confirm: Future
    reserved_bytes: int = 0
    """What is on the way for it (:mod:`warren.actors.node.gate`)."""


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class JoinGroup:
    """User → groups. Ask; the reply is ``None``. A member of a group begins to read these topics.

    ``consume_from`` is about the first; of others it reads everything.
    """

    topics: Sequence[str]
    group: str
    member: str
    consume_from: Any


@attrs.frozen
class JoinBroadcast:
    """User → groups. Ask; the reply is the reader's name as a group, and its places by queue.

    ``group`` "": its places are kept nowhere. ``instance``: which of the group's readers it is; ``None``: the first
    that reads nothing at the moment. ``positions``: where it goes on, instead of where it was.
    """

    topic: str
    group: str
    instance: str | None
    member: str
    consume_from: Any
    positions: Mapping[int, int] | None


@attrs.frozen
class LeaveGroup:
    """User → groups. Ask or tell. Its queues go to others."""

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
    """User → groups. Ask or tell. ``done``: topic, queue, queue offset and claim of each. The reply: what was lost."""

    group: str
    member: str
    done: Sequence[tuple[str, int, int, int]]


@attrs.frozen
class HandBack:
    """User → groups. Ask. A member will not do what it took from this queue offset on."""

    group: str
    member: str
    topic: str
    taken: Any
    queue_offset: int


@attrs.frozen
class GetGroups:
    """User → groups. Ask; the reply is a dict: members, assignment, committed and lag by topic and group.

    ``broadcast``: of readers that read everything for themselves, by ``group@instance``.
    """

    broadcast: bool = False
