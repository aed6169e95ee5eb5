"""Check states after crashes: one that is given, or many that are drawn."""

from __future__ import annotations

import argparse
import time

from tests.crash_points.losses import CrashPoint
from tests.crash_points.search import Search, check_state, point_of
from tests.crash_points.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_points", description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--seed", type=int, default=0, help="of the search or, with --point, of the run")
    parser.add_argument("--point", type=CrashPoint.parse, help="one point, as a failure says it")
    parser.add_argument("--states", type=int, default=1000, help="how many distinct states to check")
    given = parser.parse_args()
    workload = WORKLOADS[given.workload]
    if given.point is not None:
        files, promises = point_of(workload, given.seed, given.point)
        check_state(workload, files, promises, given.point, given.seed, deep=True)
        print("every promise is kept")
        return
    began = time.process_time()
    count = Search(workload).states(given.states, given.seed)
    print(f"{count} states, {count / (time.process_time() - began):.0f} a second of a core: every promise is kept")


if __name__ == "__main__":
    main()
