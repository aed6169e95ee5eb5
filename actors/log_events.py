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
    "actor_broken": "the cleanup after `actor_stopped` failed too",
    "actor_stopped": "an error stopped a queue, a store or another part of the node; `part` says which",
    "alarm_cleared": "publishers may continue; `resource`: memory or disk",
    "alarm_set": "publishers are blocked; `resource`: memory or disk",
    "argument_unknown": "a queue or an `exchange` was declared with an unknown argument",
    "callback_failed": "a function given to `on_done` or `on_ready` raised an error",
    "channel_closed": "the server closed a client's channel, with `code`",
    "connection_closed": "the server closed a client's connection, with `code`",
    "connection_failed": "an error in the server, or an invalid or broken connection",
    "connection_refused": "the limit of connections was reached",
    "connection_timeout": "a client's handshake or heartbeats did not come in time",
    "consumer_ended": "a stream's consumer ends",
    "definitions_ahead": "until the next change, the log of definitions may contain one that was undone",
    "definitions_unreadable": "a definition contains invalid text; it is ignored, and stays in its file",
    "definitions_undone": "a change of definitions failed and was undone",
    "delayed_down": "the delayed messages of a vhost cannot be used",
    "delayed_dropped": "a queue rejected delayed messages, and they were dropped; `count`",
    "delayed_kept": "the delayed messages of a deleted queue could not be deleted",
    "delayed_lost": "a delayed message cannot be read; its file is kept",
    "delayed_postponed": "delayed messages could not be published and will be retried; `count`",
    "delayed_reindexed": "an index of delayed messages was rebuilt from their log",
    "delayed_up": "the delayed messages of a vhost, which were down, are available again",
    "delayed_restarted": "the delayed messages of a vhost restart from their files",
    "directory_skipped": "a directory was left out of a table, because no broker wrote it",
    "disk_full": "a part of the node waits for disk space; `part` says which",
    "disk_room": "there is disk space again",
    "disk_unreadable": "the free disk space cannot be read",
    "group_lost": "a member's progress was lost: another member has its queue now, or it is read again",
    "group_moved_back": "a group's offset was after the end of its queue",
    "link_failed": "the connection to a shared directory's host failed for good",
    "link_lost": "the connection to a shared directory's host was lost; a new one is opened",
    "link_undeclared": "a declaration was rejected on a new connection",
    "listening_open": "the listener can be reached from other machines",
    "log_torn": "one of warren's own logs contains invalid bytes, as after a crash; those records are lost",
    "login_refused": "a client's login was rejected",
    "management_failed": "a request to the HTTP API could not be answered",
    "management_unsampled": "a sample of the statistics is missing",
    "message_unreadable": "a message is invalid and was dropped",
    "monitor_failed": "memory and disk are not watched for one second",
    "node_unclosed": "the node could not be closed at the end of the process",
    "queue_ack_timeout": "messages were not acked in time and were requeued; `count`",
    "queue_adopted": "messages without a definition were found, and their queue was declared",
    "queue_counts_lost": "the delivery counts of messages were lost",
    "queue_dead_letters_kept": "dead letters wait in their queue, because their target is down",
    "queue_delivery_limit": "messages exceeded the queue's delivery limit; `count`",
    "queue_down": "a queue failed too often, or its files are damaged",
    "queue_index_cut": "invalid bytes at the end of a file of a queue's index were cut off; an error after a clean "
    "stop",
    "queue_keys_down": "a queue's log of keys is damaged, and messages with a key are rejected",
    "queue_keys_lost": "some keys of a queue's messages are unreadable, and can be used again",
    "queue_messages_lost": "messages were lost, because the store lacks their bodies; `count`; an error after a clean "
    "stop",
    "queue_restarted": "a queue that failed restarts from its files",
    "queue_sizes_wrong": "the sizes in a queue's index differ from those counted when it stopped; the counters are "
    "corrected",
    "queue_unclosed": "a queue could not be closed, and will be recovered when it is opened again",
    "queue_unused": "an unused queue was deleted",
    "queue_up": "a queue that was down is available again",
    "queue_waiting": "a queue that failed waits until its vhost is reopened",
    "record_ended": "the recording of the node was ended by an error",
    "request_refused": "an operation was rejected that no caller waits for",
    "scan_planned": "what the tasks of a table may read: `files` and `bytes` of `all_files` and `all_bytes`, `tasks`",
    "span_failed": "a span could not be ended",
    "status_failed": "a request of `warren top` could not be answered, or a process could not connect",
    "status_unavailable": "`warren top` cannot attach",
    "stream_topic_kept": "the topic of a deleted stream could not be deleted",
    "target_missing": "dead letters, delayed messages or messages for an alternate exchange are or will be dropped: "
    "the target exchange or queue does not exist, or has no route",
    "tls_refused": "a client's TLS handshake failed or took too long",
    "topics_cut": "what recovery cut off or deleted",
    "topics_down": "the topics are down",
    "topics_expired": "messages expired before a group read them, or before they were delivered or decided; `count`",
    "topics_reopened": "the topics failed, and are reopened",
    "topics_undelivered": "a delayed message cannot be delivered",
    "topics_unreadable": "an unreadable half message was skipped",
    "topics_unwritten": "ConsumeQueue and index entries could not be flushed; recovery rebuilds them after a crash",
    "topics_up": "the topics, which were down, are available again",
    "vhost_damaged": "an unreadable part of a vhost's directory was skipped",
    "vhost_down": "a vhost cannot be used",
    "vhost_reopened": "a vhost's store failed, and the vhost is reopened",
    "vhost_up": "a vhost that was down is available again",
    "vhost_unsaved": "a vhost is available, but the queues adopted in it could not be saved",
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
