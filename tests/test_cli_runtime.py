"""The commands that use a store: publish, consume, queues, purge, definitions; and what each refuses."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import warren as runtime
from tests.support.waiting import wait_until
from warren import cli, errors
from warren.actors.node.node_socket import SOCKET_NAME
from warren.commands.running import EXIT_BROKEN_PIPE
from warren.commands.sending import Published
from warren.salvage.archives.archive import unpack

GOLDEN = Path(__file__).parent / "golden"
CRASHED = GOLDEN / "12-crash-torn-journal.tar.gz"
PROJECT = Path(__file__).parent.parent


def warren(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: str | Path, stdin: bytes | None = None) -> str:
    result = warren(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: str | Path, stdin: bytes | None = None) -> str:
    """Exit code 2 and one line on stderr, which is returned."""
    result = warren(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("warren: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def consumed(data: Path, *arguments: str, queue: str = "orders") -> list[dict[str, Any]]:
    return [json.loads(line) for line in done("consume", data, queue, "--json", *arguments).splitlines()]


def bodies(lines: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(line["body"]) for line in lines]


def in_a_process(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "warren.cli", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PROJECT)}, **options,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with an empty queue, orders."""
    path = tmp_path / "data"
    with runtime.open(path) as node:
        node.queue("orders")
    return path


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Path:
    """The data directory of a broker that was killed."""
    stores = tmp_path / "rabbit@host" / "msg_stores"
    stores.mkdir(parents=True)
    unpack(str(CRASHED), str(stores))  # it holds vhosts/
    return stores.parent


# ── publish ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_from_the_command_line_with_properties(data: Path) -> None:
    said = done(
        "publish", data, "orders", "one", "zwei ü", "--header", "k=v", "--header", "x=a=b", "--expiration", "60",
        "--priority", "3",
    )  # fmt: skip
    assert said == "2 messages published, 10 bytes\n"
    lines = consumed(data)
    assert bodies(lines) == [b"one", "zwei ü".encode()]
    assert lines[0]["headers"] == {"k": "v", "x": "a=b"}
    assert lines[0]["properties"] == {"delivery_mode": 2, "priority": 3, "expiration": "60000"}
    assert lines[0]["expiry_us"] > 0


def test_a_body_that_is_no_text_arrives_as_it_is(data: Path) -> None:
    done("publish", data, "orders", os.fsdecode(b"\xff\xfe"))
    assert bodies(consumed(data)) == [b"\xff\xfe"]


@pytest.mark.slow
def test_bodies_from_files_and_stdin(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"a\r\n\nb")
    done("publish", data, "orders", "--file", file)
    done("publish", data, "orders", "--file", file, "--lines")
    done("publish", data, "orders", stdin=b"in one\npiece\n")
    done("publish", data, "orders", "--lines", stdin=b"x\ny\n")
    done("publish", data, "orders", "--lines", stdin=b"")
    assert bodies(consumed(data)) == [b"a\r\n\nb", b"a", b"", b"b", b"in one\npiece\n", b"x", b"y"]


def test_each_so_many_times(data: Path) -> None:
    assert json.loads(done("publish", data, "orders", "a", "b", "--count", "3", "--json")) == {
        "published": 6,
        "bytes": 6,
    }
    assert bodies(consumed(data)) == [b"a"] * 3 + [b"b"] * 3


def test_a_transient_message_does_not_survive(data: Path) -> None:
    done("publish", data, "orders", "gone", "--transient")
    done("publish", data, "orders", "there")
    assert bodies(consumed(data)) == [b"there"]


def test_a_missing_queue_is_made_only_when_told_and_a_directory_too(data: Path, tmp_path: Path) -> None:
    assert "no queue 'new' in vhost '/'; --declare creates it" in refused("publish", data, "new", "x")
    done("publish", data, "new", "x", "--declare")
    assert bodies(consumed(data, queue="new")) == [b"x"]
    assert "no such directory" in refused("publish", tmp_path / "other", "new", "x")
    done("publish", tmp_path / "other", "new", "x", "--declare")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    assert "no node's data directory" in refused("publish", tmp_path / "photos", "new", "x", "--declare")
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]


