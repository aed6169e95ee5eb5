"""Starting the publisher's process, following its reports, and killing it while it publishes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from examples.demo.measuring import Frame
from warren.salvage.names import to_text
from warren.storage.errors import WarrenError

_PROJECT: Final = Path(__file__).parent.parent.parent

_AT_RANDOM_S: Final = 0.02
"""It is killed at a random moment, at most this long after the report."""

_AHEAD: Final = b"." * 8
"""How many reports may be on their way: fewer than are left when it is killed, so that it cannot finish before."""


class PublisherError(WarrenError):
    """The publisher's process ended by itself; the message is its output."""


@attrs.frozen
class Killed:
    """What the publisher had reported when it was gone."""

    last: Frame
    by_signal: bool
    """Whether SIGKILL ended it."""
    start_memory_bytes: int
    """Its peak of memory before its first message."""


def publish_until_killed(
    directory: str, vhost: bytes, queue: bytes, *, count: int, kill_at: int, show: Callable[[Frame], None]
) -> Killed:
    """Let a process publish ``count`` messages, and kill it when it has reported ``kill_at`` confirmed."""
    frames: list[Frame] = []
    with _publisher(directory, vhost, queue, count) as process:
        for frame in _reports(process):
            frames.append(frame)
            if frame.done >= kill_at and process.poll() is None:
                time.sleep(random.uniform(0, _AT_RANDOM_S))
                process.send_signal(signal.SIGKILL)  # and go on: it may have reported more before it died
            show(frame)
        assert process.stderr is not None
        complaint = process.stderr.read().decode(errors="replace").strip()
        status = process.wait()
    if not frames or frames[-1].done < kill_at:
        raise PublisherError(f"the publisher ended by itself (status {status}): {complaint or 'it said nothing'}")
    return Killed(
        last=frames[-1],
        by_signal=status == -signal.SIGKILL,
        start_memory_bytes=frames[0].peak_memory_bytes,
    )


@contextmanager
def _publisher(directory: str, vhost: bytes, queue: bytes, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process, in a session of its own, lest it gets the terminal's Ctrl-C too; it is gone at the end."""
    command = [sys.executable, "-m", "examples.demo.publisher", directory, to_text(vhost), to_text(queue), str(count)]
    paths = [str(_PROJECT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()


def _reports(process: subprocess.Popen[bytes]) -> Iterator[Frame]:
    """What it reports; for each taken it may write one more."""
    reader, writer = process.stdout, process.stdin
    assert reader is not None
    assert writer is not None
    allowance = _AHEAD
    while True:
        with suppress(BrokenPipeError):
            writer.write(allowance)
            writer.flush()
        line = reader.readline()
        if not line.endswith(b"\n"):  # the end, perhaps in the middle of a line
            return
        yield Frame.from_line(line)
        allowance = _AHEAD[:1]
