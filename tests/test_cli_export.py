"""``warren export``: what a line says, what is chosen, and what happens to messages that cannot be read."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.classic_tools import QueueOnDisk, V2QueueOnDisk, VhostOnDisk, encoded_message
from tests.support.classic_tools import msg_id as v2_msg_id
from tests.support.cli_tools import warren
from warren import cli
from warren.commands.exporting import opened_writer
from warren.commands.running import EXIT_BROKEN_PIPE
from warren.queue_index.index import directory as disk
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.record_format import BODY, DELIVER, journal_publish_head, segment_publish_head
from warren.queue_index.message.message_format import decode_message
from warren.salvage import progress_bars
from warren.salvage.archives.archive import unpack
from warren.salvage.envelopes import MAX_TEMPLATES, Envelopes
from warren.storage.errors import MessageError

GOLDEN = Path(__file__).parent / "golden"
CLEAN = GOLDEN / "01-clean-small-mixed.tar.gz"
PRIORITIES = GOLDEN / "11-clean-priority-queue.tar.gz"
UNICODE = GOLDEN / "07-clean-vhost-unicode-lazy.tar.gz"
PROJECT = Path(__file__).parent.parent

Json = dict[str, Any]


def lines(*arguments: str | Path, exit_code: int = 0) -> list[Json]:
    result = warren("export", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return [json.loads(line) for line in result.stdout_bytes.decode().splitlines()]


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    return VhostOnDisk(tmp_path).queue(b"q")


def test_a_line_says_everything_of_a_message(queue: QueueOnDisk, tmp_path: Path) -> None:
    headers = {"n": 1, "deep": {"list": [True, None, "ж"]}, "raw": b"\xff"}
    msg_id = queue.journal(
        7, b"\x00\xffbody", keys=(b"a", b"b\xff"), timestamp=1_700_000_000, content_type="text/ж", headers=headers
    )
    assert lines(tmp_path) == [
        {
            "vhost": "/",
            "queue": "q",
            "seq_id": 7,
            "msg_id": msg_id.hex(),
            "persistent": True,
            "redelivered": True,
            "expiry_us": None,
            "size": 6,
            "exchange": "amq.direct",
            "routing_keys": ["a", "b\udcff"],
            "properties": {"content_type": "text/ж", "timestamp": 1_700_000_000},
            "headers": {"n": 1, "deep": {"list": [True, None, "ж"]}, "raw": {"base64": "/w=="}},
            "body": base64.b64encode(b"\x00\xffbody").decode(),
            "body_sha256": hashlib.sha256(b"\x00\xffbody").hexdigest(),
        }
    ]


def test_keys_stand_in_their_documented_order(queue: QueueOnDisk, tmp_path: Path) -> None:
    queue.journal(0)
    assert list(lines(tmp_path)[0]) == [
        *("vhost", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry_us", "size", "exchange"),
        *("routing_keys", "properties", "headers", "body", "body_sha256"),
    ]


def test_levels_of_a_priority_queue_come_under_one_name_the_highest_first() -> None:
    messages = lines(PRIORITIES, "--queue", "prio")
    assert {message["queue"] for message in messages} == {"prio"}
    levels = [min(message["properties"].get("priority", 0), 3) for message in messages]
    assert levels == sorted(levels, reverse=True)
    assert set(levels) == {0, 1, 2, 3}


def test_vhost_and_queue_choose() -> None:
    everything = lines(UNICODE)
    assert {message["vhost"] for message in everything} == {"/", "prod/eu"}
    assert lines(UNICODE, "--vhost", "/") == [message for message in everything if message["vhost"] == "/"]
    chosen = lines(UNICODE, "--queue", "очередь")
    assert chosen == [message for message in everything if message["queue"] == "очередь"]
    assert chosen


def test_queues_come_in_the_order_of_their_names_and_messages_of_their_seq_ids() -> None:
    places = [(message["queue"], message["seq_id"]) for message in lines(CLEAN)]
    assert places == sorted(places)


def test_acked_messages_that_are_still_there_come_marked(queue: QueueOnDisk, tmp_path: Path) -> None:
    queue.segment(0, shorts=2)
    queue.segment(1)
    queue.journal(4)
    queue.append("journal.jif", struct.pack(">Q", 3 << 62 | 4))
    queue.journal(5)
    queue.journal(6, persistent=False)
    assert [message["seq_id"] for message in lines(tmp_path)] == [1, 5]
    found = lines(tmp_path, "--include-acked")
    assert [(message["seq_id"], message.get("acked", False)) for message in found] == [
        (0, True),
        (1, False),
        (4, True),
        (5, False),
    ]


def test_an_acked_message_whose_body_is_gone_is_no_problem(queue: QueueOnDisk, tmp_path: Path) -> None:
    queue.bodyless(0, b"m" * 16, 5)
    queue.append("journal.jif", struct.pack(">QQ", DELIVER << 62, 3 << 62))
    assert lines(tmp_path, "--include-acked") == []


def test_orphans_come_once_and_belong_to_no_queue(queue: QueueOnDisk, tmp_path: Path) -> None:
    needed, orphan = b"n" * 15 + b"\0", b"o" * 15 + b"\0"
    for msg_id in (orphan, needed, orphan):
        queue.vhost.store(0, msg_id, encoded_message(msg_id, msg_id[:1]))
    queue.bodyless(0, needed, 1, expiry_us=1234)
    (message,) = lines(tmp_path)
    assert (message["msg_id"], message["expiry_us"]) == (needed.hex(), 1234)
    _, message = lines(tmp_path, "--orphans")
    assert message["orphan"] is True
    assert message["msg_id"] == orphan.hex()
    assert [message[key] for key in ("queue", "seq_id", "redelivered", "expiry_us")] == [None] * 4
    assert base64.b64decode(message["body"]) == b"o"


def test_what_the_index_of_a_version_2_queue_does_not_tell_of_comes_as_its_orphans(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    for position in range(6):
        queue.publish(position)
    queue.ack(0)
    queue.entry(1, bytes(v2.ENTRY_SIZE))
    queue.index(1).unlink()
    queue.record(1, v2.encode_record_v2(b"no message"))
    found = lines(tmp_path, "--orphans", exit_code=1)
    assert [(one["seq_id"], base64.b64decode(one["body"]), one.get("orphan", False)) for one in found] == [
        (2, b"body 2", False),
        (3, b"body 3", False),
        (None, b"body 1", True),
        (None, b"body 4", True),
        (None, b"body 5", True),
    ]
    assert [(one["queue"], one["msg_id"], one["persistent"]) for one in found[2:]] == [
        ("q", v2_msg_id(position).hex(), True) for position in (1, 4, 5)
    ]
    result = warren("export", tmp_path, "--orphans", "--queue", "q", "--limit", "3", "--format", "csv")
    assert [row["queue"] for row in csv.DictReader(io.StringIO(result.stdout))] == ["q"] * 3
    assert "store without index" in result.stderr
    result = warren("export", tmp_path, "--orphans")
    assert "1.qs, offset " in result.stderr
    assert "unreadable message" in result.stderr


@pytest.mark.parametrize(
    ("next_seq_id", "next_deliver_seq_id", "expected"),
    [
        (8, 5, {3: True, 5: False, 7: False}),
        (8, 0, {3: False, 5: False, 7: False}),
        (6, 5, {3: True, 5: False}),
        (8, None, {3: True, 5: True, 7: True}),
        (None, None, {3: True, 5: True, 7: True}),
        (None, 4, {3: True, 5: False, 7: False}),
        (0, 0, {}),
    ],
)
def test_a_clean_stop_says_what_is_seen_and_what_was_delivered(
    next_seq_id: int | None,
    next_deliver_seq_id: int | None,
    expected: dict[int, bool],
    queue: QueueOnDisk,
    tmp_path: Path,
) -> None:
    queue.segment(3)
    queue.segment(5)
    queue.journal(7)
    queue.stop_cleanly(next_seq_id, next_deliver_seq_id, ((0, 1), (1, 2)))
    is_damaged = len(expected) < 3  # messages that no start sees
    found = lines(tmp_path, exit_code=1 if is_damaged else 0)
    assert {message["seq_id"]: message["redelivered"] for message in found} == expected


def test_what_a_crashed_flush_repeats_comes_once(queue: QueueOnDisk, tmp_path: Path) -> None:
    for seq_id in (0, 1):
        queue.segment(seq_id)
        queue.journal(seq_id)
    queue.journal(2)
    assert [message["seq_id"] for message in lines(tmp_path)] == [0, 1, 2]


def test_what_cannot_be_read_is_reported_and_the_rest_goes_on(queue: QueueOnDisk, tmp_path: Path) -> None:
    queue.journal(0)
    queue.bodyless(1, b"m" * 16, 5)
    queue.append(
        "journal.jif", journal_publish_head(2, persistent=True) + BODY.pack(b"x" * 16, 0, 4, 9) + b"\x83no term."
    )
    queue.journal(3)
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    assert [json.loads(line)["seq_id"] for line in result.stdout.splitlines()] == [0, 3]
    missing, unreadable = result.stderr.splitlines()
    assert "journal.jif" in missing
    assert "missing body: message 1" in missing
    assert "unreadable message: message 2" in unreadable


def test_damaged_recovery_terms_are_reported_and_everything_counts_as_redelivered(tmp_path: Path) -> None:
    unpack(str(CLEAN), str(tmp_path))
    (terms,) = tmp_path.glob("vhosts/*/recovery.dets")
    terms.write_bytes(terms.read_bytes()[:3000])
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    assert "damaged recovery terms" in result.stderr
    messages = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(messages) == len(lines(CLEAN))
    assert all(message["redelivered"] for message in messages)


def test_out_holds_the_same_and_stdout_says_how_many(tmp_path: Path) -> None:
    out = tmp_path / "messages.jsonl"
    result = warren("export", CLEAN, "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"46 messages, 157,907 bytes of payload, in {out}\n")
    assert out.read_bytes() == warren("export", CLEAN).stdout_bytes
    counted = json.loads(warren("export", CLEAN, "--out", out, "--json").stdout)
    assert counted == {"out": str(out), "format": "jsonl", "messages": 46, "bytes": 157907, "problems": 0}


def test_out_of_a_dash_is_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert warren("export", CLEAN, "--out", "-").stdout_bytes == warren("export", CLEAN).stdout_bytes
    assert not list(tmp_path.iterdir())


class Terminal(io.StringIO):
    @property
    def buffer(self) -> io.BytesIO:
        return io.BytesIO()

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("to_stdout", [True, False])
def test_a_long_export_says_on_a_terminal_how_far_it_is(
    to_stdout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars, "_AFTER_S", -1.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with (
        opened_writer(None if to_stdout else str(tmp_path / "out"), str(CLEAN), None) as output,
        progress_bars.counting_bar("Exporting", lambda: 3000, is_shown=output.may_show) as passed,
    ):
        for number in range(1, 4):
            passed(1000 * number)
    assert ("Exporting" in terminal.getvalue()) != to_stdout  # the messages themselves are on the screen
    assert ("3000/3000" in terminal.getvalue()) != to_stdout


def test_several_queues_can_be_named(tmp_path: Path) -> None:
    everything = lines(CLEAN)
    several = sorted({message["queue"] for message in everything})[:2]
    named = [argument for queue in (*several, several[0]) for argument in ("--queue", queue)]
    assert lines(CLEAN, *named) == [message for message in everything if message["queue"] in several]
    result = warren("export", CLEAN, *named, "--queue", "nowhere")
    assert (result.exit_code, result.stdout_bytes) == (2, b"")
    assert "no queue 'nowhere'" in result.stderr


def test_a_format_that_there_is_not_is_said_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["warren", "export", str(CLEAN), "--format", "xml"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert "'xml' is not" in said
    assert "Value error" not in said


@pytest.mark.parametrize("arguments", [(), ("export",), ("topic",), ("topic", "read"), ("simulate",)], ids=" ".join)
def test_help_says_no_type_of_what_takes_no_value(arguments: tuple[str, ...]) -> None:
    result = warren(*arguments, "--help")
    assert "--help" in result.stdout
    assert "bool" not in result.stdout.lower()


def test_nothing_is_written_into_what_is_read(queue: QueueOnDisk, tmp_path: Path) -> None:
    target = queue.path / "journal.jif"
    queue.journal(0)
    before = target.read_bytes()
    for out in (target, tmp_path / "new"):
        result = warren("export", tmp_path, "--out", out)
        assert result.exit_code == 2
        assert "not to be changed" in result.stderr
    assert target.read_bytes() == before
    assert not (tmp_path / "new").exists()


def test_a_body_of_many_fragments_is_whole(queue: QueueOnDisk, tmp_path: Path) -> None:
    body = random.Random(7).randbytes(2_000_001)
    queue.vhost.store(0, b"m" * 16, encoded_message(b"m" * 16, body))
    queue.bodyless(0, b"m" * 16, len(body))
    (message,) = lines(tmp_path)
    assert base64.b64decode(message["body"]) == body
    assert message["body_sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_traceback() -> None:
    archive = GOLDEN / "08-clean-rdq-rollover.tar.gz"
    command = [sys.executable, "-m", "warren.cli", "export", str(archive)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b'{"vhost": '
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == EXIT_BROKEN_PIPE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_messages_cut_by_a_template_are_said_as_decoded_ones_are(seed: int) -> None:
    rng = random.Random(seed)
    kept = Envelopes()
    for _ in range(300):
        keys = (b"key %d" % rng.randrange(2 * MAX_TEMPLATES), *[b"cc"] * (rng.random() < 0.1))
        message_id = rng.choice([None, "ж", 'quoted "\\\n', f"m{rng.random()}", b"\xff"])
        headers = rng.choice([None, None, {}, {"x": [1, {"y": b"\xfe"}]}])
        body = rng.randbytes(rng.choice([0, 1, 5, 200, 300_000]))
        encoded = encoded_message(
            rng.randbytes(16),
            body,
            keys=keys,
            persistent=rng.random() < 0.8,
            message_id=message_id,
            headers=headers,
            timestamp=rng.choice([None, 0, (1 << 64) - 1]),
        )
        if rng.random() < 0.2:
            spoilt = bytearray(encoded)
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            encoded = bytes(spoilt)
        assert outcome(kept, encoded) == outcome(Envelopes(), encoded)
        if not isinstance(outcome(kept, encoded), str):
            assert bytes(kept.split(encoded)[1]) == decode_message(encoded).body


def outcome(cutter: Envelopes, encoded: bytes) -> Any:
    try:
        envelope, body = cutter.split(encoded)
    except MessageError as error:
        return str(error)
    return json.loads(b"{%b}" % envelope.json.rstrip(b", ")), bytes(body)


@pytest.mark.slow
def test_memory_stays_small(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path).queue(b"q")
    (queue.vhost.path / ".config").write_bytes(disk.vhost_config(16384))
    body = os.urandom(4000)
    with (queue.path / "0.idx").open("wb") as file:
        for rel_seq in range(16384):
            msg_id = hashlib.md5(b"%d" % rel_seq).digest()
            encoded = encoded_message(msg_id, body)
            record = BODY.pack(msg_id, 0, len(body), len(encoded)) + encoded
            file.write(segment_publish_head(16383 - rel_seq, persistent=True) + record)
    os.link(queue.path / "0.idx", queue.path / "1.idx")
    (queue.path / "journal.jif").touch()
    script = (
        "import sys\nfrom warren import cli\nsys.argv = ['warren', *sys.argv[1:]]\n"
        "try:\n    cli.main()\nfinally:\n    print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], "
        "file=sys.stderr)"  # not getrusage: that begins at the size of the process that started this one
    )
    command = [sys.executable, "-c", script, "export", str(tmp_path), "--out", os.devnull]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("32,768 messages")
    assert int(done.stderr) < 200 * 1024