def test_an_exchange_takes_the_place_of_the_queue(data: Path) -> None:
    with runtime.open(data) as node:
        node.exchange("logs", "topic")
        node.bind("orders", "logs", "a.*")
    done("publish", data, "--exchange", "logs", "--routing-key", "a.b", "body")
    line = consumed(data)[0]
    assert (line["exchange"], line["routing_keys"], bodies([line])) == ("logs", ["a.b"], [b"body"])
    assert "no queue for routing key 'x'" in refused("publish", data, "--exchange", "logs", "--routing-key", "x", "y")
    assert "no exchange 'nowhere'" in refused("publish", data, "--exchange", "nowhere", "y")


def test_a_full_queue_refuses(data: Path) -> None:
    with runtime.open(data) as node:
        node.queue("full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    assert "is full" in refused("publish", data, "full", "a", "b", "c", "d")
    assert bodies(consumed(data, queue="full")) == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a QUEUE or --exchange"),
        (["orders", "x", "--file", "f"], "either BODY or --file"),
        (["orders", "x", "--lines"], "--lines needs --file or stdin"),
        (["orders", "x", "--routing-key", "k"], "--routing-key needs --exchange"),
        (["--exchange", "e", "x", "--declare"], "--declare creates queues"),
        (["orders", "x", "--header", "novalue"], "--header novalue: expected NAME=TEXT"),
        (["orders", "x", "--header", "=v"], "expected NAME=TEXT"),
        (["orders", "--file", "/nowhere/at/all"], "/nowhere/at/all: No such file or directory"),
        (["orders", "x", "--expiration", "-1"], "an expiration is 0"),
        (["orders", "x", "--expiration", "nan"], "an expiration is 0"),
        (["orders", "x", "--vhost", "shop"], "no vhost 'shop'"),
    ],
)
def test_what_cannot_be_published_is_one_line(data: Path, arguments: list[str], said: str) -> None:
    assert said in refused("publish", data, *arguments)
    assert json.loads(done("queues", data, "--json"))["queues"][0]["ready"] == 0


def test_what_became_of_an_earlier_message_is_said_before_the_last(data: Path) -> None:
    failed, safe = runtime.Confirm(), runtime.Confirm()
    failed.fail(errors.PublishRefusedError("full"))
    safe.set()
    published = Published()
    published.add(failed, 1)
    with pytest.raises(errors.PublishRefusedError):
        published.add(safe, 1)


# ── consume ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_one_a_line_until_there_are_no_more(data: Path) -> None:
    done("publish", data, "orders", "a", "b", "c")
    assert done("consume", data, "orders", "--count", "2") == "a\nb\n"
    assert done("consume", data, "orders") == "c\n"
    assert done("consume", data, "orders") == ""


def test_more_messages_than_a_batch(data: Path) -> None:
    done("publish", data, "orders", "--lines", stdin=b"".join(b"%d\n" % number for number in range(1000)))
    assert done("consume", data, "orders", "--count", "700").split() == [str(number) for number in range(700)]
    assert done("consume", data, "orders").split() == [str(number) for number in range(700, 1000)]


def test_a_line_of_json_is_what_export_writes(data: Path) -> None:
    with runtime.open(data) as node:
        orders = node.queue("orders")
        orders.publish(b"x" * 10_000, headers={"n": 1}, message_id="m", expiration=3600.0)
        orders.publish(b"small", priority=5)
    exported = [json.loads(line) for line in done("export", data).splitlines()]
    lines = consumed(data, "--no-ack")
    assert lines == exported
    assert [line["redelivered"] for line in lines] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("wait", [[], ["--timeout", "0"], ["--timeout", "0.05"]])
def test_without_ack_all_stay_where_they_are(data: Path, wait: list[str]) -> None:
    done("publish", data, "orders", "a", "b", "c")
    assert bodies(consumed(data, "--no-ack", "--timeout", "0.05")) == [b"a", b"b", b"c"]
    assert bodies(consumed(data, "--no-ack", "--count", "2", *wait)) == [b"a", b"b"]
    assert bodies(consumed(data, "--count", "2", *wait)) == [b"a", b"b"]
    rest = consumed(data)
    assert bodies(rest) == [b"c"]


def test_a_count_with_a_timeout_takes_no_more_than_that(data: Path) -> None:
    done("publish", data, "orders", "--lines", stdin=b"".join(b"%d\n" % number for number in range(300)))
    assert bodies(consumed(data, "--count", "2", "--timeout", "5")) == [b"0", b"1"]
    rest = consumed(data)
    assert [len(rest), rest[0]["redelivered"]] == [298, False]


