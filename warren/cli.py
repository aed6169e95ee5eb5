"""The command ``warren``: the list of its commands.

Each command is a function in a module of its own; that module is imported when the command runs. So a command waits for
no library that another one needs. A test checks that the text about a command here is how its own help begins.
Every command has ``--json``; how commands fail: :mod:`warren.commands.running`.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, NoReturn

import typer

from warren.commands.loading import SCENARIO, SCENARIO_NAMES, Group, ListedCommand, ScenarioGroup, new_group
from warren.commands.running import run_app

COMMANDS: Final = (
    ListedCommand(
        "inspect",
        "warren.commands.inspect:inspect",
        "Count what is in a broker's directory: vhosts, queues, segments and stores; or topics and their files.",
    ),
    ListedCommand(
        "export",
        "warren.commands.export:export",
        "Write out the messages that a restarted broker would deliver, queue by queue, in order.",
    ),
    ListedCommand(
        "verify",
        "warren.commands.verify:verify",
        "Report damage in a broker's directory, and harmless leftovers.",
    ),
    ListedCommand(
        "sql",
        "warren.commands.sql:sql",
        "Query brokers' directories with SQL, by DuckDB: messages, queues, index, store, findings, records, …",
    ),
    ListedCommand(
        "shovel",
        "warren.shovel.command:shovel",
        "Copy or move messages without loss, for example from a dead broker's disk to a live broker.",
    ),
    ListedCommand(
        "replay",
        "warren.traces.answers:replay_command",
        "Run a recorded trace on a fresh queue and print the state after every operation.",
        hidden=True,  # a tool of the tests
    ),
    ListedCommand(
        "top",
        "warren.top.command:top",
        "Watch a node: each queue's lists as a bar, rates, memory and alarms. Changes nothing; q quits.",
    ),
    ListedCommand("publish", "warren.commands.publish:publish", "Publish messages, and return when they are safe."),
    ListedCommand(
        "consume",
        "warren.commands.consume:consume",
        "Write the messages of a queue to stdout, each body on a line, and take them off the queue.",
    ),
    ListedCommand(
        "tail",
        "warren.commands.consume:tail",
        "Write the last messages of a queue or topic to stdout; with -f, also new ones. Nothing is consumed.",
    ),
    ListedCommand(
        "queues",
        "warren.commands.queues:queues",
        "List the queues and topics with their message counts. If a node runs in another process, ask it.",
    ),
    ListedCommand(
        "import",
        "warren.commands.import_messages:import_messages",
        "Publish exported messages into a node's directory, created if missing; other processes may share it.",
    ),
    ListedCommand(
        "browse",
        "warren.commands.mend:browse",
        "Write the messages of a queue to stdout, each with its id, key and body on a line, without consuming them.",
    ),
    ListedCommand(
        "take",
        "warren.commands.mend:take",
        "Write messages of a queue to stdout, chosen by id, and remove them, from anywhere in the queue.",
    ),
    ListedCommand(
        "move",
        "warren.commands.mend:move",
        "Move messages from anywhere in a queue to another queue or an exchange, in order.",
    ),
    ListedCommand(
        "remove",
        "warren.commands.mend:remove",
        "Delete messages from anywhere in a queue, permanently. Messages that consumers have stay.",
    ),
    ListedCommand(
        "requeue",
        "warren.commands.mend:requeue",
        "Move the dead letters of a queue back to the queues that they died in, as they were there.",
    ),
    ListedCommand("purge", "warren.commands.queues:purge", "Delete every message of a queue, permanently."),
    ListedCommand(
        "delayed",
        "warren.commands.queues:delayed",
        "List delayed messages, the first to come first, or cancel some.",
    ),
    ListedCommand(
        "definitions",
        "warren.commands.definitions:definitions",
        "Export queues, exchanges, bindings, users and more as RabbitMQ's definitions JSON, or import a file.",
    ),
    ListedCommand(
        "serve",
        "warren.commands.serve:serve",
        "Serve a node's directory to AMQP 0-9-1 clients, as a RabbitMQ would. SIGINT or SIGTERM ends it.",
    ),
    ListedCommand(
        "ctl",
        "warren.commands.ctl:ctl",
        "Do what rabbitmqctl does: users, permissions, vhosts, policies, lists, connections, definitions, status.",
        usage_exit_code=os.EX_USAGE,  # as rabbitmqctl's
    ),
    ListedCommand(
        "demo",
        "warren.commands.demo:demo",
        "Salvage a stopped RabbitMQ's directory that ships with warren, and compare with what that broker delivered.",
    ),
)

TOPIC: Final = new_group(
    "topic",
    "Topics: append, consume, groups and their lag, on a node that runs or not; and the files of a stopped RocketMQ or "
    "warren.",
    (
        ListedCommand(
            "append",
            "warren.commands.topics.topic_messages:append",
            "Append messages to a topic, and return when they are safe.",
        ),
        ListedCommand(
            "consume",
            "warren.commands.topics.topic_messages:consume",
            "Write the messages that a group has not read to stdout, each body on a line, and mark them as read.",
        ),
        ListedCommand(
            "list",
            "warren.commands.topics.topic_groups:list_topics",
            "List the topics: how many queues and messages each has, and how many groups read it.",
        ),
        ListedCommand(
            "stats",
            "warren.commands.topics.topic_groups:stats",
            "Print where each queue of a topic begins and ends, and when its last message was stored.",
        ),
        ListedCommand(
            "groups",
            "warren.commands.topics.topic_groups:groups",
            "List the groups: the topics that each reads, how many members it has, and its lag.",
        ),
        ListedCommand(
            "lag",
            "warren.commands.topics.topic_groups:lag",
            "Print, for each queue that a group reads, the queue's end, the group's offset and the lag.",
        ),
        ListedCommand(
            "reset-offset",
            "warren.commands.topics.topic_groups:reset_offset",
            "Reset a group's offsets in a topic. Its members may be running; what they have read no longer counts.",
        ),
        ListedCommand(
            "read",
            "warren.commands.topics.topic_reading:read",
            "Write out the messages of one queue of a topic, in order, one JSON object per line, or as --format says.",
        ),
        ListedCommand(
            "message",
            "warren.commands.topics.topic_reading:message",
            "Write out the message with an id, as a JSON object unless --format says otherwise.",
        ),
        ListedCommand(
            "scan",
            "warren.commands.topics.topic_reading:scan",
            "Write out every message of every topic in the order of the CommitLog, one JSON object per line.",
        ),
        ListedCommand(
            "entries",
            "warren.commands.topics.topic_reading:entries",
            "Write out a queue's ConsumeQueue: physical offset, size and tags code, one JSON array per line.",
        ),
        ListedCommand(
            "query",
            "warren.commands.topics.topic_reading:query",
            "Write out the messages with a key, newest first, one JSON object per line, or as --format says.",
        ),
        ListedCommand(
            "delayed",
            "warren.commands.topics.topic_delayed:delayed",
            "Write out the messages that wait for their time, of delay levels and of RocketMQ 5's timers, the earliest "
            "first.",
        ),
        ListedCommand(
            "offset-at",
            "warren.commands.topics.topic_reading:offset_at",
            "Find the message of a queue that was stored at a time: in files as RocketMQ does, by their modification "
            "times; on a running node, the first one stored then or later.",
        ),
        ListedCommand(
            "hash",
            "warren.commands.topics.topic_reading:hash_key",
            "Print a string's hash codes as JSON. Index files store that of TOPIC#KEY, ConsumeQueues that of the tags.",
        ),
        ListedCommand(
            "rebuild",
            "warren.commands.topics.topic_rebuilding:rebuild_command",
            "Rebuild ConsumeQueue and index files from the CommitLog alone.",
        ),
    ),
)

MQADMIN: Final = new_group(
    "mqadmin",
    "RocketMQ's mqadmin: its names and options for warren topic. Give a directory instead of -n and an address.",
    (
        ListedCommand("topicList", "warren.commands.topics.mqadmin:topic_list", "Like topic list: list the topics."),
        ListedCommand(
            "topicStatus",
            "warren.commands.topics.mqadmin:topic_status",
            "Like topic stats: where a topic's queues begin and end.",
        ),
        ListedCommand(
            "updateTopic", "warren.commands.topics.mqadmin:update_topic", "Declare a topic, or give one more queues."
        ),
        ListedCommand(
            "consumerProgress",
            "warren.commands.topics.mqadmin:consumer_progress",
            "Like topic lag, for a group; without one, like topic groups.",
        ),
        ListedCommand(
            "resetOffsetByTime",
            "warren.commands.topics.mqadmin:reset_offset_by_time",
            "Like topic reset-offset: reset a group's offsets to a time.",
        ),
        ListedCommand(
            "skipAccumulatedMessage",
            "warren.commands.topics.mqadmin:skip_accumulated_message",
            "Like topic reset-offset --to latest: skip all messages that are there.",
        ),
        ListedCommand(
            "queryMsgByKey",
            "warren.commands.topics.mqadmin:query_msg_by_key",
            "Like topic query: the messages with a key, newest first, each as a JSON object unless --format says "
            "otherwise.",
        ),
        ListedCommand(
            "queryMsgById",
            "warren.commands.topics.mqadmin:query_msg_by_id",
            "Like topic message: the message with an id.",
        ),
        ListedCommand(
            "queryMsgByOffset",
            "warren.commands.topics.mqadmin:query_msg_by_offset",
            "Like topic read --max 1: the message with a number.",
        ),
        ListedCommand(
            "sendMessage", "warren.commands.topics.mqadmin:send_message", "Like topic append: append a message."
        ),
        ListedCommand(
            "consumeMessage",
            "warren.commands.topics.mqadmin:consume_message",
            "Like topic consume, for a group; without one, like topic read: nothing is marked as read.",
        ),
    ),
)

SPARK: Final = new_group(
    "spark",
    'The directories of many brokers at once, with Spark (pip install "warrenmq\\[spark]").',
    (
        ListedCommand(
            "inspect",
            "warren.commands.spark.reports:inspect",
            "Count what is in the directories of many brokers: one row per queue and topic of each node.",
        ),
        ListedCommand(
            "verify",
            "warren.commands.spark.reports:verify",
            "Report damage in the directories of many brokers, and harmless leftovers.",
        ),
        ListedCommand(
            "compact",
            "warren.commands.spark.reports:compact",
            "List the message store files that a broker would combine, and the bytes that frees. Changes nothing.",
        ),
        ListedCommand(
            "export",
            "warren.commands.spark.writing:export",
            "Export the messages of many brokers, as warren export and warren topic scan do, with node and position.",
        ),
        ListedCommand(
            "load",
            "warren.commands.spark.writing:load",
            "Load exported messages into new node directories that warren and RabbitMQ can open.",
        ),
        ListedCommand(
            "republish",
            "warren.commands.spark.writing:republish",
            "Publish exported messages to a live RabbitMQ, each queue in order. Run it again to resume.",
        ),
        ListedCommand(
            "rebuild",
            "warren.commands.spark.writing:rebuild",
            "Rebuild ConsumeQueue and index files of many RocketMQ stores from their CommitLogs alone.",
        ),
        ListedCommand(
            "pack",
            "warren.commands.spark.writing:pack",
            "Pack warren into an archive that Spark sends to executors without it.",
        ),
        ListedCommand(
            "backlog",
            "warren.commands.spark.reports:backlog",
            "Report the backlog of many brokers: how many messages, how old, how they arrived, which are duplicates.",
        ),
    ),
)

SIMULATE: Final = new_group(
    "simulate",
    "Simulate a node under a workload, with the code that pages for real: what will memory do?\n\n"
    "SCENARIO.toml describes the node, queues, publishers and consumers; --example prints one to begin with. It can "
    f"also be the name of a scenario that comes with warren: {', '.join(SCENARIO_NAMES)}. This needs "
    'pip install "warrenmq\\[sim]".',
    (
        ListedCommand(
            SCENARIO,
            "warren.commands.simulation.simulate:simulate",
            "Simulate a scenario, and report paging, alarms, latency and backlog.",
        ),
        ListedCommand(
            "compare",
            "warren.commands.simulation.simulate:compare",
            "Compare two simulations: folders with an answer, or scenarios, which are simulated first.",
        ),
        ListedCommand(
            "sweep",
            "warren.commands.simulation.simulate:sweep",
            "Simulate a scenario with different values for some of its keys: one row per combination.",
        ),
        ListedCommand(
            "whatif",
            "warren.commands.simulation.simulate:whatif",
            "Simulate a scenario that starts with the queues and messages of a real directory.",
        ),
    ),
    ScenarioGroup,
    subcommand_metavar="SCENARIO.toml | COMMAND",
)


class Warren(Group):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in (*COMMANDS, TOPIC, MQADMIN, SPARK, SIMULATE):
            self.add_command(command)


app = typer.Typer(name="warren", cls=Warren, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from warren.storage.data_version import WARREN_VERSION

        typer.echo(f"warren {WARREN_VERSION}")
        raise typer.Exit


@app.callback()
def warren(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit."),
    ] = False,
) -> None:
    """An embedded message store, which also gets the messages out of a dead RabbitMQ's or RocketMQ's directory."""


def main() -> NoReturn:
    """Run the command on the command line, and exit."""
    run_app(app)


if __name__ == "__main__":
    main()
