"""All programs that end: importing them puts them into the table."""

from __future__ import annotations

import tests.support.ends_of_programs
import tests.support.ends_of_threads  # noqa: F401
from tests.support.ends import ENDS as ENDS  # noqa: PLC0414 - for those who want all of them
