"""Seeing that whoever reads a pipe has gone away, while nothing is written to it."""

from __future__ import annotations

import select
import signal
import threading


def signal_when_reader_goes(descriptor: int) -> None:
    """Send SIGPIPE to the calling thread when nobody reads the pipe any more that ``descriptor`` is the end of.

    A thread waits for that, until the process ends; where nobody handles the signal it is nothing, as always in Python.
    """
    whom = threading.get_ident()

    def watch() -> None:
        gone = select.poll()
        gone.register(descriptor, 0)  # an error, which is what the reader's end is, is told always
        gone.poll()
        signal.pthread_kill(whom, signal.SIGPIPE)

    threading.Thread(target=watch, name="warren-pipe", daemon=True).start()
