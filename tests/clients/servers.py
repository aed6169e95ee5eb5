"""The two sides: a real RabbitMQ and ``warren serve``, each on the standard ports of a network of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.broker import Broker
from tests.support.waiting import wait_until

PORT: Final = 5672
TLS_PORT: Final = 5671
MANAGEMENT_PORT: Final = 15672
START_DEADLINE_S: Final = 180.0
STOP_DEADLINE_S: Final = 30.0
PROGRAMS: Final = Path(__file__).parent / "programs"


class ServerFailedError(Exception):
    """A server ended by itself, or did not end when it was asked to; says how, with the end of what it printed."""


@contextmanager
def rabbitmq(directory: Path, certificates: Path) -> Iterator[None]:
    """A real RabbitMQ, fresh, while the block lasts."""
    conf = {
        "listeners.tcp.2": f"127.0.0.1:{PORT}",
        "listeners.ssl.1": f"127.0.0.1:{TLS_PORT}",
        "ssl_options.cacertfile": str(certificates / "ca_certificate.pem"),
        "ssl_options.certfile": str(certificates / "server_certificate.pem"),
        "ssl_options.keyfile": str(certificates / "server_key.pem"),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "false",
        "management.tcp.port": str(MANAGEMENT_PORT),
    }
    with Broker(directory, conf=conf, management=True) as broker:
        broker.start()
        _write_ctl(directory, f'exec {shlex.join(broker.ctl_command)} "$@"')
        yield
        if broker.pid is None:
            raise ServerFailedError("RabbitMQ ended by itself")


@contextmanager
def warren(directory: Path, certificates: Path) -> Iterator[None]:
    """``warren serve`` on a fresh directory, while the block lasts."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "warren", "serve", str(directory / "data"), "--port", str(PORT)]
    command += ["--tls-port", str(TLS_PORT), "--cacertfile", str(certificates / "ca_certificate.pem")]
    command += ["--certfile", str(certificates / "server_certificate.pem")]
    command += ["--keyfile", str(certificates / "server_key.pem"), "--management-port", str(MANAGEMENT_PORT)]
    command += ["--no-management-tls"]
    server = _Warren(command, directory)
    signal.signal(signal.SIGUSR1, lambda *_: server.stop())
    signal.signal(signal.SIGUSR2, lambda *_: server.start())
    _write_ctl(
        directory,
        f"""case "$1" in
stop_app) kill -USR1 {os.getpid()}; while [ -e {server.runs} ]; do sleep 0.05; done ;;
start_app) kill -USR2 {os.getpid()}; while [ ! -e {server.runs} ]; do sleep 0.05; done ;;
eval) case "$2" in rabbit_alarm:*disk*) ;; *) exit 64 ;; esac ;;  # the suite sets the memory's alarm, too
*) exec {sys.executable} -m warren ctl {directory / "data"} "$@" ;;
esac""",
    )
    try:
        server.start()
        yield
        server.stop()
    finally:
        server.kill()


class _Warren:
    """A ``warren serve`` that can be stopped and started again. The file ``runs`` exists while it runs."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._command = command
        self._log = directory / "server.log"
        self.runs = directory / "runs"

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        listens = f"warren serve listens; see {self._log}"
        wait_until(
            lambda: _listens(PORT) and _listens(MANAGEMENT_PORT),
            listens,
            process=self._process,
            patience_s=START_DEADLINE_S,
        )
        self.runs.touch()

    def stop(self) -> None:
        """Stop it as an operator would. Raises :class:`ServerFailedError` if it fails, or has ended before."""
        if self._process.poll() is not None:
            status = self._process.returncode
            raise ServerFailedError(f"warren serve ended by itself with status {status}{_end_of(self._log)}")
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise ServerFailedError(f"warren serve did not stop in {STOP_DEADLINE_S} s{_end_of(self._log)}") from None
        if status:
            raise ServerFailedError(f"warren serve stopped with status {status}{_end_of(self._log)}")
        self.runs.unlink()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _write_ctl(directory: Path, shell: str) -> None:
    """Write the program that suites call as ``rabbitmqctl -n NODE ...``: ``shell`` runs without the first two."""
    ctl = directory / "rabbitmqctl"
    ctl.write_text(f"#!/bin/sh\nshift 2\n{shell}\n")
    ctl.chmod(0o755)


def import_definitions(definitions: Mapping[str, object]) -> None:
    """Give the server vhosts, users and permissions, as RabbitMQ exports them, by its management API."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{MANAGEMENT_PORT}/api/definitions",
        data=json.dumps(definitions).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Basic {b64encode(b'guest:guest').decode()}"},
    )
    with urllib.request.urlopen(request):
        pass


@contextmanager
def redis(directory: Path) -> Iterator[None]:
    """A Redis on its standard port, which keeps nothing, while the block lasts."""
    with _service(6379, "redis-server", "--port", "6379", "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)):
        yield


@contextmanager
def docker(_directory: Path) -> Iterator[None]:
    """What a suite that wants Docker gets instead, on Docker's port, while the block lasts."""
    with _service(2375, sys.executable, str(PROGRAMS / "docker_api.py"), "2375"):
        yield


@contextmanager
def _service(port: int, *command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port), f"{command[0]} listens", process=process)
        yield
    finally:
        process.kill()
        process.wait()


SERVERS: Final[Mapping[str, Callable[[Path, Path], AbstractContextManager[None]]]] = {
    "rabbitmq": rabbitmq,
    "warren": warren,
}
SERVICES: Final[Mapping[str, Callable[[Path], AbstractContextManager[None]]]] = {"redis": redis, "docker": docker}


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _end_of(log: Path) -> str:
    return "\n".join(["; its log ends:", *log.read_text(errors="replace").splitlines()[-40:]])
