"""One suite against one server, in a network namespace of its own: ``python -m tests.clients.side SUITE SERVER OUT``.

Started by :mod:`tests.clients` through ``unshare``. ``OUT`` is a directory: ``report`` is what the suite said of its
tests, ``log`` what it printed, ``server`` belongs to the server, ``failed`` is there where the server failed.
Further arguments are names of tests, where only these are to run.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tests.clients.servers import PROGRAMS, SERVERS, SERVICES, ServerFailedError, import_definitions
from tests.clients.sources import cache_directory
from tests.clients.suites import SUITES, Suite

SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1


def main() -> None:
    name, server, out, *only = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started here ends with it
    _loopback_up()
    out_directory = Path(out).resolve()
    certificates = out_directory.parent / "certificates"
    suite = SUITES[name]
    try:
        with ExitStack() as stack:
            for service in suite.services:
                (out_directory / service).mkdir()
                stack.enter_context(SERVICES[service](out_directory / service))
            stack.enter_context(SERVERS[server](out_directory / "server", certificates))
            if suite.definitions:
                import_definitions(suite.definitions)
            _run(suite, out_directory, certificates, only)
    except ServerFailedError as error:
        (out_directory / "failed").write_text(str(error))


def _run(suite: Suite, out: Path, certificates: Path, only: list[str]) -> None:
    directory = cache_directory() / suite.directory
    source, venv = directory / "source", directory / "venv"
    for place, certificate in suite.certificates.items():
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / place).write_bytes((certificates / certificate).read_bytes())
    places = {"report": out / "report", "source": source, "venv": venv, "programs": PROGRAMS}
    places["ctl"] = out / "server" / "rabbitmqctl"
    command = [part.format_map(places) for part in suite.command]
    if only and suite.report == "pytest":
        command = [*(part for part in command if part not in suite.paths), *only]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "WARREN_"))}
    environment |= {"PATH": f"{venv / 'bin'}:{environment['PATH']}", "TMPDIR": str(out)}
    environment |= {key: value.format_map(places) for key, value in suite.environment.items()}
    output = "report" if suite.reports_on_output else "log"
    with (out / output).open("wb") as stdout, (out / "log").open("ab") as stderr:
        process = subprocess.Popen(
            command,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            process.wait(suite.deadline_s)
        except subprocess.TimeoutExpired:
            stderr.write(f"\nkilled after {suite.deadline_s} s\n".encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _loopback_up() -> None:
    """A new network namespace has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


if __name__ == "__main__":
    main()
