"""The commands that look at the messages of a queue, and mend: browse, take, move, remove, requeue."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import warren as runtime
from tests.support.waiting import wait_until
from warren import cli
from warren.queue_index.index.directory import queue_directory_name, vhost_directory_name


def warren(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: str | Path) -> str:
    result = warren(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: str | Path) -> str:
    """Exit code 2 and one line on stderr, which is returned."""
    result = warren(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("warren: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with runtime.open(tmp_path / "data") as node:
        jobs = node.queue("jobs", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        for number in range(4):
            jobs.publish(b"job %d" % number, headers={"n": number})
        dead = node.queue("dead")
        for delivery in jobs.get_many(2):
            delivery.reject()
        dead.publish(b"by hand")
        node.queue("empty")
        node.exchange("logs", "fanout")
        jobs.sync()
        while len(list(jobs.browse())) > 2:  # dead letters are there until they are safe where they went
            dead.sync()
    return tmp_path / "data"


def bodies(data: Path, queue: str, *arguments: str) -> list[str]:
    return done("browse", data, queue, "--format", r"%s\n", *arguments).splitlines()


def ids(data: Path, queue: str, *arguments: str) -> list[str]:
    return done("browse", data, queue, "--format", r"%i\n", *arguments).splitlines()


@pytest.mark.slow
def test_browse_shows_ids_keys_and_bodies_and_takes_nothing(data: Path) -> None:
    for _ in range(2):
        lines = [line.split("\t") for line in done("browse", data, "jobs").splitlines()]
        assert [line[1:] for line in lines] == [["jobs", "job 2"], ["jobs", "job 3"]]
    assert [line[0] for line in lines] == ids(data, "jobs")
    assert bodies(data, "jobs", "--where", "headers['n'] = 3") == ["job 3"]
    assert bodies(data, "jobs", "--limit", "1") == ["job 2"]
    (line,) = map(json.loads, done("browse", data, "jobs", "--json", "--where", "body = 'job 3'").splitlines())
    assert (line["id"], line["headers"], line["redelivered"]) == (lines[1][0], {"n": 3}, None)
    assert done("browse", data, "empty") == ""
    assert "character 6" in refused("browse", data, "jobs", "--where", "body ~ 'x'")
    assert "at most 10,000 are allowed" in refused(
        "remove", data, "jobs", "--yes", "--where", f"body = '{'x' * 10_000}'"
    )
    assert "no queue 'nowhere'" in refused("browse", data, "nowhere")


@pytest.mark.slow
def test_take_writes_one_from_the_middle_and_takes_it_off(data: Path) -> None:
    one = ids(data, "jobs", "--where", "body = 'job 3'")[0]
    assert done("take", data, "jobs", one) == "job 3\n"
    assert bodies(data, "jobs") == ["job 2"]
    gone = warren("take", data, "jobs", one, ids(data, "jobs")[0], "--json")
    assert (gone.exit_code, json.loads(gone.stdout)["seq_id"]) == (1, 2)
    assert gone.stderr == f"warren: no message {one} in jobs, or a consumer has it\n"
    assert "no message's id: 'job 2'" in refused("take", data, "jobs", "job 2")


@pytest.mark.slow
def test_move_goes_to_a_queue_or_an_exchange_by_condition_id_and_limit(data: Path) -> None:
    assert done("move", data, "dead", "empty", "--where", "headers['n'] IS NULL", "--dry-run") == (
        "1 message would be moved\n"
    )
    assert done("move", data, "dead", "empty", "--where", "headers['n'] IS NULL") == "1 message moved\n"
    assert json.loads(done("move", data, "dead", "empty", "--id", ids(data, "dead")[1], "--json")) == {
        "moved": 1,
        "stayed": 0,
    }
    assert bodies(data, "empty") == ["by hand", "job 1"]
    assert done("move", data, "empty", "jobs", "--limit", "1") == "1 message moved\n"
    assert bodies(data, "jobs") == ["job 2", "job 3", "by hand"]
    assert "no queue for routing key 'x' of exchange 'logs'; 0 messages were moved" in refused(
        "move", data, "jobs", "--exchange", "logs", "--routing-key", "x"
    )
    assert bodies(data, "jobs") == ["job 2", "job 3", "by hand"]
    assert json.loads(done("move", data, "jobs", "empty", "--dry-run", "--json")) == {"would_be_moved": 3}
    for wrong in ([], ["empty", "--exchange", "logs"]):
        assert "where to" in refused("move", data, "jobs", *wrong)
    assert "needs --exchange" in refused("move", data, "jobs", "empty", "--routing-key", "x")
    assert "no queue 'nowhere'" in refused("move", data, "jobs", "nowhere", "--dry-run")
    assert "no exchange 'nowhere'" in refused("move", data, "jobs", "--exchange", "nowhere")


def test_remove_wants_to_know_which_and_that_it_is_meant(data: Path) -> None:
    assert "--where or --id" in refused("remove", data, "jobs")
    assert "confirm with --yes" in refused("remove", data, "jobs", "--where", "headers['n'] = 2")
    assert done("remove", data, "jobs", "--where", "headers['n'] = 2", "--dry-run") == "1 message would be deleted\n"
    assert done("remove", data, "jobs", "--where", "headers['n'] = 2", "--yes") == "1 message deleted\n"
    (left,) = ids(data, "jobs")
    assert done("remove", data, "jobs", "--id", left, "--id", left, "--dry-run") == "2 messages would be deleted\n"
    assert json.loads(done("remove", data, "jobs", "--id", left, "--id", left, "--yes", "--json"))["deleted"] == 1
    assert bodies(data, "jobs") == []
    assert done("remove", data, "jobs", "--id", left, "--dry-run") == "0 messages would be deleted\n"


@pytest.mark.slow
def test_requeue_brings_dead_letters_back_and_leaves_the_others(data: Path) -> None:
    assert done("requeue", data, "dead", "--dry-run") == "2 messages would be requeued\n"
    assert done("requeue", data, "dead", "--where", "headers['n'] = 1") == "1 message requeued\n"
    assert json.loads(done("requeue", data, "dead", "--json")) == {"requeued": 1, "stayed": 0}
    assert (bodies(data, "dead"), bodies(data, "jobs")) == (["by hand"], ["job 2", "job 3", "job 1", "job 0"])
    assert done("consume", data, "dead", "--json", "--no-ack").count('"redelivered": false') == 1, "it was not touched"
    assert done("requeue", data, "dead", "--id", ids(data, "dead")[0]) == "0 messages requeued; 1 stayed\n"


@pytest.mark.slow
def test_the_node_that_a_program_has_open_is_mended(data: Path) -> None:
    with runtime.open(data) as node:
        queue = node.queue("jobs", passive=True)
        command = [sys.executable, "-m", "warren.cli"]
        moved = subprocess.run([*command, "move", data, "jobs", "empty"], capture_output=True, text=True, check=False)
        assert (moved.stdout, moved.stderr) == ("2 messages moved\n", "")
        assert len(queue) == 0
        assert len(node.queue("empty", passive=True)) == 2


@pytest.mark.slow
def test_who_interrupts_a_move_hears_how_far_it_came_and_nothing_is_lost(tmp_path: Path) -> None:
    with runtime.open(tmp_path) as node:
        node.queue("to")
        node.queue("from").publish_many([b"%d" % number for number in range(60_000)]).wait()
    queues = tmp_path / "msg_stores" / "vhosts" / vhost_directory_name(b"/") / "queues"
    journal = queues / queue_directory_name(b"/", b"to") / "journal.jif"
    command = [sys.executable, "-m", "warren.cli", "move", str(tmp_path), "from", "to"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as moving:
        wait_until(lambda: journal.exists() and journal.stat().st_size > 0, "something to be moved", process=moving)
        moving.send_signal(signal.SIGINT)
        _, said = moving.communicate()
    assert moving.returncode == 130
    assert re.fullmatch(r"warren: interrupted; [\d,]+ messages? moved before that\n", said)
    with runtime.open(tmp_path) as node:
        found = [int(one.body) for name in ("to", "from") for one in node.queue(name, passive=True).browse()]
        assert sorted(set(found)) == [*range(60_000)]
        assert len(found) - len(set(found)) <= 256, "no more than a page is in both"
