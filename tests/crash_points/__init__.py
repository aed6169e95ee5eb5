"""Every crash point: a workload runs once and is recorded, and the states that a crash may leave are made from that.

:mod:`recording` keeps the operations, :mod:`losses` says what may be left of them, :mod:`search` makes the states and
has each of them checked, :mod:`workloads` says what is done and what must hold. ``python -m tests.crash_points`` checks
one state or many; see docs/how-it-is-tested.md.
"""
