"""Log events: the names of warren's log records, and the fields that they carry besides their text.

A record has the text for people, and attributes for programs: ``event``, one of :data:`EVENTS`, and fields for its
subject (``vhost``, ``queue``, ``topic``, ``connection`` …). Names of events and fields do not change; texts may. Every
log call in warren passes ``extra=log_event(…)``; a test checks that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import DataError

EVENTS: Final[Mapping[str, str]] = {
    "actor_broken": "what stopped could not even be given up",
    "actor_stopped": "a queue, a store or another part of the node stops by an error; what it is, is in `part`",
    "alarm_cleared": "publishers may go on; `resource`: memory or disk",
    "alarm_set": "publishers are blocked; `resource`: memory or disk",
    "argument_unknown": "a queue was declared with an argument that no queue knows",
    "channel_closed": "the server has closed a client's channel, with `code`",
    "connection_closed": "the server has closed a client's connection, with `code`",
    "connection_failed": "something of a connection went wrong in the server",
    "connection_refused": "there are too many",
    "connection_timeout": "a client was not heard of for too long",
    "consumer_ended": "a stream's consumer ends",
    "definitions_ahead": "the log of definitions may say more than is declared, until the next change",
    "definitions_unreadable": "a definition is no text, and stays in its file",
    "definitions_undone": "a change of what is declared was taken back",
    "delayed_down": "the delayed messages of a vhost cannot be used",
    "delayed_dropped": "delayed messages were refused by a queue, and are gone; `count`",
    "delayed_kept": "the delayed messages of a queue that was deleted stay",
    "delayed_lost": "a delayed message cannot be read; its file is kept",
    "delayed_postponed": "delayed messages could not be published and wait on; `count`",
    "delayed_reindexed": "an index of delayed messages is made anew from their log",
    "delayed_up": "the delayed messages of a vhost, which were down, come again",
    "delayed_restarted": "the delayed messages of a vhost are started anew from their files",
    "disk_full": "something waits for room on the disk; `part` says what",
    "disk_room": "there is room again",
    "disk_unreadable": "the free space cannot be read",
    "group_lost": "what a member had done is another one's now, or is read again",
    "group_moved_back": "a group had read further than its queue reaches",
    "link_failed": "a shared directory's connection was given up",
    "link_lost": "the connection to a shared directory's host is lost; another one is made",
    "link_undeclared": "something could not be declared again on a new connection",
    "listening_open": "other machines reach what listens there",
    "log_torn": "a log of warren's own has bytes that are no record, as a crash leaves them; what they said is unknown",
    "login_refused": "a client may not come in",
    "management_failed": "a request of the HTTP API could not be answered",
    "management_unsampled": "the numbers of a moment are missing",
    "message_unreadable": "the bytes of a message are none; it is gone",
    "monitor_failed": "nobody watches memory and disk for a second",
    "node_unclosed": "the node could not be closed at the end of the process",
    "queue_ack_timeout": "messages were not acked in time and come back; `count`",
    "queue_adopted": "messages had no definition, and have a queue again",
    "queue_counts_lost": "how often messages came back is not known any more",
    "queue_dead_letters_kept": "where they should go is down",
    "queue_delivery_limit": "messages came back more often than the queue's limit allows; `count`",
    "queue_down": "a queue failed too often, or its files are damaged",
    "queue_index_cut": "the end of a file of a queue's index is no record, and is cut off; an error after a clean stop",
    "queue_keys_down": "the keys of a queue's messages cannot be used, and it takes none with a key",
    "queue_keys_lost": "some keys of a queue's messages cannot be read, and are free",
    "queue_messages_lost": "messages whose bodies the store lacks are gone; `count`; an error after a clean stop",
    "queue_restarted": "a queue that failed is started anew from its files",
    "queue_sizes_wrong": "sizes in a queue's index are not what was counted when it stopped; counters follow",
    "queue_unclosed": "a queue could not be closed, and is recovered at the next start",
    "queue_unused": "nobody uses a queue any more, and it goes",
    "queue_up": "a queue that was down serves again",
    "queue_waiting": "a queue that failed waits for its vhost",
    "record_ended": "the recording of the node ends",
    "request_refused": "something was refused that nobody waits for",
    "span_failed": "a span could not be ended",
    "status_failed": "a request of `warren top` could not be answered, or a command not be let in",
    "status_unavailable": "`warren top` cannot attach",
    "stream_topic_kept": "the topic of a stream that was deleted stays",
    "target_missing": "dead letters, delayed messages or those for an alternate exchange are dropped, or will be: "
    "the exchange or queue that they go to does not exist, or has no route",
    "tls_refused": "a client's TLS handshake failed or took too long",
    "topics_cut": "what recovery cut off",
    "topics_down": "the topics are down",
    "topics_expired": "messages expired before somebody read them, or they were delivered or decided; `count`",
    "topics_reopened": "the topics are opened anew",
    "topics_undelivered": "a delayed message cannot be delivered",
    "topics_unreadable": "a prepared message was passed over",
    "topics_unwritten": "what is found anew after a crash was not written down for now",
    "topics_up": "the topics, which were down, serve again",
    "vhost_damaged": "something in a vhost's directory cannot be read, and is passed over",
    "vhost_down": "a vhost cannot be used",
    "vhost_reopened": "a vhost's store failed, and the vhost is opened anew",
    "vhost_up": "a vhost that was down serves again",
    "vhost_unsaved": "a vhost serves, and what was found in it could not be written down",
}
"""The events and their meanings."""


class Named(Protocol):
    """An object with a name in a vhost: the declaration of a queue or a stream."""

    @property
    def vhost(self) -> str: ...

    @property
    def name(self) -> str: ...


def logger(part: str) -> logging.Logger:
    """Return the logger ``warren.<part>``.

    Interrupts are held back meanwhile. Modules are imported in the midst of a user's calls, and an interrupt at that
    point would leave the lock of :mod:`logging` held for ever, and block the next thread that logs.
    """
    return uninterrupted(logging.getLogger, f"warren.{part}")


def log_event(
    name: str, error: BaseException | None = None, *, of: Named | None = None, **fields: Any
) -> dict[str, Any]:
    """Return the ``extra`` of a log call. ``error``: the reason; ``of``: the queue."""
    extra: dict[str, Any] = {"event": name}
    if of is not None:
        extra |= {"vhost": of.vhost, "queue": of.name}
    if isinstance(error, DataError):
        extra |= {"path": error.path, "offset": error.offset}
    if error is not None:
        extra |= {"reason": str(error), "error": type(error).__name__}
    return extra | fields
