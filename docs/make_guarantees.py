"""Make ``docs/guarantees.md``: ``python docs/make_guarantees.py``. tests/test_docs.py holds that it was run.

The table of promises stands here; a test that it names has to exist. The counts are those of the last `make nightly`
(``docs/tried.json``).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

PROJECT: Final = Path(__file__).parent.parent
PAGE: Final = PROJECT / "docs" / "guarantees.md"
COUNTS: Final = PROJECT / "docs" / "tried.json"
sys.path.insert(0, str(PROJECT))

from tests.support.tried import Tried  # noqa: E402 - which stands at the top of the repository

HEAD: Final = """# What is promised, and what shows it

Each promise has the faults under which it holds, with the tests that try to break it: `pytest -k` takes their names.
[How it is tested](how-it-is-tested.md) explains the searches, [recovery](recovery.md) how the promises are kept.

A **confirmed** message is one whose confirm has come (`publish(…).wait()` returned), alone or in a batch. With
`sync="os"` a promise holds when a process dies, with `"group"` (the default) and `"always"` also when the power fails.
"""


@attrs.frozen(init=False)
class Shown:
    """Under one fault."""

    fault: str
    tests: tuple[str, ...]
    """``file::test``, below tests/, without ``test_`` and ``.py``."""

    def __init__(self, fault: str, *tests: str) -> None:
        self.__attrs_init__(fault, tests)


@attrs.frozen(init=False)
class Promise:
    text: str
    shown: tuple[Shown, ...]

    def __init__(self, text: str, *shown: Shown) -> None:
        self.__attrs_init__(text, shown)


PROMISES: Final = (
    Promise(
        "A persistent message that was confirmed is there: whole, in its place, until it is acked",
        Shown(
            "the process is killed at any file operation",
            "crash_points::no_crash_breaks_a_promise",
            "crashes::a_kill_at_any_operation_breaks_no_promise",
        ),
        Shown(
            "the power fails at any file operation, and unsynced writes, names and sizes are lost or torn in any order",
            "crash_points::no_crash_breaks_a_promise",
            "crashes::a_power_loss_at_any_operation_breaks_no_promise",
        ),
        Shown("a recovery is cut off, too", "crashes::a_recovery_cut_at_any_operation_breaks_no_promise"),
        Shown("the power fails under a real ext4", "real_disk::what_was_confirmed_survives_every_power_loss"),
        Shown(
            "kill -9 at full speed, with paging, compaction and all kinds of messages",
            "kill::kills_at_full_speed",
            "sharing_kill::and_so_does_a_mixed_load",
        ),
        Shown(
            "EIO or a full disk, once or for long, at each kind of file",
            "disk_faults::whatever_fails_on_a_disk_nothing_confirmed_is_lost_and_all_goes_on",
        ),
        Shown(
            "an fsync fails, and nothing unsynced is called safe, by this process or by the next",
            "crashes::a_failed_operation_comes_out_and_loses_nothing",
            "topic_store_machine::what_is_confirmed_after_a_sync_failed_is_safe_with_all_before_it",
            "record_log::what_is_read_after_a_sync_that_failed_is_safe_only_as_a_copy",
        ),
        Shown(
            "a disk below a real ext4 refuses writes, and the power fails then",
            "real_disk::what_is_confirmed_around_writes_that_the_disk_refuses_survives_a_power_loss",
        ),
        Shown("any order of the actors' turns", "schedules::no_order_of_a_nodes_threads_breaks_a_promise"),
    ),
    Promise(
        "Messages come whole, in order, and a second time only with the redelivered flag",
        Shown(
            "a kill or a power loss at any operation",
            "crashes::a_kill_at_any_operation_breaks_no_promise",
            "crash_points::no_crash_breaks_a_promise",
        ),
        Shown("kill -9 at full speed", "kill::kills_at_full_speed"),
        Shown(
            "a clean close with dead letters on their way",
            "dead_letters::a_clean_close_leaves_a_dead_letter_in_one_queue",
        ),
    ),
    Promise(
        "What was acked, and synced, does not come back",
        Shown(
            "a kill or a power loss at any operation",
            "crashes::a_purge_that_power_cuts_brings_nothing_back_that_was_surely_acked",
            "crash_points::no_crash_breaks_a_promise",
        ),
        Shown("a real ext4", "real_disk::what_was_confirmed_survives_every_power_loss"),
    ),
    Promise(
        "What was declared is there: queues, exchanges, bindings, policies, users",
        Shown(
            "a crash at any operation",
            "definitions::cut_off_at_every_operation",
            "node_directory::a_crash_while_something_is_changed_leaves_it_done_or_not",
        ),
        Shown(
            "processes that were killed as they declared, and a power loss then",
            "definitions::what_a_killed_process_left_in_the_log_is_on_the_disk_before_anything_behind_it",
        ),
        Shown("a real ext4", "real_disk::what_was_confirmed_survives_every_power_loss"),
    ),
    Promise(
        "What was appended to a topic and confirmed is there, found by its key; no group is ahead of its readers",
        Shown(
            "a crash at any operation",
            "topics::a_crash_at_any_operation_loses_nothing_that_anybody_was_told",
            "crash_points::no_crash_breaks_a_promise",
        ),
        Shown("kill -9 at full speed", "kill::kills_at_full_speed"),
        Shown("a real ext4", "real_disk::what_was_confirmed_survives_every_power_loss"),
        Shown(
            "offsets that are being written",
            "consumer_offsets::whenever_it_dies_the_old_offsets_or_the_new_ones_are_there",
        ),
    ),
    Promise(
        "A delayed message comes, and not before its time; one that was cancelled does not come",
        Shown(
            "a crash at any operation",
            "delayed_messages::a_crash_at_every_operation_loses_nothing_that_was_confirmed",
            "delayed_messages::what_was_called_back_stays_so_after_a_crash",
        ),
        Shown("kill -9 at full speed", "kill::kills_at_full_speed"),
        Shown(
            "a wall clock that is set by hours", "disk_faults::a_wall_clock_that_is_set_loses_nothing_and_stops_nothing"
        ),
    ),
    Promise(
        "Of messages with a key one is stored; how often a message came back is counted",
        Shown(
            "a crash at any operation",
            "unique_crashes::a_crash_at_every_operation",
            "crash_points::no_crash_breaks_a_promise",
            "retries_runtime::a_crash_at_any_operation_loses_no_message_and_no_count_that_was_safe",
        ),
        Shown(
            "an acked message comes back beside one that was lost",
            "unique_crashes::a_message_that_comes_back_has_its_key_though_the_next_one_was_lost",
        ),
        Shown("kill -9 at full speed", "kill::kills_at_full_speed"),
    ),
    Promise(
        "A shared directory has one host at a time, and soon another if that ends; nothing confirmed is lost",
        Shown(
            "any order of what processes do, and deaths anywhere",
            "takeover_schedules::no_order_of_takeovers_breaks_a_promise",
        ),
        Shown(
            "hosts and guests that are killed",
            "sharing_kill::what_was_confirmed_survives_hosts_that_are_killed",
            "sharing_kill::and_so_does_a_mixed_load",
        ),
        Shown("a power loss after that, on a real ext4", "real_disk::what_was_confirmed_survives_every_power_loss"),
    ),
    Promise(
        "A program that ends in order loses nothing that it published; any other end nothing that was confirmed",
        Shown(
            "[every end of an interpreter](failures.md)",
            "ends::an_interpreter_ends_as_the_table_says",
            "ends::and_so_do_the_others",
        ),
        Shown("an interrupt at each moment of each verb", "struck_verbs::ctrl_c_in_a_verb_leaves_the_node_whole"),
        Shown(
            "an interrupt at each moment of an opening, and of a closing",
            "struck_opening::ctrl_c_in_an_opening_leaves_no_lock_no_thread_and_no_socket",
            "struck_opening::ctrl_c_in_close_is_raised_when_the_node_is_closed",
            "struck_guests::a_time_limit_in_a_guests_close_is_raised_and_nothing_stays_open",
        ),
    ),
    Promise(
        "A part that stops accepting says why; what can be read is served; all resumes when the cause is gone",
        Shown(
            "a real file system, filled and freed",
            "real_disk_faults::a_real_file_system_is_filled_and_freed_under_traffic",
        ),
        Shown(
            "EIO, read-only for a while or for good",
            "disk_faults::a_fault_that_lasts_or_passes",
            "real_disk_faults::a_real_file_system_that_becomes_read_only_refuses_serves_and_loses_nothing",
            "disk_faults::a_file_system_that_is_read_only_for_a_while_is_read_and_written_again",
        ),
        Shown(
            "no descriptor left, with 500 queues",
            "real_disk_faults::five_hundred_queues_without_a_descriptor_left_refuse_or_serve_and_go_on",
        ),
        Shown(
            "no descriptor left for a module that is first used then",
            "modules_not_read::topics_that_go_down_while_no_module_can_be_read_come_up_again",
        ),
        Shown(
            "no descriptor left for a guest that reconnects",
            "sharing::a_guest_that_finds_no_descriptor_for_the_next_connection_says_so_and_goes_on_once_it_does",
        ),
        Shown("permission lost and given back", "real_disk_faults::permission_to_make_files_is_lost_and_given_back"),
        Shown(
            "an operation of the disk fails, and every waiting call is answered",
            "everybody_answered::whoever_waits_is_answered_whichever_operation_fails",
        ),
        Shown(
            "no storm of restarts",
            "disk_faults::a_full_disk_does_not_open_the_topics_anew_again_and_again",
            "full_disk::nothing_is_tried_again_and_again_on_a_full_disk",
        ),
    ),
    Promise(
        "Nothing is confirmed in a directory that is gone, and nothing is written into one that is another's now",
        Shown(
            "a directory that is removed, or replaced, under a node",
            "lost_directory::nothing_is_confirmed_in_a_directory_that_was_removed",
            "lost_directory::a_directory_that_is_anothers_now_is_left_alone",
        ),
    ),
    Promise(
        "Reading ends, in bounded memory, and raises only warren's own errors",
        Shown(
            "any bytes, in any file",
            "fuzz::a_damaged_input_is_refused_or_read",
            "fuzz::a_fuzzer_that_watches_branches_finds_nothing",
        ),
        Shown(
            "any other value in any one place of a sound file",
            "fuzz_places::any_value_in_any_place_is_refused_or_read",
        ),
        Shown(
            "links, FIFOs, devices, directories in a file's place",
            "hostile_files::whatever_stands_in_a_files_place_nothing_hangs_or_fills_the_memory",
        ),
    ),
    Promise(
        "No message is missing silently: `verify` names the damage, `export` saves all that is intact",
        Shown(
            "any single damage of a broker's directory",
            "damage_drawn::queues_and_topics_lose_nothing_without_a_word",
        ),
        Shown(
            "what stands in a file's place",
            "damage_drawn::what_stands_in_a_files_place_costs_no_message_without_a_word",
        ),
        Shown(
            "any single damage of warren's own files",
            "damaged_own_nodes::a_damaged_file_of_a_node_is_an_error_or_a_warning_or_costs_nothing",
            "losses_told::messages_whose_bodies_the_store_lacks_are_counted_in_the_log",
        ),
    ),
    Promise(
        "No call waits for ever, and an idle queue answers within 100 ms while others are busy",
        Shown("any order of the actors' turns", "schedules::no_order_of_a_nodes_threads_breaks_a_promise"),
        Shown(
            "real threads, event loops, guests and clients at full speed",
            "starvation::a_thread_at_an_idle_queue",
            "starvation::a_guest_at_an_idle_queue_beside_a_busy_guest",
            "starvation::a_connection_at_an_idle_queue_beside_a_busy_connection",
        ),
        Shown(
            "thousands of delayed messages that are due in one moment",
            "delayed_messages::messages_that_are_due_at_once_do_not_keep_other_actors_waiting",
        ),
    ),
    Promise(
        "A client of `warren serve` takes no more than its share of time, memory and descriptors",
        Shown(
            "attacks, each watched by a bystander",
            "server_attacks::an_attack_costs_others_no_more_than_a_moment",
            "server_attacks::a_flood_of_connections_leaves_the_node_its_descriptors",
        ),
        Shown(
            "mutated frames and handshakes",
            "server_abuse::mutated_conversations_harm_nobody",
            "server_abuse::mutated_handshakes_harm_nobody",
        ),
    ),
    Promise(
        "Files are their user's alone, other users' processes are refused, and no link leads out",
        Shown("any umask", "own_files::everything_that_a_node_makes_is_its_users_alone"),
        Shown(
            "another user at the socket",
            "sharing::another_user_is_dropped",
            "guest_listener::another_user_s_process_is_dropped_whatever_the_socket_s_mode",
        ),
        Shown("links in the place of files", "links::a_link_in_the_place_of_any_file_of_a_node"),
    ),
    Promise(
        "A name, a size or a depth is accepted and preserved, or is one clear error",
        Shown(
            "any characters, from a host and a guest", "names::each_name_is_taken_or_is_a_clear_error_and_comes_back"
        ),
        Shown("up to 100,000 levels", "sizes::what_is_nested_too_deep_is_an_error_wherever_it_is_said"),
    ),
    Promise(
        "What an earlier warren wrote is opened, and all of it is there; what a newer one wrote is refused, untouched",
        Shown(
            "directories of all released versions, closed and killed",
            "upgrades::what_an_earlier_warren_wrote_is_all_there_and_goes_on",
        ),
        Shown("a newer number, an unknown feature", "data_version::what_a_newer_version_wrote_is_not_opened_to_write"),
        Shown(
            "a format that changes unnoticed",
            "upgrades::the_present_version_has_an_archive_which_is_what_this_code_writes",
        ),
    ),
)
LIMITS: Final = """
## What is not promised

