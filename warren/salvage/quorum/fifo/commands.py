"""The commands of a quorum queue's log, as values. What each does: :mod:`warren.salvage.quorum.fifo.machine`.

A *pid* is bytes that sort as Erlang sorts pids (:func:`warren.storage.erlang_terms.pid_key`). A *consumer* is named by
its tag and its pid; from 4.0 on, in most commands, by a number, the index of its checkout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from warren.storage.erlang_terms import Term

Pid: TypeAlias = bytes
ConsumerId: TypeAlias = "tuple[bytes, Pid]"
ConsumerKey: TypeAlias = "ConsumerId | int"


class Body(NamedTuple):
    """A message in an entry, as far as the queue reads it."""

    start: int
    """Where its term begins in the entry's bytes; it has no version byte there."""
    end: int
    size: int
    """Bytes of the payload, as the queue counts them."""
    ttl_ms: int | None
    """Its own; only if the properties are decoded, as the queue reads it only there."""
    priority: int | None
    delivery_count: int = 0
    """From 4.0 on a dead-lettered message has it as an annotation of its container."""
    metadata_size: int = 0
    """What 4.x adds to the payload's size, an estimate: encoded properties, or 100 for each header."""
    delivery_time_ms: int = 0
    """When it becomes ready, in milliseconds since 1970; from version 9 on, and not if it was dead-lettered."""


class Enqueue(NamedTuple):
    pid: Pid | None
    """``None``: dead-lettered to this queue, without an order."""
    seq: int | None
    """Of this pid, from 1."""
    body: Body


class RegisterEnqueuer(NamedTuple):
    pid: Pid


class Checkout(NamedTuple):
    """A consumer, or (``get``) one message of basic.get."""

    consumer: ConsumerId
    lifetime: Literal["auto", "once", "get"]
    settled: bool
    """Of ``get``: the message is acked at once."""
    credit: int
    """How many messages it may hold; of ``get`` 1."""
    credit_mode: str
    """``simple_prefetch``, ``credited``: as in the command."""
    priority: int
    keyed: bool = False
    """4.0's form, ``{auto, {simple_prefetch, N}}``: later commands name the consumer by its number."""
    delivery_count: int = 0
    """4.0's ``{credited, N}``: where its count begins."""
    timeout_ms: int | None = None
    """4.3's: how long it may hold a message; of its meta."""
    prefetch: int | None = None
    """Of its meta: 0 if the consumer did not limit it."""


class Cancel(NamedTuple):
    """No more deliveries to a consumer."""

    consumer: ConsumerId
    removes: bool = False
    """4.0's ``remove``: the messages that it holds return, too."""


class Settle(NamedTuple):
    consumer: ConsumerKey
    msg_ids: list[int]


class Discard(NamedTuple):
    consumer: ConsumerKey
    msg_ids: list[int]


class Return(NamedTuple):
    consumer: ConsumerKey
    msg_ids: list[int]


class Modify(NamedTuple):
    """4.0's: a return, or (``undeliverable_here``) a discard, perhaps with a count and annotations."""

    consumer: ConsumerKey
    msg_ids: list[int]
    delivery_failed: bool
    undeliverable_here: bool
    annotations: Mapping[Term, Term]


class Requeue(NamedTuple):
    consumer: ConsumerKey
    msg_id: int
    old_index: int
    header: Term
    """As the entry has it."""
    body: Body


class Credit(NamedTuple):
    consumer: ConsumerKey
    credit: int
    delivery_count: int
    drain: bool


class Purge(NamedTuple):
    pass


class DeadLetterCheckout(NamedTuple):
    """``{dlx, {checkout, Pid, Prefetch}}``: the worker that forwards dead letters at least once."""

    pid: Pid
    prefetch: int


class DeadLetterSettle(NamedTuple):
    """``{dlx, {settle, MsgIds}}``: they arrived at their destination."""

    msg_ids: list[int]


class ConsumerTimeout(NamedTuple):
    """4.3's ``{timeout, evaluate_consumer_timeout}``, or (of one consumer) its node was away for too long."""

    consumer: ConsumerKey | None


class RetryDelayed(NamedTuple):
    """4.3's: delayed messages come back now; at most ``limit`` (``None``: all)."""

    limit: int | None


class AssignDeferred(NamedTuple):
    """4.3's: messages that a consumer put aside under tokens."""

    consumer: ConsumerKey
    tokens: list[bytes]


class Down(NamedTuple):
    pid: Pid
    reason: str
    """``noconnection``: its node is away; anything else: it is gone."""


class NodeDown(NamedTuple):
    node: str


class NodeUp(NamedTuple):
    node: str


class PurgeNodes(NamedTuple):
    nodes: tuple[str, ...]


class UpdateConfig(NamedTuple):
    settings: Mapping[Term, Term]


class MachineVersion(NamedTuple):
    """The rules change: the entry ``noop`` of a new leader, or ``machine_version``."""

    version: int


class NewCluster(NamedTuple):
    """The log's members from here on, as (server's name, node)."""

    members: tuple[tuple[str, str], ...]


class Nothing(NamedTuple):
    """A known command without an effect for a reader; expiry and limits are checked as after each command."""

    name: str
    touches_queue: bool
    """Whether the machine sees it at all (``$usr``)."""


class Unknown(NamedTuple):
    """An unknown command; it is reported, not guessed."""

    name: str


Command: TypeAlias = (
    "Enqueue | RegisterEnqueuer | Checkout | Cancel | Settle | Discard | Return | Modify | Requeue | Credit | Purge"
    " | Down | NodeDown | NodeUp | PurgeNodes | UpdateConfig | MachineVersion | NewCluster | Nothing | Unknown"
    " | DeadLetterCheckout | DeadLetterSettle | ConsumerTimeout | RetryDelayed | AssignDeferred"
)


class Decoded(NamedTuple):
    """An entry's command, and its time, the only clock: milliseconds since 1970."""

    ts_ms: int
    command: Command
