"""All programs that end: importing them puts them into the table."""

from __future__ import annotations

import tests.support.ends_of_loops
import tests.support.ends_of_processes
import tests.support.ends_of_programs
import tests.support.ends_of_threads
import tests.support.ends_of_verbs  # noqa: F401
from tests.support.ends import ENDS as ENDS  # noqa: PLC0414 - for those who want all of them
