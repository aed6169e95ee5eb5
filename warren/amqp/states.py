"""Which side may send which method, and when: the tables of AMQP 0-9-1.

A connection's states have RabbitMQ's names. A method stands in :data:`TRANSITIONS` for the states in which it may be
sent; a side that may not send it at all does not have it in its set.
"""

from __future__ import annotations

import enum
from typing import Final

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.own_methods import Arrived, Call, CallError, CallOk, Credit, Refused, Request, RequestOk, Settle


class Side(enum.Enum):
    """An end of a connection."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


class State(enum.Enum):
    """The state of a connection."""

    HANDSHAKE = "handshake"
    """The client has to send the protocol header, the server ``connection.start``."""
    STARTING = "starting"
    SECURING = "securing"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    """The peer has asked to close; we have to answer."""
    CLOSED = "closed"
    """We have asked to close; the peer has to answer. Everything else that it sends is ignored."""
    TERMINATED = "terminated"
    """Nothing is sent any more, and everything that comes is ignored."""


TRANSITIONS: Final[dict[type[Method], dict[State, State]]] = {
    c.Connection.Start: {State.HANDSHAKE: State.STARTING},
    c.Connection.StartOk: {State.STARTING: State.SECURING},
    c.Connection.Secure: {State.SECURING: State.SECURING},
    c.Connection.SecureOk: {State.SECURING: State.SECURING},
    c.Connection.Tune: {State.SECURING: State.TUNING},
    c.Connection.TuneOk: {State.TUNING: State.OPENING},
    c.Connection.Open: {State.OPENING: State.OPENING},
    c.Connection.OpenOk: {State.OPENING: State.RUNNING},
    c.Connection.Blocked: {State.RUNNING: State.RUNNING},
    c.Connection.Unblocked: {State.RUNNING: State.RUNNING},
    c.Connection.UpdateSecret: {State.RUNNING: State.RUNNING},
    c.Connection.UpdateSecretOk: {State.RUNNING: State.RUNNING},
}
"""For the methods on channel 0: the states before and after each. ``close`` and ``close-ok`` have rules of their
own."""

_CONNECTION_CLIENT: Final = frozenset(
    {c.Connection.StartOk, c.Connection.SecureOk, c.Connection.TuneOk, c.Connection.Open, c.Connection.UpdateSecret}
)
_CLIENT_ONLY: Final = frozenset(
    {
        c.Channel.Open,
        c.Channel.Flow,
        Request,
        c.Exchange.Declare,
        c.Exchange.Delete,
        c.Exchange.Bind,
        c.Exchange.Unbind,
        c.Queue.Declare,
        c.Queue.Bind,
        c.Queue.Purge,
        c.Queue.Delete,
        c.Queue.Unbind,
        c.Basic.Qos,
        c.Basic.Consume,
        c.Basic.Publish,
        c.Basic.Get,
        c.Basic.Reject,
        c.Basic.RecoverAsync,
        c.Basic.Recover,
        c.Confirm.Select,
        c.Tx.Select,
        c.Tx.Commit,
        c.Tx.Rollback,
        Call,
        Credit,
        Settle,
    }
)
_SERVER_ONLY: Final = frozenset(
    {
        c.Channel.OpenOk,
        c.Channel.FlowOk,
        RequestOk,
        c.Exchange.DeclareOk,
        c.Exchange.DeleteOk,
        c.Exchange.BindOk,
        c.Exchange.UnbindOk,
        c.Queue.DeclareOk,
        c.Queue.BindOk,
        c.Queue.PurgeOk,
        c.Queue.DeleteOk,
        c.Queue.UnbindOk,
        c.Basic.QosOk,
        c.Basic.ConsumeOk,
        c.Basic.CancelOk,
        c.Basic.Return,
        c.Basic.Deliver,
        c.Basic.GetOk,
        c.Basic.GetEmpty,
        c.Basic.RecoverOk,
        c.Confirm.SelectOk,
        c.Tx.SelectOk,
        c.Tx.CommitOk,
        c.Tx.RollbackOk,
        CallOk,
        CallError,
        Refused,
        Arrived,
    }
)
_BOTH: Final = frozenset(
    {
        c.Connection.Close,
        c.Connection.CloseOk,
        c.Channel.Close,
        c.Channel.CloseOk,
        c.Basic.Cancel,  # a server's tells a client that its queue is gone, and needs no answer
        c.Basic.Ack,  # a server's are confirms
        c.Basic.Nack,
    }
)
SENT_BY: Final[dict[Side, frozenset[type[Method]]]] = {
    Side.CLIENT: _CONNECTION_CLIENT | _CLIENT_ONLY | _BOTH,
    Side.SERVER: (frozenset(TRANSITIONS) - _CONNECTION_CLIENT) | _SERVER_ONLY | _BOTH,
}
"""The methods that each side may send. As with RabbitMQ, a server sends no ``channel.flow``."""
