"""What the page about production says: file systems of containers, two containers with one volume, a systemd unit."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "production.md"
PUBLISH = """
import sys, warren

with warren.open(sys.argv[1], share=True) as node:
    queue, number = node.queue("jobs"), 0
    while True:
        queue.publish(b"%d" % number).wait()
        print(number, flush=True)
        number += 1
"""
"""Says each message's number when it is safe, until it is killed."""
CONSUME = """
import sys, warren

with warren.open(sys.argv[1], share=True) as node, node.queue("jobs").consume(prefetch=10) as consumer:
    for job in consumer:
        with job:
            print(int(job.body), flush=True)
"""
ENOUGH = 200


def namespaces(*kinds: str) -> list[str]:
    """A command's beginning that gives it namespaces of its own."""
    command = ["unshare", *(f"--{kind}" for kind in kinds), "--fork", "--kill-child"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"no namespaces of these kinds can be made here: {kinds}")
    return command


def said(log: Path) -> list[int]:
    """The numbers of its whole lines."""
    return [int(line) for line in log.read_text().split("\n")[:-1]]


def start(command: list[str], program: str, directory: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([*command, sys.executable, "-c", program, directory], stdout=output, cwd=PROJECT)


MOUNTS = {
    "tmpfs": "mount -t tmpfs tmpfs data",
    "overlay": "mkdir -p layers && mount -t tmpfs tmpfs layers && mkdir layers/lower layers/upper layers/work && "
    "mount -t overlay overlay -o lowerdir=layers/lower,upperdir=layers/upper,workdir=layers/work data",
}
KILLED = """
import subprocess, sys, warren

directory, log, program, enough = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
for _ in range(3):
    running = subprocess.Popen([sys.executable, "-c", program, directory], stdout=subprocess.PIPE)
    safe = [int(running.stdout.readline()) for _ in range(enough)][-1]
    running.kill()
    safe = max([safe, *map(int, running.stdout.read().split(b"\\n")[:-1])])
    running.wait()
    with warren.open(directory) as node:
        bodies = [int(one.body) for one in node.queue("jobs").get_many(10 * enough + safe, auto_ack=True)]
    assert bodies == list(range(len(bodies))) and len(bodies) > safe, (len(bodies), safe)
    print(len(bodies), safe)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MOUNTS)
def test_a_kill_loses_nothing_confirmed_on_a_file_system_of_containers(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    inside = namespaces("mount")
    work = shlex.join([sys.executable, "-c", KILLED, str(tmp_path / "data/node"), "-", PUBLISH, str(ENOUGH)])
    mounted = subprocess.run(
        [*inside, "sh", "-c", f"cd {shlex.quote(str(tmp_path))} && {MOUNTS[kind]}"], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {mounted.stderr!r}")
    script = f"cd {shlex.quote(str(tmp_path))} && {MOUNTS[kind]} && cd {shlex.quote(str(PROJECT))} && {work}"
    ran = subprocess.run([*inside, "sh", "-c", script], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 3


@pytest.mark.slow
def test_two_containers_share_a_volume_and_one_takes_over_from_the_other(tmp_path: Path) -> None:
    """Each has processes, mounts, a network and a host name of its own; what they share is the directory."""
    inside = [*namespaces("pid", "mount", "net", "uts", "ipc"), "--mount-proc"]
    web = start(inside, PUBLISH, tmp_path / "data", tmp_path / "published")
    wait_until(lambda: len(said(tmp_path / "published")) > ENOUGH, "nothing is published", process=web)
    worker = start(inside, CONSUME, tmp_path / "data", tmp_path / "done")
    wait_until(lambda: len(said(tmp_path / "done")) > ENOUGH, "nothing is consumed", process=worker)
    web.kill()  # the host, with all processes of its namespace
    web.wait()
    published = said(tmp_path / "published")
    wait_until(lambda: set(said(tmp_path / "done")) >= set(published), "not all is consumed", process=worker)
    again = start(inside, PUBLISH, tmp_path / "data", tmp_path / "again")
    wait_until(lambda: len(said(tmp_path / "again")) > ENOUGH, "the next container publishes nothing", process=again)
    for one in (again, worker):
        one.kill()
        one.wait()


def test_the_unit_of_the_page_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = re.findall(r"^```ini\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    path = tmp_path / "worker.service"
    path.write_text(unit.replace("/opt/shop/bin/python", sys.executable).replace("User=shop", "User=root"))
    checked = subprocess.run(["systemd-analyze", "verify", path], check=False, capture_output=True, text=True)
    assert "worker.service" not in checked.stderr


def test_a_server_ends_with_zero_after_sigterm(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "warren", "serve", tmp_path / "data", "--port", "0"], stdout=subprocess.PIPE, cwd=PROJECT
    )
    assert server.stdout is not None
    assert b"listens on" in server.stdout.readline()
    with warren.open(tmp_path / "data", share=True) as node:
        node.queue("jobs").publish(b"job").wait()
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    with warren.open(tmp_path / "data") as node:
        assert len(node.queue("jobs")) == 1
