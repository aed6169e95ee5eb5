"""Fuzz one target with atheris: ``python -m tests.fuzz TARGET --seconds N``; without a target, list the targets.

Several targets, separated by commas, are fuzzed one after the other, for N seconds each.

The fuzzer stops with a code other than 0 at any failure (an exception that is not one of warren's, 20 seconds for one
input, a gigabyte of memory); the input is kept in ``--crashes`` (by default ./fuzz-crashes). Give such a file after the
target to run it alone. The last line says how many inputs were tried.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from tests.fuzz.target import Target

RSS_LIMIT_MB: Final = 1024
TIMEOUT_S: Final = 20
MAX_INPUT_BYTES: Final = 64 << 10
"""Longer ones take time and find nothing else; a seed that is longer stays as it is."""


def main() -> None:
    arguments = _arguments()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is needed: pip install 'warrenmq[fuzz]' (Linux, CPython 3.11 to 3.13)")
    with atheris.instrument_imports(include=["warren"]):
        from tests.fuzz.table import TARGETS
    names = arguments.target.split(",")
    if not TARGETS.keys() >= set(names):
        sys.exit("\n".join(("these can be fuzzed:", *TARGETS)))
    if arguments.inputs:
        for path in arguments.inputs:
            print(f"{path}: {'read' if TARGETS[names[0]].run_bounded(Path(path).read_bytes()) else 'refused'}")
        return
    for name in names:
        TARGETS[name].seeds()  # some are unpacked to where all forks find them
    for name in names[:-1]:  # atheris ends its process
        if not (child := os.fork()):
            _fuzz(TARGETS[name], arguments)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{name}: the fuzzer ended with {code}")
    _fuzz(TARGETS[names[-1]], arguments)


def _fuzz(target: Target, arguments: argparse.Namespace) -> NoReturn:
    import atheris

    with tempfile.TemporaryDirectory(prefix="warren-corpus-") as corpus:
        for number, seed in enumerate(target.seeds()):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        longest = max(MAX_INPUT_BYTES, *map(len, target.seeds()))
        crashes = Path(arguments.crashes)
        crashes.mkdir(exist_ok=True)

        def read(data: bytes) -> None:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                target.run(data)

        # The highest that the system knows of a process is also what the one had that it was forked from.
        inherited_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        options = (
            f"-max_total_time={arguments.seconds}",
            f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={inherited_mb + RSS_LIMIT_MB}",
            f"-max_len={longest}",
            f"-artifact_prefix={crashes}/{target.name.replace('/', '-')}-",
            f"-seed={arguments.seed or int.from_bytes(os.urandom(3)) + 1}",
            "-print_final_stats=1",
            "-verbosity=0",
        )
        atheris.Setup([sys.argv[0], *options, corpus], read)
        atheris.Fuzz()
    raise AssertionError("atheris ends the process")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", default="")
    parser.add_argument("inputs", nargs="*", help="run these files, and fuzz nothing")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crashes", default="fuzz-crashes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
