"""``python -m tests.clients [suite …]``: run the suites on both sides, print the table, write it into docs/clients.md.

The exit code is 1 where the real server passes what warren does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clients import certificates, outcomes
from tests.clients.outcomes import Comparison, Outcome
from tests.clients.page import HEAD, PAGE, Result, with_results
from tests.clients.servers import SERVERS
from tests.clients.sources import AbsentError, prepared
from tests.clients.suites import SUITES, Suite
from tests.support import broker

RUNS_AGAIN = 2
"""How often a test that only the real server passed is run again, on both sides, before it counts."""
SERVER_TEST = "(the server runs to the end, and stops when asked)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; all unless said")
    parser.add_argument("--subject", choices=SERVERS, default="warren", help="rabbitmq: compare it with itself")
    parser.add_argument("--only", help="tests whose names contain this (suites that pytest runs)")
    parser.add_argument("--keep", type=Path, help="keep reports and logs in this directory")
    parser.add_argument("--no-page", action="store_true", help="do not write docs/clients.md")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}")
    if not broker.is_installed():
        parser.error(broker.ABSENT)
    with tempfile.TemporaryDirectory(prefix="warren-clients-") as temporary:
        work = options.keep or Path(temporary)
        shutil.rmtree(work, ignore_errors=True)
        certificates.make(work / "certificates")
        results: dict[str, Result] = {}
        for name in options.suites or SUITES:
            suite = SUITES[name]
            try:
                prepared(suite.directory, suite.source, suite.needs)
            except AbsentError as error:
                print(f"{name}: left out: {error}", flush=True)
                continue
            comparison = _compared(suite, options.subject, work, options.only)
            results[name] = Result(name, f"{suite.source.what}: {suite.note}", comparison)
            _say(results[name])
            if not options.no_page and not options.only and options.subject == "warren":
                PAGE.write_text(with_results(PAGE.read_text(), results))
    print("\n".join([*HEAD, *(result.row for result in results.values())]))
    return int(any(result.comparison.real_only for result in results.values()))


def _compared(suite: Suite, subject: str, work: Path, only: str | None) -> Comparison:
    """Run the suite on both sides; what only the real server passed again, until it is sure."""
    selection = ["-k", only] if only else []
    real, warren = _sides(suite, subject, work, "", selection)
    flaky: set[str] = set()
    for again in range(1, RUNS_AGAIN + 1):
        doubtful = [test for test in outcomes.suspects(real, warren) if test not in flaky and test != SERVER_TEST]
        if not doubtful:
            break
        sure = outcomes.suspects(*_sides(suite, subject, work, f"-{again}", doubtful))
        flaky.update(test for test in doubtful if test not in sure)
    return outcomes.compare(real, warren, flaky)


def _sides(suite: Suite, subject: str, work: Path, suffix: str, selection: Sequence[str]) -> list[dict[str, Outcome]]:
    """Run the suite against the real server and the other one at the same time; ``selection``: run only these tests."""
    print(f"{suite.name}: {len(selection) or 'all'} tests …", flush=True)
    outs = {
        work / f"{suite.name}-rabbitmq{suffix}": "rabbitmq",
        work / f"{suite.name}-{subject}-subject{suffix}": subject,
    }
    with ExitStack() as stack:
        processes = [stack.enter_context(_side(suite, server, out, selection)) for out, server in outs.items()]
        statuses = [process.wait() for process in processes]
    if any(statuses):
        raise RuntimeError(f"{suite.name}: a side ended with status {max(statuses)}")
    return [_outcomes(suite, server, out) for out, server in outs.items()]


@contextmanager
def _side(suite: Suite, server: str, out: Path, selection: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The suite against one server, in a network of its own; it ends with the block."""
    out.mkdir(parents=True)
    alone = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
    where = (suite.name, server, str(out))
    with subprocess.Popen((*alone, "--", sys.executable, "-m", "tests.clients.side", *where, *selection)) as process:
        try:
            yield process
        finally:
            process.terminate()


def _outcomes(suite: Suite, server: str, out: Path) -> dict[str, Outcome]:
    """What the side that reported into ``out`` came to."""
    found = outcomes.read(suite.report, out / "report")
    failed = out / "failed"
    if failed.exists():
        print(f"{suite.name}: {server}: {failed.read_text()}", flush=True)
    found[SERVER_TEST] = Outcome.FAILED if failed.exists() else Outcome.PASSED
    return found


def _say(result: Result) -> None:
    comparison = result.comparison
    for kind, tests in (
        ("passed by RabbitMQ only", comparison.real_only),
        ("passed by warren only", comparison.warren_only),
        ("flaky", comparison.flaky),
    ):
        for test in tests:
            print(f"{result.suite}: {kind}: {test}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