@pytest.mark.slow
def test_following_gives_each_message_at_once_and_an_interrupt_keeps_what_was_not_written(data: Path) -> None:
    done("publish", data, "orders", "a", "b", "c")
    follower = in_a_process("consume", data, "orders", "--follow")
    assert follower.stdout is not None
    assert [follower.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=20) == (b"", b"")
    assert follower.returncode == 130
    assert consumed(data) == []


@pytest.mark.slow
@pytest.mark.parametrize("wait", [[], ["--timeout", "5"]])
def test_a_reader_who_has_had_enough_ends_it_and_what_he_did_not_read_stays(data: Path, wait: list[str]) -> None:
    done("publish", data, "orders", "--lines", stdin=b"".join(b"%05d\n" % number for number in range(5_000)))
    process = in_a_process("consume", data, "orders", *wait, bufsize=0)
    assert process.stdout is not None
    read = b"".join(process.stdout.read(4000) for _ in range(3))
    process.stdout.close()
    assert process.wait(20) == EXIT_BROKEN_PIPE
    assert process.stderr is not None
    assert process.stderr.read() == b""
    rest = bodies(consumed(data))
    assert rest == [b"%05d" % number for number in range(read.count(b"\n"), 5_000)]


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed_are_no_error(closed: str, data: Path) -> None:
    line = f'"$0" -m warren.cli queues "$1" {closed}'
    ended = subprocess.run(["sh", "-c", line, sys.executable, data], check=False, capture_output=True, cwd=PROJECT)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.slow
def test_head_takes_the_one_message_that_it_prints(data: Path) -> None:
    done("publish", data, "orders", *(str(number) for number in range(1024)))
    consumer = in_a_process("consume", data, "orders")
    head = subprocess.run(["head", "-1"], stdin=consumer.stdout, capture_output=True, check=True)
    assert consumer.stdout is not None
    consumer.stdout.close()
    assert (head.stdout, consumer.wait(20)) == (b"0\n", EXIT_BROKEN_PIPE)
    assert bodies(consumed(data)) == [str(number).encode() for number in range(1, 1024)]


def test_a_priority_queues_messages_come_highest_first(data: Path) -> None:
    with runtime.open(data) as node:
        queue = node.queue("urgent", arguments={"x-max-priority": 5})
        for priority in (1, 5, 3):
            queue.publish(b"%d" % priority, priority=priority).wait()
    assert done("consume", data, "urgent") == "5\n3\n1\n"


def test_what_cannot_be_consumed_is_one_line(data: Path) -> None:
    assert "no queue 'nowhere'" in refused("consume", data, "nowhere")
    assert "either --follow or --timeout" in refused("consume", data, "orders", "--follow", "--timeout", "1")


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_message_that_cannot_be_read_is_one_line_and_the_others_are_written(data: Path, form: list[str]) -> None:
    with runtime.open(data) as node:
        node.queue("damaged").publish_many([b"first", b"second", b"third"]).wait()
    [journal] = [path for path in data.rglob("journal.jif") if b"second" in path.read_bytes()]
    journal.write_bytes(
        journal.read_bytes().replace(b"basic_message", b"basic_massage", 2).replace(b"massage", b"message", 1)
    )
    result = warren("consume", data, "damaged", *form)
    assert result.exit_code == 1
    assert result.stderr.startswith("warren: seq_id 1: ")
    assert "second" not in result.stdout
    assert len(result.stdout.splitlines()) == 2
    assert done("consume", data, "damaged") == ""


# ── queues and purge ────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_are_listed_with_what_is_in_them(data: Path) -> None:
    with runtime.open(data) as node:
        node.queue("orders").publish_many([b"x" * 100] * 1234).wait()
        node.vhost("shop").queue("a \x1b[2J name")
    said = done("queues", data)
    assert [line.split() for line in said.splitlines()[2:]] == [
        ["/", "orders", "1,234", "0", "0", "123", "kB", "hibernated"],
        ["shop", "a", "\\x1b[2J", "name", "0", "0", "0", "0", "B", "hibernated"],
    ]
    assert [one["name"] for one in json.loads(done("queues", data, "--vhost", "shop", "--json"))["queues"]] == [
        "a \x1b[2J name"
    ]
    assert "no vhost 'other'" in refused("queues", data, "--vhost", "other")


