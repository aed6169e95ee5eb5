"""The command ``warren``: the list of its commands.

Each command is a function in a module of its own; that module is imported when the command runs. So a command waits for
no library that another one needs. A test checks that the text about a command here is how its own help begins.
Every command has ``--json``; how commands fail: :mod:`warren.commands.running`.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, NoReturn

import typer

from warren.commands.loading import Group, ListedCommand, new_group
from warren.commands.running import run_app
from warren.commands.scenario_group import SCENARIO, SCENARIO_NAMES, ScenarioGroup

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
        "Say what in a broker's directory is damaged, and what is only left over.",
    ),
    ListedCommand(
        "sql",
        "warren.commands.sql:sql",
        "Answer SQL over broker's directories, by DuckDB: messages, queues, index, store, findings, records, …",
    ),
    ListedCommand(
        "shovel",
        "warren.shovel.command:shovel",
        "Bring messages from one place to another: from a dead broker's disk to a live one, say. None is lost.",
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
        "Watch a node: each queue as a bar of its lists, its rates, memory and alarms. Changes nothing; q ends it.",
    ),
    ListedCommand("publish", "warren.commands.publish:publish", "Publish messages, and come back when they are safe."),
    ListedCommand(
        "consume",
        "warren.commands.consume:consume",
        "Write the messages of a queue to stdout, each body on a line, and take them off the queue.",
    ),
    ListedCommand(
        "tail",
        "warren.commands.tail:tail",
        "Write the last messages of a queue or a topic to stdout, and with -f those that come. Nothing is taken.",
    ),
    ListedCommand(
        "queues",
        "warren.commands.queues:queues",
        "List the queues with what is in them, and the topics. Where a node runs in another process, it is asked.",
    ),
    ListedCommand(
        "import",
        "warren.commands.import_messages:import_messages",
        "Publish exported messages into a node's directory, which is made where it is missing and may be shared by "
        "others.",
    ),
    ListedCommand(
        "browse",
        "warren.commands.mend:browse",
        "Write the messages of a queue to stdout, each with its id, key and body on a line, and leave them where they "
        "are.",
    ),
    ListedCommand(
        "take",
        "warren.commands.mend:take",
        "Write messages of a queue to stdout, by their ids, and take them off the queue, from wherever they stand.",
    ),
    ListedCommand(
        "move",
        "warren.commands.mend:move",
        "Move messages of a queue to another queue, or to an exchange, in order, from wherever they stand.",
    ),
    ListedCommand(
        "remove",
        "warren.commands.mend:remove",
        "Delete messages of a queue, permanently, from wherever they stand. Those that consumers have stay.",
    ),
    ListedCommand(
        "requeue",
        "warren.commands.mend:requeue",
        "Move the dead letters of a queue back to the queues that they died in, as they were there.",
    ),
    ListedCommand("purge", "warren.commands.queues:purge", "Delete every message of a queue, permanently."),
    ListedCommand(
        "delayed",
        "warren.commands.delayed:delayed",
        "List the messages that wait until they are due, the first to come first, or call some back.",
    ),
    ListedCommand(
        "definitions",
        "warren.commands.definitions:definitions",
        "Print queues, exchanges, bindings, users and all as RabbitMQ's definitions JSON, or declare those of a file.",
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
    "Topics: append, consume, groups and how far behind they are, on a node that runs or not; and what is in the files "
    "of a stopped RocketMQ's store folder, or of a warren's.",
    (
        ListedCommand(
            "append",
            "warren.commands.topic_messages:append",
            "Append messages to a topic, and come back when they are safe.",
        ),
        ListedCommand(
            "consume",
            "warren.commands.topic_messages:consume",
            "Write the messages that a group has not read to stdout, each body on a line; they count as read then.",
        ),
        ListedCommand(
            "list",
            "warren.commands.topic_groups:list_topics",
            "List the topics: how many queues and messages each has, and how many groups read it.",
        ),
        ListedCommand(
            "stats",
            "warren.commands.topic_groups:stats",
            "Say of each queue of a topic where it begins and ends, and when its last message was stored.",
        ),
        ListedCommand(
            "groups",
            "warren.commands.topic_groups:groups",
            "List the groups: which topics each reads, with how many members, and how far behind it is.",
        ),
        ListedCommand(
            "lag",
            "warren.commands.topic_groups:lag",
            "Say of a group, queue by queue, where the queue ends, where the group is, and how many messages are "
            "between.",
        ),
        ListedCommand(
            "reset-offset",
            "warren.commands.topic_groups:reset_offset",
            "Let a group go on somewhere else in a topic. Its members may be at work: what they have read counts no "
            "more.",
        ),
        ListedCommand(
            "read",
            "warren.commands.topic:read",
            "Write out the messages of one queue of a topic, in order, a JSON object on a line each, or as --format "
            "says.",
        ),
        ListedCommand(
            "message",
            "warren.commands.topic:message",
            "Write out the message with an id, as a JSON object unless --format says else.",
        ),
        ListedCommand(
            "scan",
            "warren.commands.topic:scan",
            "Write out every message of every topic in the order of the CommitLog, a JSON object on a line each.",
        ),
        ListedCommand(
            "entries",
            "warren.commands.topic:entries",
            "Write out a queue's ConsumeQueue: physical offset, size and tags code, a JSON array on a line each.",
        ),
        ListedCommand(
            "query",
            "warren.commands.topic:query",
            "Write out the messages with a key, newest first, a JSON object on a line each, or as --format says.",
        ),
        ListedCommand(
            "offset-at",
            "warren.commands.topic:offset_at",
            "Say which message of a queue was stored at a time: of files as the original answers, by their "
            "modification times; of a node that runs the first one that was stored then or later.",
        ),
        ListedCommand(
            "hash",
            "warren.commands.topic:hash_key",
            "Say the numbers that stand for a string on disk, as JSON: an index holds those of TOPIC#KEY, an entry of "
            "tags.",
        ),
        ListedCommand(
            "rebuild",
            "warren.commands.topic:rebuild_command",
            "Make ConsumeQueue and index files anew, from the CommitLog alone.",
        ),
    ),
)

MQADMIN: Final = new_group(
    "mqadmin",
    "RocketMQ's mqadmin: its names and options for what warren topic does. A directory stands where it has -n and an "
    "address.",
    (
        ListedCommand("topicList", "warren.commands.mqadmin:topic_list", "As topic list: the topics."),
        ListedCommand(
            "topicStatus",
            "warren.commands.mqadmin:topic_status",
            "As topic stats: where a topic's queues begin and end.",
        ),
        ListedCommand(
            "updateTopic", "warren.commands.mqadmin:update_topic", "Declare a topic, or give one more queues."
        ),
        ListedCommand(
            "consumerProgress",
            "warren.commands.mqadmin:consumer_progress",
            "As topic lag, of a group; without one as topic groups, of all.",
        ),
        ListedCommand(
            "resetOffsetByTime",
            "warren.commands.mqadmin:reset_offset_by_time",
            "As topic reset-offset: let a group go on at a time.",
        ),
        ListedCommand(
            "skipAccumulatedMessage",
            "warren.commands.mqadmin:skip_accumulated_message",
            "As topic reset-offset --to latest: let a group go on behind everything that is there.",
        ),
        ListedCommand(
            "queryMsgByKey",
            "warren.commands.mqadmin:query_msg_by_key",
            "As topic query: the messages with a key, newest first, each as a JSON object unless --format says else.",
        ),
        ListedCommand(
            "queryMsgById", "warren.commands.mqadmin:query_msg_by_id", "As topic message: the message with an id."
        ),
        ListedCommand(
            "queryMsgByOffset",
            "warren.commands.mqadmin:query_msg_by_offset",
            "As topic read --max 1: the message with a number.",
        ),
        ListedCommand("sendMessage", "warren.commands.mqadmin:send_message", "As topic append: append a message."),
        ListedCommand(
            "consumeMessage",
            "warren.commands.mqadmin:consume_message",
            "As topic consume, for a group; without one as topic read: nothing counts as read.",
        ),
    ),
)

SPARK: Final = new_group(
    "spark",
    'The directories of many brokers at once, read and written by Spark (pip install "warrenmq\\[spark]").',
    (
        ListedCommand(
            "inspect",
            "warren.commands.spark.inspect:inspect",
            "Say what is in the directories of many brokers, in numbers: a row for each queue and topic of each node.",
        ),
        ListedCommand(
            "verify",
            "warren.commands.spark.verify:verify",
            "Say what in the directories of many brokers is damaged, and what is only left over.",
        ),
        ListedCommand(
            "compact",
            "warren.commands.spark.compact:compact",
            "Say which files of message stores a broker would combine, and how many bytes that frees. Nothing is "
            "changed.",
        ),
        ListedCommand(
            "export",
            "warren.commands.spark.export:export",
            "Write out the messages of many brokers: what warren export and warren topic scan write, with node "
            "and position.",
        ),
        ListedCommand(
            "load",
            "warren.commands.spark.load:load",
            "Put exported messages into new directories, each a node's, that warren and RabbitMQ can open.",
        ),
        ListedCommand(
            "republish",
            "warren.commands.spark.republish:republish",
            "Publish exported messages to a live RabbitMQ, each queue in order; run it again where it was cut off.",
        ),
        ListedCommand(
            "rebuild",
            "warren.commands.spark.rebuild:rebuild",
            "Make ConsumeQueue and index files of many RocketMQ stores anew, from their CommitLogs alone.",
        ),
        ListedCommand(
            "pack",
            "warren.commands.spark.pack:pack",
            "Put warren into an archive that Spark hands to executors which do not have it.",
        ),
        ListedCommand(
            "backlog",
            "warren.commands.spark.backlog:backlog",
            "Report what waits in the queues of many brokers: how much, how old, how it came, what is there twice.",
        ),
    ),
)

SIMULATE: Final = new_group(
    "simulate",
    "Simulate a node under a workload, with the code that pages for real: what will memory do?\n\n"
    "SCENARIO.toml says which node, queues, publishers and consumers; --example prints one to begin with. The name of "
    f"a scenario that comes with warren can stand in its place: {', '.join(SCENARIO_NAMES)}. It needs "
    'pip install "warrenmq\\[sim]".',
    (
        ListedCommand(
            SCENARIO,
            "warren.commands.simulate:simulate",
            "Simulate the scenario of a file, and say what came of it: paging, alarms, latency, backlog.",
        ),
        ListedCommand(
            "compare",
            "warren.commands.simulate:compare",
            "Put two simulations beside each other: folders with an answer, or scenarios, which are simulated first.",
        ),
        ListedCommand(
            "sweep",
            "warren.commands.simulate:sweep",
            "Simulate a scenario many times, with other values for some of its keys: a row for each combination.",
        ),
        ListedCommand(
            "whatif",
            "warren.commands.simulate:whatif",
            "Simulate a scenario that starts from a real directory's queues, with what is in them, instead of "
            "empty ones.",
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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and nothing else."),
    ] = False,
) -> None:
    """An embedded message store, which also gets the messages out of a dead RabbitMQ's or RocketMQ's directory."""


def main() -> NoReturn:
    """Run the command on the command line, and exit."""
    run_app(app)


if __name__ == "__main__":
    main()
