"""The shell on a directory that is free, that a program has for itself or shares; in real processes."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner

import warren
from tests.support import rocketmq_golden as golden
from tests.support.waiting import wait_until
from warren import cli
from warren.commands.running import EXIT_BROKEN_PIPE
from warren.storage.lock_file import LOCK_FILE, lock_holder

PROJECT = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROJECT)}
PATIENCE_S = 60

HOLDS = """
import sys, warren
with warren.open(sys.argv[1], share=sys.argv[2] == "shared"):
    print("open", flush=True)
    sys.stdin.read()
"""
"""A program that has a directory open until its input ends."""


class Program:
    """One that has the directory open, if any does."""

    def __init__(self, path: Path, how: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        if how == "closed":
            return
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(path), how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        assert stdout_of(self.process).readline() == b"open\n"

    def end(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait(PATIENCE_S) == 0
            stdout_of(self.process).close()


def stdout_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


@pytest.fixture(
    params=[
        pytest.param("closed", marks=pytest.mark.slow),
        pytest.param("alone", marks=pytest.mark.slow),
        "shared",
    ]
)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory with a queue, orders, and a topic, events, of two queues."""
    path = tmp_path / "data"
    with warren.open(path) as node:
        node.queue("orders")
        node.topic("events", queues=2)
    program = Program(path, request.param)
    yield path
    program.end()


@pytest.fixture
def at_rest(tmp_path: Path) -> Path:
    """The same directory, closed."""
    path = tmp_path / "data"
    with warren.open(path) as node:
        node.queue("orders")
        node.topic("events", queues=2)
    return path


