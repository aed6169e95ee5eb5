"""Spark's daemon of Python workers, with the tables imported before it forks: a worker then begins at once.

Spark starts it with the name of the workers' module as an argument; for sessions on this machine (see
:mod:`warren.pipeline.sessions`).
"""

from __future__ import annotations

from pyspark.daemon import manager

import warren.pipeline.spark_source  # noqa: F401

if __name__ == "__main__":
    manager()
