"""Make ``docs/guarantees.md``: ``python docs/make_guarantees.py``. tests/test_docs.py holds that it was run.

The table of promises stands here; a test that it names has to exist. The counts are those of the last `make nightly`
(``docs/tried.json``).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

PROJECT: Final = Path(__file__).parent.parent
PAGE: Final = PROJECT / "docs" / "guarantees.md"
COUNTS: Final = PROJECT / "docs" / "tried.json"
sys.path.insert(0, str(PROJECT))

from tests.support.tried import Tried  # noqa: E402 - which stands at the top of the repository

HEAD: Final = """# What is promised, and what shows it

Each line is a promise, the fault under which it holds, and the tests that try to break it. Whoever doubts one runs them:
`make test-all` runs all, `make nightly` searches for an hour. `docs/make_guarantees.py` makes this page; the counts are
written by the runs themselves.

What the words mean: **confirmed** is a message whose confirm has come (`publish(…).wait()` returned), or a batch or
append whose has; **safe** is written, with `sync="os"`, and written and synced, with `"group"` (the default) and
`"always"`. So with `"os"` a promise holds when a process dies, and with the others when the power fails, too. How it is
done: [recovery](recovery.md).
"""


@attrs.frozen
class Shown:
    """Under one fault."""

    fault: str
    tests: tuple[str, ...]
    """``file::test``, below tests/, without ``test_`` and ``.py``."""

    def __init__(self, fault: str, *tests: str) -> None:
        self.__attrs_init__(fault, tests)


@attrs.frozen
class Promise:
    text: str
    shown: tuple[Shown, ...]

    def __init__(self, text: str, *shown: Shown) -> None:
        self.__attrs_init__(text, shown)


PROMISES: Final = (
    Promise(
        "A persistent message that was confirmed is there: whole, in its place, until it is acked",
        Shown("the process is killed at any file operation", "crashes::a_kill_at_any_operation_breaks_no_promise"),
        Shown(
            "the power fails at any file operation; unsynced writes, names and sizes are lost in any order",
            "crashes::a_power_loss_at_any_operation_breaks_no_promise",
        ),
    ),
)
LIMITS: Final = """
## What is not promised

- A message that was not confirmed may be there or not, and a publisher that sends it again may have it twice
  ([unique](unique.md) messages are stored once).
- An ack is safe within `sync_interval_ms`; before that a crash brings the message back, flagged as redelivered.
- Transient messages and queues go with the process.
- A disk that lies about a flush, and bits that flip in memory, break what they break; damage on the disk is found where
  the formats have a checksum, or a length that does not fit: RabbitMQ's classic queues have none for bodies.
- Two machines on one directory through a network file system: the lock is the machine's own.
"""


def page() -> str:
    return "".join([HEAD, *_promises(), LIMITS, *_counts()])


def _promises() -> Iterator[str]:
    yield "\n## Promises\n\n| promised | under | shown by |\n| --- | --- | --- |\n"
    for promise in PROMISES:
        text = promise.text
        for shown in promise.shown:
            yield f"| {text} | {shown.fault} | {', '.join(map(_link, shown.tests))} |\n"
            text = ""


def _link(test: str) -> str:
    """Of a test that there is."""
    module, _, name = test.partition("::")
    folder, _, module = module.rpartition("/")
    path = Path("tests", folder, f"test_{module}.py")
    source = (PROJECT / path).read_text(encoding="utf-8")
    if not re.search(rf"^(async )?def test_{name}\(", source, re.MULTILINE):
        raise LookupError(f"{path} has no test_{name}")
    return f"[{name.replace('_', ' ')}](../{path})"


def _counts() -> Iterator[str]:
    counts = json.loads(COUNTS.read_text(encoding="utf-8"))
    yield f"\n## What was tried\n\nBy `make nightly`, on {counts['date']}:\n\n| how many | of what |\n| ---: | --- |\n"
    for kind in Tried:
        yield f"| {counts[kind.name.lower()]:,} | {kind.value} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