def said(*arguments: str | Path, stdin: bytes | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def done(*arguments: str | Path, stdin: bytes | None = None) -> str:
    code, out, err = said(*arguments, stdin=stdin)
    assert (code, err) == (0, "")
    return out


def refused(*arguments: str | Path) -> str:
    """Exit code 2 and one line on stderr, which is returned."""
    code, out, err = said(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("warren: ")
    return err


def answer(*arguments: str | Path) -> Any:
    return json.loads(done(*arguments, "--json"))


def begun(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "warren.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, bufsize=0,
    )  # fmt: skip


def interrupted(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert process.returncode == 130


def waits(path: Path) -> None:
    """Wait until a process has the directory."""
    wait_until(lambda: lock_holder(str(path / LOCK_FILE)), "nobody opens it")


# ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_messages_go_in_and_come_out(data: Path) -> None:
    done("publish", data, "orders", "a", "b", "--header", "n=1", "--property", "content_type=text/plain",
         "--property", "timestamp=1700000000")  # fmt: skip
    done("publish", data, "orders", "-l", stdin=b"c\nd\n")
    shown = done("tail", data, "orders", "-n", "3", "--format", r"%t %k %o %T %h %S %s\n")
    assert shown == (
        "orders orders 1 1700000000000 n=1 1 b\norders orders 2 -1  1 c\norders orders 3 -1  1 d\n"
    )  # fmt: skip
    lines = [json.loads(line) for line in done("tail", data, "orders", "--json").splitlines()]
    assert [base64.b64decode(line["body"]) for line in lines] == [b"a", b"b", b"c", b"d"]
    assert (lines[0]["headers"], lines[0]["redelivered"]) == ({"n": "1"}, None)
    assert lines[0]["properties"] == {"content_type": "text/plain", "timestamp": 1700000000, "delivery_mode": 2}
    assert done("consume", data, "orders", "-n", "2", "--format", "keys") == "orders\ta\norders\tb\n"
    assert done("consume", data, "orders") == "c\nd\n"
    assert done("tail", data, "orders") == ""


@pytest.mark.slow
def test_lines_with_keys_go_to_where_their_keys_say(data: Path) -> None:
    definitions = {
        "queues": [{"name": "red", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
        "bindings": [
            {
                "source": "amq.topic", "vhost": "/", "destination": "red", "destination_type": "queue",
                "routing_key": "red.*", "arguments": {},
            }
        ],
    }  # fmt: skip
    done("definitions", data, "--import", "-", stdin=json.dumps(definitions).encode())
    done("publish", data, "--exchange", "amq.topic", "-l", "-K", ":", stdin=b"red.1:one\nred.2:two:2\n")
    assert done("consume", data, "red", "--format", "keys") == "red.1\tone\nred.2\ttwo:2\n"


@pytest.mark.slow
def test_the_end_is_looked_at_with_a_condition(data: Path) -> None:
    for number in range(4):
        done("publish", data, "orders", str(number), "--header", f"n={number}")
        done("topic", "append", data, "events", str(number), "--tag", "odd" if number % 2 else "even")
    assert done("tail", data, "orders", "--where", "headers['n'] >= 2") == "2\n3\n"
    assert done("tail", data, "orders", "-n", "3", "--where", "headers['n'] < 2", "--format", "%s %i\\n").startswith(
        "1 "
    )
    assert done("tail", data, "events", "--where", "tag = 'odd'") == "1\n3\n"
    [ids] = {len(line) for line in done("tail", data, "events", "--format", "%i\\n").splitlines()}
    assert ids == 32
    for name in ("orders", "events"):
        assert "colour" in refused("tail", data, name, "--where", "colour = 'red'")


@pytest.mark.slow
def test_following_a_queue_from_two_terminals(data: Path) -> None:
    taker, looker = begun("consume", data, "orders", "-f"), begun("tail", data, "orders", "-f")
    waits(data)
    done("publish", data, "orders", "warm", "up")
    assert [stdout_of(taker).readline() for _ in range(2)] == [b"warm\n", b"up\n"]
    looker.send_signal(signal.SIGINT)
    looker.communicate(timeout=PATIENCE_S)
    looker = begun("tail", data, "orders", "-f")
    done("publish", data, "orders", "x")
    assert stdout_of(taker).readline() == b"x\n"
    interrupted(taker)
    done("publish", data, "orders", "y")
    seen = [stdout_of(looker).readline()]
    if seen == [b"x\n"]:  # it had begun before that was taken
        seen.append(stdout_of(looker).readline())
    assert seen[-1] == b"y\n"
    interrupted(looker)
    assert done("consume", data, "orders") == "y\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["consume", "tail"])
def test_a_pipe_that_has_had_enough_ends_a_command_that_follows_at_once(at_rest: Path, command: str) -> None:
    done("publish", at_rest, "orders", *"abcdef")
    follower = begun(command, at_rest, "orders", "-f")
    head = subprocess.run(["head", "-3"], stdin=follower.stdout, capture_output=True, check=True)
    stdout_of(follower).close()
    assert head.stdout == b"a\nb\nc\n"
    assert follower.wait(PATIENCE_S) == EXIT_BROKEN_PIPE, "nothing comes any more, and it has seen that"
    assert follower.stderr is not None
    assert follower.stderr.read() == b""
    assert done("consume", at_rest, "orders").split() == list("def" if command == "consume" else "abcdef")


@pytest.mark.slow
def test_what_a_killed_follower_had_not_written_comes_again(at_rest: Path) -> None:
    done("publish", at_rest, "orders", "-l", stdin=b"".join(b"%05d\n" % number for number in range(5000)))
    follower = begun("consume", at_rest, "orders", "-f")
    read = stdout_of(follower).read(600)
    follower.kill()
    follower.wait(PATIENCE_S)
    stdout_of(follower).close()
    rest = [int(number) for number in done("consume", at_rest, "orders").split()]
    assert read is not None
    assert rest[-1] == 4999
    assert rest[0] <= len(read) // 6 + 1, "what was not read is there"
    assert rest == [*range(rest[0], 5000)]


@pytest.mark.slow
def test_another_program_gets_in_while_a_command_follows(at_rest: Path) -> None:
    follower = begun("tail", at_rest, "orders", "-f")
    waits(at_rest)
    with warren.open(at_rest, share=True) as node:
        node.queue("orders").publish(b"from a program").wait()
        assert stdout_of(follower).readline() == b"from a program\n"
    interrupted(follower)


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_topic_is_appended_to_read_by_groups_and_sought(data: Path) -> None:
    assert done("topic", "append", data, "events", "one", "two", "--queue-id", "0", "--key", "k1", "--key", "k2",
                "--tag", "new", "--property", "a=b") == "2 messages appended, 6 bytes\n"  # fmt: skip
    assert json.loads(
        done("topic", "append", data, "events", "-l", "-K", "=", "--queue-id", "1", "--json", stdin=b"x=three\nfour\n")
    ) == {"appended": 2, "bytes": 9}
    assert answer("topic", "list", data) == [{"topic": "events", "queues": 2, "messages": 4, "groups": []}]
    assert [
        (row["queue_id"], row["min_offset"], row["max_offset"], row["last_updated"] > 0)
        for row in answer("topic", "stats", data, "events")["queues"]
    ] == [(0, 0, 2, True), (1, 0, 2, True)]

    taken = done("topic", "consume", data, "events", "-g", "billing", "-n", "3", "--format", r"%p %o %k %h %s\n")
    expected = ["0 0 k1 k2 KEYS=k1 k2,TAGS=new,a=b one", "0 1 k1 k2 KEYS=k1 k2,TAGS=new,a=b two",
                "1 0 x KEYS=x three", "1 1   four"]  # fmt: skip
    assert taken.splitlines() == expected[:3]
    assert [
        (row["group"], row["lag"], row["members"]) for row in answer("topic", "groups", data, "--topic", "events")
    ] == [("billing", 1, [])]
    behind = answer("topic", "lag", data, "billing", "--topic", "events")
    assert behind["lag"] == 1
    assert [(row["queue_id"], row["max_offset"], row["offset"], row["lag"]) for row in behind["queues"]] == [
        (0, 2, 2, 0), (1, 2, 1, 1),
    ]  # fmt: skip
    assert done("topic", "consume", data, "events", "-g", "billing") == "four\n"

    sought = answer("topic", "reset-offset", data, "events", "-g", "billing", "--to", "earliest")
    assert [(row["offset"], row["lag"]) for row in sought["queues"]] == [(0, 2), (0, 2)]
    assert len(done("topic", "consume", data, "events", "-g", "billing").splitlines()) == 4
    assert answer("topic", "reset-offset", data, "events", "-g", "billing", "--offset", "1", "--queue-id", "1")[
        "queues"
    ] == [{"queue_id": 1, "offset": 1, "lag": 1}]
    assert done("topic", "consume", data, "events", "-g", "billing") == "four\n"
    for to in ("2020-01-31T12:00", "2020-01-31#12:00:00:000", "1580000000000"):
        answer("topic", "reset-offset", data, "events", "-g", "billing", "--to", to)
        assert answer("topic", "lag", data, "billing")["lag"] == 4
    answer("topic", "reset-offset", data, "events", "-g", "billing", "--to", "latest")
    assert answer("topic", "lag", data, "billing")["lag"] == 0
    answer("topic", "reset-offset", data, "events", "-g", "billing", "--timestamp", "0")
    assert done("topic", "consume", data, "events", "-g", "billing", "--tag", "new") == "one\ntwo\n"
    assert answer("topic", "lag", data, "billing")["lag"] == 0


@pytest.mark.slow
def test_messages_are_read_and_found_without_a_group(data: Path) -> None:
    done("topic", "append", data, "events", *"abcdef", "--queue-id", "1", "--key", "k")
    assert done("tail", data, "events", "-n", "2") == "e\nf\n"
    read = done("topic", "read", data, "--topic", "events", "--queue-id", "1", "--offset", "4")
    lines = [json.loads(line) for line in read.splitlines()]
    assert [base64.b64decode(line["body"]) for line in lines] == [b"e", b"f"]
    assert done("topic", "read", data, "--topic", "events", "--queue-id", "1", "--max", "2", "--format", "body") == (
        "a\nb\n"
    )  # fmt: skip
    assert done("topic", "query", data, "--topic", "events", "--key", "k", "--format", "body").split() == list("fedcba")
    places = answer("topic", "query", data, "--topic", "events", "--key", "k", "--exact")["physical_offsets"]
    assert places == answer("topic", "query", data, "--topic", "events", "--key", "k")["physical_offsets"]
    assert places[0] == lines[1]["physical_offset"]
    assert json.loads(done("topic", "message", data, lines[0]["message_id"])) == lines[0]
    assert answer("topic", "offset-at", data, "--topic", "events", "--queue-id", "1", "--timestamp", "0") == {
        "offset": 0
    }
    assert "no message 7F00000100000000000000000000FFFF" in refused(
        "topic", "message", data, "7F00000100000000000000000000FFFF"
    )
    assert answer("topic", "groups", data) == []


@pytest.mark.slow
def test_following_a_topic_for_a_group_and_without(data: Path) -> None:
    member, looker = begun("topic", "consume", data, "events", "-g", "g", "-f"), begun("tail", data, "events", "-f")
    waits(data)
    for body in ("one", "two"):
        done("topic", "append", data, "events", body, "--queue-id", "0")
        assert stdout_of(member).readline() == f"{body}\n".encode()
        assert stdout_of(looker).readline() == f"{body}\n".encode()
    interrupted(member)
    interrupted(looker)
    done("topic", "append", data, "events", "three", "--queue-id", "0")
    assert done("topic", "consume", data, "events", "-g", "g") == "three\n"


@pytest.mark.slow
def test_what_a_reader_of_a_topic_leaves_in_the_pipe_comes_again(at_rest: Path) -> None:
    numbers = b"".join(b"%d\n" % number for number in range(2000))
    done("topic", "append", at_rest, "events", "-l", "--queue-id", "0", stdin=numbers)
    member = begun("topic", "consume", at_rest, "events", "-g", "g", "-f")
    head = subprocess.run(["head", "-1"], stdin=member.stdout, capture_output=True, check=True)
    stdout_of(member).close()
    assert (head.stdout, member.wait(PATIENCE_S)) == (b"0\n", EXIT_BROKEN_PIPE)
    rest = done("topic", "consume", at_rest, "events", "-g", "g").split()
    assert rest == [str(number) for number in range(1, 2000)]


@pytest.mark.slow
def test_a_new_group_begins_where_it_is_told(at_rest: Path) -> None:
    done("topic", "append", at_rest, "events", "old", "--queue-id", "0")
    assert done("topic", "consume", at_rest, "events", "-g", "late", "--from", "latest") == ""
    assert done("topic", "consume", at_rest, "events", "-g", "early") == "old\n"
    assert "no group 'new' of the topic 'events'; groups: early, late" in refused(
        "topic", "reset-offset", at_rest, "events", "-g", "new", "--to", "latest"
    )
    done("topic", "reset-offset", at_rest, "events", "-g", "new", "--to", "latest", "--new")
    assert done("topic", "consume", at_rest, "events", "-g", "new") == ""


@pytest.mark.slow
def test_a_members_queues_are_shown_while_it_reads(at_rest: Path) -> None:
    member = begun("topic", "consume", at_rest, "events", "-g", "g", "-f")
    waits(at_rest)
    wait_until(lambda: answer("topic", "groups", at_rest), "it does not join")
    [shown] = [row for row in answer("topic", "groups", at_rest) if row["topic"] == "events"]
    assert len(shown["members"]) == 1
    owners = [row["member"] for row in answer("topic", "lag", at_rest, "g", "--topic", "events")["queues"]]
    assert owners == shown["members"] * 2
    interrupted(member)


def test_a_topic_and_a_directory_are_made_when_told(tmp_path: Path) -> None:
    assert "no such directory" in refused("topic", "append", tmp_path / "new", "events", "x")
    done("topic", "append", tmp_path / "new", "events", "x", "--declare", "--queues", "3")
    assert "no topic 'event' in" in refused("topic", "append", tmp_path / "new", "event", "x")
    assert "did you mean 'events'?; --declare creates it" in refused("topic", "append", tmp_path / "new", "event", "x")
    assert [row["queues"] for row in answer("topic", "list", tmp_path / "new")] == [3]


# ── mqadmin's names ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_mqadmins_names_do_what_topic_does(data: Path) -> None:
    def mqadmin(*arguments: str | Path) -> str:
        return done("mqadmin", *arguments)

    mqadmin("updateTopic", data, "-t", "more", "-r", "8", "-w", "8")
    mqadmin("sendMessage", data, "-t", "events", "-p", "hello", "-k", "k1 k2", "-c", "new", "-i", "1")
    assert mqadmin("topicList", data) == done("topic", "list", data)
    assert {row["topic"]: row["queues"] for row in answer("mqadmin", "topicList", data)} == {"events": 2, "more": 8}
    assert mqadmin("topicStatus", data, "-t", "events") == done("topic", "stats", data, "events")
    assert mqadmin("consumeMessage", data, "-t", "events", "-i", "1") == "hello\n"
    assert mqadmin("consumeMessage", data, "-t", "events", "-g", "g") == "hello\n"
    assert mqadmin("consumerProgress", data) == done("topic", "groups", data)
    assert mqadmin("consumerProgress", data, "-g", "g") == done("topic", "lag", data, "g")
    [line] = mqadmin("queryMsgByKey", data, "-t", "events", "-k", "k2").splitlines()
    message = json.loads(line)
    assert (message["keys"], message["tags"], base64.b64decode(message["body"])) == ("k1 k2", "new", b"hello")
    assert json.loads(mqadmin("queryMsgById", data, "-i", message["message_id"])) == message
    assert json.loads(mqadmin("queryMsgByOffset", data, "-t", "events", "-i", "1", "-o", "0")) == message
    mqadmin("resetOffsetByTime", data, "-g", "g", "-t", "events", "-s", "2020-01-31#12:00:00:000")
    assert answer("topic", "lag", data, "g")["lag"] == 1
    mqadmin("skipAccumulatedMessage", data, "-g", "g", "-t", "events")
    assert answer("topic", "lag", data, "g")["lag"] == 0
    assert "give --group or --queueId" in refused("mqadmin", "consumeMessage", data, "-t", "events")


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [one for one in golden.SCENARIOS if "store" in golden.manifest(one)])
def test_a_rocketmqs_store_answers_too(scenario: str) -> None:
    store = golden.unpacked(scenario) / golden.directory(scenario)
    inspected = answer("inspect", store)
    listed = {row["topic"]: row for row in answer("topic", "list", store)}
    assert listed.keys() >= {queue["topic"] for queue in inspected["queues"]}
    for topic, row in listed.items():
        queues = [queue for queue in inspected["queues"] if queue["topic"] == topic]
        assert row["messages"] == sum(queue["max_offset"] - queue["min_offset"] for queue in queues)
    for row in answer("topic", "groups", store):
        of = [one for one in inspected["groups"] if (one["group"], one["topic"]) == (row["group"], row["topic"])]
        assert row["lag"] == sum(one["lag"] for one in of)


# ── what is wrong ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["consume", "PATH", "orders", "--format", "%q"], "no %q; there are %s, %S"),
        (["consume", "PATH", "orders", "--format", r"%s\q"], r"no \q"),
        (["consume", "PATH", "orders", "--format", "bodies"], "one of body, keys, json, or a template"),
        (["consume", "PATH", "orders", "--format", "body", "--json"], "either --json or --format"),
        (["consume", "PATH", "orders", "-f", "--timeout", "1"], "either --follow or --timeout"),
        (["tail", "PATH", "nowhere"], "no queue 'nowhere' in vhost '/', and no topic"),
        (["tail", "PATH", "orders", "--format", "%"], "no %; there are"),
        (["tail", "PATH", "orders", "--vhost", "x"], "no vhost 'x'"),
        (
            ["publish", "PATH", "orders", "x", "--property", "color=red"],
            "--property color: unknown; the properties are content_type",
        ),
        (["publish", "PATH", "orders", "x", "--property", "timestamp=now"], "expected seconds since 1970"),
        (["publish", "PATH", "orders", "-l", "-K", ":"], "--key-delimiter needs --exchange"),
        (["topic", "append", "PATH", "events", "x", "-K", ":"], "--key-delimiter needs --lines"),
        (["topic", "append", "PATH", "events", "x", "--key", "a b"], "a key cannot be 'a b'"),
        (["topic", "append", "PATH", "events", "x", "--queue-id", "7"], "queue 7"),
        (["topic", "append", "PATH", "events", "x", "--queues", "7"], "--queues needs --declare"),
        (["topic", "append", "PATH", "events", "x", "--delay", "100000"], "100000"),
        (["topic", "consume", "PATH", "nowhere", "-g", "g"], "no topic 'nowhere'"),
        (["topic", "consume", "PATH", "events", "-g", "a group"], "a group"),
        (["topic", "consume", "PATH", "events", "-g", "g", "--from", "tomorrow"], "earliest, latest, or a time"),
        (["topic", "lag", "PATH", "nobody"], "no group 'nobody'; groups: none"),
        (["topic", "stats", "PATH", "event"], "did you mean 'events'?"),
        (["topic", "groups", "PATH", "--topic", "event"], "no topic 'event'"),
        (["topic", "lag", "PATH", "g", "--topic", "event"], "no topic 'event'"),
        (["topic", "reset-offset", "PATH", "events", "-g", "g"], "give one of"),
        (["topic", "reset-offset", "PATH", "events", "-g", "g", "--to", "now", "--offset", "1"], "give one of"),
        (["topic", "read", "PATH", "--topic", "events", "--queue-id", "9"], "no queue 9"),
    ],
)
def test_what_cannot_be_is_one_line(data: Path, arguments: list[str], reason: str) -> None:
    assert reason in refused(*(str(data) if one == "PATH" else one for one in arguments))


def test_what_is_for_files_is_refused_of_a_node_that_runs(at_rest: Path) -> None:
    with warren.open(at_rest):
        assert "--set and --start are for files" in refused("topic", "list", at_rest, "--set", "maxIndexNum=5")
        assert "a node of warren runs here" in refused("topic", "scan", at_rest)
