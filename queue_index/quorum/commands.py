"""The commands of a quorum queue's log, as values. What each does: :mod:`queue_index.quorum.machine`.

A *pid* is said as bytes that sort as Erlang sorts pids (:func:`storage.erlang_terms.pid_key`). A *consumer* is named by
its tag and its pid, from 4.0 on in most commands by a number, the index of its checkout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from storage.erlang_terms import Term

Pid: TypeAlias = bytes
ConsumerId: TypeAlias = "tuple[bytes, Pid]"
ConsumerKey: TypeAlias = "ConsumerId | int"


class Body(NamedTuple):
    """A message in an entry, as far as the queue looks at it."""

    start: int
    """Where its term begins in the entry's bytes; it has no version byte there."""
    end: int
    size: int
    """Bytes of the payload, as the queue counts them."""
    ttl_ms: int | None
    """Its own; only where the properties are decoded, for only there the queue looks."""
    priority: int | None


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
    """Of ``get``: the message is gone at once."""
    credit: int
    """How many messages it may hold; of ``get`` 1."""
    credit_mode: str
    """``simple_prefetch``, ``credited``: as the command says it."""
    priority: int


class Cancel(NamedTuple):
    """No more deliveries to a consumer."""

    consumer: ConsumerId
    removes: bool = False
    """4.0's ``remove``: what it holds returns, too."""


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
    """Known, and nothing that a reader must do; expiry and limits are looked at as after each command."""

    name: str
    touches_queue: bool
    """Whether the machine sees it at all (``$usr``)."""


class Unknown(NamedTuple):
    """Never guessed: reported."""

    name: str


Command: TypeAlias = (
    "Enqueue | RegisterEnqueuer | Checkout | Cancel | Settle | Discard | Return | Modify | Requeue | Credit | Purge"
    " | Down | NodeDown | NodeUp | PurgeNodes | UpdateConfig | MachineVersion | NewCluster | Nothing | Unknown"
)


class Decoded(NamedTuple):
    """An entry's command, and the only clock there is: milliseconds since 1970."""

    ts_ms: int
    command: Command
