"""All targets, by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.directories import DIRECTORIES
from tests.fuzz.khepri import KHEPRI
from tests.fuzz.own_files import OWN
from tests.fuzz.parsers import BROKERS
from tests.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {target.name: target for target in (*BROKERS, *KHEPRI, *OWN, *DIRECTORIES)}
