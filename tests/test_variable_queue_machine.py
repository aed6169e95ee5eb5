"""Whole vhosts against models of their queues (:mod:`tests.support.vhost_machine`), and what that found.

A deeper run: ``WARREN_EFFORT=nightly pytest tests/test_variable_queue_machine.py``.
"""

from __future__ import annotations

from tests.support.effort import times
from tests.support.queue_model import ENVELOPES, body_of, found_in, id_of, new_files, open_vhost
from tests.support.vhost_machine import DefaultProfile, PartsOfSegments, RabbitProfile, machine_settings
from warren.actors.vhost import Vhost
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.memory import MemoryFileSystem

for _machine in (DefaultProfile, PartsOfSegments, RabbitProfile):
    _machine.TestCase.settings = machine_settings(times(60))
TestQueuesOfTheDefaultProfile = DefaultProfile.TestCase
TestQueuesThatReadPartsOfSegments = PartsOfSegments.TestCase
TestQueuesOfTheRabbitProfile = RabbitProfile.TestCase


# ── what was found once ─────────────────────────────────────────────────────────────────────────────────────────────


def restarted(files: MemoryFileSystem, vhost: Vhost) -> Vhost:
    vhost.close()
    return open_vhost(files, DefaultProfile.profile)


def fill(queue: VariableQueue, count: int, *, persistent: bool = True) -> None:
    bodies = [body_of(n, 10) for n in range(count)]
    queue.publish_many(ENVELOPES[persistent], b"".join(map(id_of, range(count))), bodies, confirm=True)


def test_a_clean_stop_does_not_count_pending_acks_that_were_purged() -> None:
    files = new_files()
    vhost = open_vhost(files, DefaultProfile.profile)
    fill(vhost.queue(b"a"), 3)
    vhost.queue(b"a").fetch_many(2)
    vhost.queue(b"a").purge_acks()
    vhost = restarted(files, vhost)
    vhost.check_invariants()
    assert len(vhost.queue(b"a")) == len(found_in(vhost.queue(b"a"))) == 1


def test_browsing_leaves_out_transient_messages_that_a_stop_lost() -> None:
    files = new_files()
    vhost = open_vhost(files, DefaultProfile.profile)
    fill(vhost.queue(b"a"), 8)
    vhost.queue(b"a").set_mode("lazy")
    fill(vhost.queue(b"a"), 9, persistent=False)
    fill(vhost.queue(b"a"), 9)
    vhost = restarted(files, vhost)
    assert [sent.seq_id for sent in found_in(vhost.queue(b"a"))] == [*range(8), *range(17, 26)]


def test_without_fsyncs_a_stored_message_is_confirmed_by_a_sync_all_the_same() -> None:
    vhost = open_vhost(new_files(), DefaultProfile.profile, sync=False)
    queue = vhost.queue(b"a")
    queue.publish(ENVELOPES[True], id_of(1), body_of(1, 300), confirm=True)
    vhost.sync()
    assert queue.drain_confirmed() == [range(1)]


def test_a_queue_that_is_not_durable_leaves_nothing_behind_a_clean_stop() -> None:
    files = new_files()
    vhost = open_vhost(files, DefaultProfile.profile)
    queue = vhost.queue(b"c", durable=False)
    fill(queue, 20)
    queue.set_mode("lazy")  # which gives it a directory
    assert restarted(files, vhost).queues == {}
