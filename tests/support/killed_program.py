"""A program that is killed while it works, and what it had said by then."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading


def lines_until_killed(program: str, rng: random.Random, *arguments: str) -> list[str]:
    """Run it, kill it soon after its first line, and return the whole lines that it wrote."""
    command = [sys.executable, "-c", program, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline()]
    timer = threading.Timer(rng.uniform(0.05, 0.6), child.send_signal, [signal.SIGKILL])
    timer.start()
    lines += child.stdout.readlines()
    assert child.wait() == -signal.SIGKILL
    timer.join()
    return [line for line in lines if line.endswith("\n")]
