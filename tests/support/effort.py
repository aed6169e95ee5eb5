"""How thoroughly the tests search, as the environment's WARREN_EFFORT says; the end of a run tells it.

=========== ============================= ===========================================================
``quick``   ``make test``, and otherwise  a part of all examples, seeds and kills, the same each time
``full``    ``make test-all``             all of them, the same examples each time
``nightly`` by hand                       ten times as many, other ones each time
=========== ============================= ===========================================================

Hypothesis has a profile ``ci`` for the first two, derandomised, and a profile ``nightly``. Tests that draw their own
seed print it; WARREN_SEED gives it to them again.
"""

from __future__ import annotations

import os
import random

import hypothesis

EFFORTS = ("quick", "full", "nightly")
EFFORT = os.environ.get("WARREN_EFFORT", "quick")
PROFILE = "nightly" if EFFORT == "nightly" else "ci"
LEAST = 10
"""A quick run repeats nothing fewer times than this, unless the full number is lower."""


def times(full: int, *, quick: int | None = None, nightly: int | None = None) -> int:
    """How often something drawn is repeated: ``full`` times; in a quick run ``quick`` times (a sixth of it), and in a
    nightly one ``nightly`` times (ten times as often)."""
    match EFFORT:
        case "quick":
            return max(full // 6, min(full, LEAST)) if quick is None else quick
        case "full":
            return full
        case "nightly":
            return 10 * full if nightly is None else nightly
        case _:
            raise ValueError(f"WARREN_EFFORT={EFFORT}: one of {', '.join(EFFORTS)} is needed")


def every(quick: int) -> int:
    """The distance of the points at which something is tried, if they are many: a quick run leaves most out."""
    return quick if EFFORT == "quick" else 1


def new_seed() -> int:
    """The seed of a test: another one each time, printed; or that of the environment."""
    seed = int(os.environ.get("WARREN_SEED", random.randrange(1 << 32)))
    print(f"WARREN_SEED={seed}")
    return seed


def load_profile() -> None:
    """How long an example takes says more of the machine than of the code: no example has a deadline."""
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        PROFILE,
        deadline=None,
        derandomize=PROFILE == "ci",
        max_examples=times(100),
        print_blob=True,
        suppress_health_check=slow,
    )
    hypothesis.settings.load_profile(PROFILE)


def summary() -> str:
    drawn = "the same examples each time" if PROFILE == "ci" else "other examples each time"
    return f"effort {EFFORT} (WARREN_EFFORT), Hypothesis profile {PROFILE}: {drawn}"