def test_a_queue_that_is_down_is_listed_and_a_directory_without_queues_says_so(data: Path, tmp_path: Path) -> None:
    with runtime.open(data) as node:
        node._running.registry.vhost("/").queues["orders"].go_down(runtime.WarrenError("its journal is torn"))
        assert done("queues", data).splitlines()[-1].split() == (["orders", "down:", "its", "journal", "is", "torn"])
        assert json.loads(done("queues", data, "--json"))["queues"][0]["state"] == "down"
    with runtime.open(tmp_path / "empty"):
        pass
    assert done("queues", tmp_path / "empty") == "No queues.\n"


def test_topics_are_listed_behind_the_queues(tmp_path: Path) -> None:
    with runtime.open(tmp_path) as node:
        topic = node.topic("orders", queues=3)
        topic.reader("billing").close()
        topic.append_many([b"one", b"two"]).wait()

        def listed() -> list[tuple[Any, ...]]:
            seen = json.loads(done("queues", tmp_path, "--json"))["topics"]
            return [(one["name"], one["queues"], one["messages"], one["groups"]) for one in seen if one["messages"]]

        wait_until(lambda: listed() == [("orders", 3, 2, {"billing": 2})], "both messages get their entries")
        assert "No queues." not in (said := done("queues", tmp_path))
        assert said.splitlines()[-1].split() == ["orders", "3", "2", "billing", "2"]


def test_purging(data: Path) -> None:
    done("publish", data, "orders", "a", "b")
    assert "confirm with --yes" in refused("purge", data, "orders")
    assert json.loads(done("purge", data, "orders", "--yes", "--json")) == {"purged": 2}
    assert done("purge", data, "orders", "--yes") == "0 messages deleted\n"
    assert consumed(data) == []
    assert "no queue 'nowhere'" in refused("purge", data, "nowhere", "--yes")


# ── definitions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_definitions_go_out_and_in_again(data: Path, tmp_path: Path) -> None:
    with runtime.open(data) as node:
        node.exchange("logs", "topic")
        node.bind("orders", "logs", "a.*")
        node.set_policy("short", "^c", {"max-length": 5})
        node.vhost("shop").queue("carts", arguments={"x-max-priority": 5})
        node.add_user("bob", "secret", ["management"])
        node.set_permissions("bob", "", ".*", "^bob", vhost="shop")
        node.set_parameter("shovel", "mine", {"src-uri": "amqp://"})
    out = tmp_path / "definitions.json"
    assert done("definitions", data, "--export", out) == ""
    exported = json.loads(done("definitions", data))
    assert exported == json.loads(out.read_bytes())
    counts = json.loads(done("definitions", tmp_path / "copy", "--import", out, "--json"))
    assert counts == {
        "vhosts": counts["vhosts"], "policies": 1, "exchanges": 1, "queues": 2, "bindings": 1, "users": 2,
        "permissions": 1, "topic_permissions": 0, "parameters": 1, "global_parameters": 0, "skipped": [],
        "kept": {"parameters": 1}, "ignored": {},
    }  # fmt: skip
    assert json.loads(done("definitions", tmp_path / "copy")) == exported
    with runtime.open(tmp_path / "copy") as node:
        assert node.authenticate("bob", "secret") == {"name": "bob", "tags": ["management"]}
    assert done("definitions", data, "--import", "-", stdin=out.read_bytes()) == (
        "new: 0 vhosts, 0 policies, 0 exchanges, 0 queues, 0 bindings\n"
        "means nothing here, and is kept for an export: 1 parameter\n"
    )
    assert [one["name"] for one in json.loads(done("definitions", data, "--vhost", "shop"))["queues"]] == ["carts"]


def test_definitions_that_cannot_be_taken_change_nothing(data: Path, tmp_path: Path) -> None:
    before = done("definitions", data)
    for text, said in (
        (b"{", "not JSON"),
        (b"[]", "they are a JSON object"),
        (
            b'{"queues": [{"name": "orders", "vhost": "/", "durable": false, "auto_delete": false, "arguments": {}}]}',
            "",
        ),
        (b"[" * 5000, "not JSON"),
    ):
        assert said in refused("definitions", data, "--import", "-", stdin=text)
    assert "either --export or --import" in refused("definitions", data, "--import", "-", "--export", "x", stdin=b"")
    assert "no such file" in refused("definitions", data, "--import", tmp_path / "missing")
    assert "No such file" in refused("definitions", data, "--export", tmp_path / "missing" / "x")
    assert "no vhost 'x'" in refused("definitions", data, "--vhost", "x")
    assert done("definitions", data) == before


