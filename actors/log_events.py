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
    "actor_broken": "cleaning up after `actor_stopped` failed",
    "actor_stopped": "an error stopped a `part` of the node",
    "alarm_cleared": "publishers may continue; `resource`: memory or disk",
    "alarm_set": "publishers are blocked; `resource`: memory or disk",
    "argument_unknown": "a queue or an `exchange` was declared with an unknown argument",
    "callback_failed": "a callback of `on_done` or `on_ready` raised an error",
    "channel_closed": "the server closed a channel, with `code`",
    "connection_closed": "the server closed a connection, with `code`",
    "connection_failed": "an error in the server, or an invalid or broken connection",
    "connection_refused": "the limit of connections was reached",
    "connection_timeout": "a handshake or heartbeats did not come in time",
    "consumer_ended": "a stream's consumer ends",
    "definitions_ahead": "until the next change, the log of definitions may contain one that was undone",
    "definitions_unreadable": "a definition with invalid text is ignored, and stays in its file",
    "definitions_undone": "a change of definitions failed and was undone",
    "delayed_down": "a vhost's delayed messages cannot be used",
    "delayed_dropped": "a queue rejected delayed messages, which were dropped; `count`",
    "delayed_kept": "the delayed messages of a deleted queue could not be deleted",
    "delayed_lost": "a delayed message cannot be read; its file is kept",
    "delayed_postponed": "delayed messages will be published later; `count`",
    "delayed_reindexed": "an index of delayed messages was rebuilt",
    "delayed_up": "a vhost's delayed messages are available again",
    "delayed_restarted": "a vhost's delayed messages restart from their files",
    "directory_skipped": "a directory that no broker wrote was left out of a table",
    "disk_full": "a `part` of the node waits for disk space",
    "disk_room": "there is disk space again",
    "disk_unreadable": "the free disk space cannot be read",
    "group_lost": "a member lost its progress: its queue was given to another member, or is read again",
    "group_moved_back": "a group's offset was after the end of its queue",
    "link_failed": "the connection to a shared directory's host failed for good",
    "link_lost": "the connection to a shared directory's host was lost, and is opened again",
    "link_undeclared": "a declaration was rejected on a new connection",
    "listening_open": "the listener can be reached from other machines",
    "log_torn": "invalid bytes in one of warren's own logs, as after a crash; those records are lost",
    "login_refused": "a client's login was rejected",
    "management_failed": "a request to the HTTP API could not be answered",
    "management_unsampled": "a sample of the statistics is missing",
    "message_unreadable": "an invalid message was dropped",
    "monitor_failed": "memory and disk are not watched for one second",
    "node_unclosed": "the node could not be closed at the end of the process",
    "queue_ack_timeout": "messages were not acked in time and were requeued; `count`",
    "queue_adopted": "a queue was declared for messages without a definition",
    "queue_counts_lost": "delivery counts of messages were lost",
    "queue_dead_letters_kept": "dead letters wait, because their target is down",
    "queue_delivery_limit": "messages exceeded the queue's delivery limit; `count`",
    "queue_down": "a queue failed too often, or its files are damaged",
    "queue_index_cut": "invalid bytes at the end of a queue's index were cut off; an error after a clean stop",
    "queue_keys_down": "a queue's log of keys is damaged; messages with a key are rejected",
    "queue_keys_lost": "some keys of a queue's messages are unreadable, and free again",
    "queue_messages_lost": "the store lacks the bodies of messages; `count`; an error after a clean stop",
    "queue_restarted": "a queue that failed restarts from its files",
    "queue_sizes_wrong": "sizes in a queue's index differ from those at its stop; the counters are corrected",
    "queue_unclosed": "a queue could not be closed, and will be recovered",
    "queue_unused": "an unused queue was deleted",
    "queue_up": "a queue that was down is available again",
    "queue_waiting": "a queue that failed waits until its vhost is reopened",
    "record_ended": "the recording of the node was ended by an error",
    "request_refused": "an operation that no caller waits for was rejected",
    "scan_planned": "what the tasks of a table may read: `files` and `bytes` of `all_files` and `all_bytes`, `tasks`",
    "span_failed": "a span could not be ended",
    "status_failed": "a request of `warren top` was not answered, or a process could not connect",
    "status_unavailable": "`warren top` cannot attach",
    "stream_topic_kept": "the topic of a deleted stream could not be deleted",
    "target_missing": "dead letters, delayed or alternate messages are dropped: the target is missing, or has no route",
    "tls_refused": "a TLS handshake failed or took too long",
    "topics_cut": "what recovery cut off or deleted",
    "topics_down": "the topics are down",
    "topics_expired": "messages expired before they were read, delivered or decided; `count`",
    "topics_reopened": "the topics failed, and are reopened",
    "topics_undelivered": "a delayed message cannot be delivered",
    "topics_unreadable": "an unreadable half message was skipped",
    "topics_unwritten": "entries and keys could not be flushed; after a crash they are rebuilt",
    "topics_up": "the topics are available again",
    "vhost_damaged": "an unreadable part of a vhost's directory was skipped",
    "vhost_down": "a vhost cannot be used",
    "vhost_reopened": "a vhost's store failed, and the vhost is reopened",
    "vhost_up": "a vhost that was down is available again",
    "vhost_unsaved": "the queues adopted in a vhost could not be saved",
}
"""The events and their meanings."""


class Named(Protocol):
    """An object with a name in a vhost: the declaration of a queue or a stream."""

    @property
    def vhost(self) -> str: ...

    @property
    def name(self) -> str: ...


def logger(part: str = "") -> logging.Logger:
    """Return the logger ``warren.<part>``, or ``warren``.

    Interrupts are held back meanwhile. Modules are imported in the midst of a user's calls, and an interrupt at that
    point would leave the lock of :mod:`logging` held for ever, and block the next thread that logs.
    """
    return uninterrupted(logging.getLogger, f"warren.{part}".rstrip("."))


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
