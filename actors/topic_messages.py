"""Every message between a topic store's actors, and from a user's thread to them: who sends it, to whom, the reply.

*Ask* goes one way only: user → groups → CommitLog → dispatch; everything upwards is a *tell*. Single appends reach the
CommitLog as gatherings (:class:`warren.actors.front_end.PublishBatch`), not as messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pykka import ActorRef

from warren.actors.inbox import Control
from warren.msg_store.commit_log import Batch

if TYPE_CHECKING:
    from warren.actors.future import Future

# ── CommitLog ────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class AppendBatches:
    """User, groups or schedule → CommitLog. Tell. ``confirm`` is answered with the list of what was appended."""

    batches: Sequence[Batch]
    confirm: Future
    reserved_bytes: int = 0
    """What is on the way for it (:mod:`warren.actors.gate`)."""


@attrs.frozen
class SyncLog:
    """User or node → CommitLog. Ask; the reply comes when everything that was appended before is safe."""


# ── dispatch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Dispatch:
    """CommitLog → dispatch. Tell. There is more in the CommitLog."""


@attrs.frozen
class CatchUp:
    """User → dispatch. Ask; the reply comes once entries (``with_index``: and keys) are built up to there."""

    physical_offset: int
    with_index: bool = False


@attrs.frozen
class ExpireQueues:
    """CommitLog → dispatch. Tell. Its first files are gone."""


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class CloseTopics:
    """Node → any of them. Ask. What came before is done, written down and safe; the actor stops."""


@attrs.frozen
class GiveUpTopics(Control):
    """Node → any of them. Ask; the reply is ``None``. Another one has failed: leave the files as they are, stop."""

    error: BaseException


@attrs.frozen
class TopicsFailed(Control):
    """Any of them → node. Tell."""

    actor: ActorRef[Any]
    error: BaseException


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
class SeekGroup:
    """User → groups. Ask; the reply is the queue offsets by queue."""

    topic: str
    group: str
    places: Any


@attrs.frozen
class GetLag:
    """User → groups. Ask; the reply is messages not finished, by queue."""

    topic: str
    group: str


@attrs.frozen
class GetGroups:
    """User → groups. Ask; the reply is a dict: members, assignment, committed and lag by topic and group.

    ``broadcast``: of readers that read everything for themselves, by ``group@instance``.
    """

    broadcast: bool = False


@attrs.frozen
class MoreQueues:
    """Node → groups. Tell. A topic has so many queues now."""

    topic: str
    queues: int


@attrs.frozen
class NoteOffset:
    """Transactions → groups. Tell. An offset of the store's own, to be written down with the others."""

    topic: str
    group: str
    queue_id: int
    queue_offset: int


# ── schedule ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class StopDelivering:
    """Node → schedule. Ask; the reply is ``None``. Nothing more is handed to the CommitLog."""


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Decide:
    """User → transactions. Ask; the reply is a future's: it comes when the decision is safe."""

    half_offset: int
    commit: bool


@attrs.frozen
class GetPending:
    """User → transactions. Ask; the reply is the half messages that are not decided."""