# ── whose directory it is ───────────────────────────────────────────────────────────────────────────────────────────

CHANGING = (
    ["publish", "PATH", "orders", "x"],
    ["consume", "PATH", "orders"],
    ["purge", "PATH", "orders", "--yes"],
    ["definitions", "PATH", "--import", "-"],
)
LOOKING = (["queues", "PATH"], ["definitions", "PATH"])
ADOPTING = [arguments for arguments in (*CHANGING, *LOOKING) if arguments != ["definitions", "PATH"]]
"""A RabbitMQ's definitions are read without ``--adopt``."""


def at(arguments: list[str], path: Path) -> list[str]:
    return [str(path) if argument == "PATH" else argument for argument in arguments]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", CHANGING, ids=lambda arguments: arguments[0])
def test_a_directory_whose_process_lets_nobody_in_says_who_that_is(data: Path, arguments: list[str]) -> None:
    with runtime.open(data, attach=False):
        said = refused(*at(arguments, data), stdin=b"{}")
    assert f"in use by process {os.getpid()}, since " in said
    assert "the process that has it open does not share it" in said


def test_a_directory_that_a_program_has_for_itself_is_used_all_the_same(data: Path) -> None:
    new = b'{"queues": [{"name": "new", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}]}'
    with runtime.open(data) as node:
        done("publish", data, "orders", "a", "b", "c", "--header", "k=v")
        orders = node.queue("orders")
        assert len(orders) == 3
        assert done("consume", data, "orders", "--count", "2") == "a\nb\n"
        assert consumed(data, "--no-ack")[0]["headers"] == {"k": "v"}
        assert json.loads(done("purge", data, "orders", "--yes", "--json")) == {"purged": 1}
        done("definitions", data, "--import", "-", stdin=new)
        assert sorted(queue.name for queue in node.queues()) == ["new", "orders"]
        assert [thread.name for thread in threading.enumerate()].count("warren-server") == 1
    assert "warren-server" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
def test_a_command_ends_with_a_line_when_the_program_that_it_is_a_guest_of_closes_the_directory(data: Path) -> None:
    with runtime.open(data) as node:
        follower = in_a_process("consume", data, "orders", "--follow")
        assert follower.stdout is not None
        node.queue("orders").publish(b"first").wait()
        assert follower.stdout.readline() == b"first\n"
        wait_until(lambda: not node.queue("orders").stats()["messages"], "the ack does not come")
    said = follower.communicate(timeout=20)
    assert (follower.returncode, said[0]) == (2, b"")
    assert said[1] == f"warren: {data}: the host closed it, or this connection\n".encode()
    assert consumed(data) == []


def test_a_running_node_is_asked_for_its_queues_and_definitions(data: Path) -> None:
    with runtime.open(data) as node:
        node.queue("orders").publish(b"x").wait()
        assert json.loads(done("queues", data, "--json"))["queues"][0]["ready"] == 1
        assert [one["name"] for one in json.loads(done("definitions", data))["queues"]] == ["orders"]
        assert "no vhost 'x'" in refused("definitions", data, "--vhost", "x")
    assert not (data / SOCKET_NAME).exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ADOPTING, ids=" ".join)
def test_a_rabbitmqs_directory_is_taken_over_only_when_told(rabbitmq: Path, arguments: list[str]) -> None:
    before = sorted(map(str, rabbitmq.rglob("*")))
    assert "--adopt takes it over" in refused(*at(arguments, rabbitmq), stdin=b"{}")
    assert "a part of a node's data directory" in refused(*at(arguments, rabbitmq / "msg_stores"), stdin=b"{}")
    assert sorted(map(str, rabbitmq.rglob("*"))) == before
    adopted = ["other" if argument == "orders" else argument for argument in at(arguments, rabbitmq)]
    done(*adopted, "--adopt", stdin=b"{}")
    assert (rabbitmq / "warren.definitions.json").exists() == (arguments in CHANGING)  # those that look change nothing


@pytest.mark.parametrize("arguments", [*CHANGING[:3], LOOKING[0]], ids=" ".join)
def test_what_is_no_directory_of_a_node_is_left_alone(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    assert "no such directory" in refused(*at(arguments, tmp_path / "missing"))
    assert "not a directory" in refused(*at(arguments, tmp_path / "file"))
    assert "no node's data directory" in refused(*at(arguments, tmp_path / "empty"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]