- A message that was not confirmed may be there or not ([unique](jobs.md#unique-jobs) ones can be sent again).
- An ack is safe within `sync_interval_ms`; before that a crash brings the message back, flagged as redelivered.
- Transient messages and queues are lost with the process.
- If a disk lies about a flush, or bits flip in memory, a promise may break. RabbitMQ's classic queues have no checksums
  for bodies.
- Two machines must not share a directory through a network file system: each has a lock of its own.
"""


def page() -> str:
    return "".join([HEAD, *_promises(), LIMITS, *_counts()])


def _promises() -> Iterator[str]:
    yield "\n## Promises\n"
    for promise in PROMISES:
        yield f"\n**{promise.text}.**\n\n"
        for shown in promise.shown:
            yield f"- {shown.fault}: {', '.join(map(_link, shown.tests))}\n"


def _link(test: str) -> str:
    """Of a test that there is."""
    module, _, name = test.partition("::")
    folder, _, module = module.rpartition("/")
    path = Path("tests", folder, f"test_{module}.py")
    source = (PROJECT / path).read_text(encoding="utf-8")
    if not re.search(rf"^(async )?def test_{name}\(", source, re.MULTILINE):
        raise LookupError(f"{path} has no test_{name}")
    return f"[`{name}`](../{path})"


def _counts() -> Iterator[str]:
    counts = json.loads(COUNTS.read_text(encoding="utf-8"))
    yield f"\n## What was tried\n\nBy `make nightly`, on {counts['date']}:\n\n| how many | of what |\n| ---: | --- |\n"
    numbers = {kind: counts[kind.name.lower()] for kind in Tried}
    for kind, number in numbers.items():
        yield f"| {f'{number:,}' if number else '–'} | {kind.value} |\n"
    if not all(numbers.values()):
        yield ("\n–: that search was left out, or did not finish. Every `make test-all` has its share of it.\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
