"""An hour of mixed load, watched: does anything grow that should not?

Two directories are at work side by side. One is *shared* by two programs (:mod:`~benchmarks.long_run.member`): one
lives for the whole run, the other is killed now and then; in between the first closes its node and opens it again, so
that they take over from each other all the time. The other directory is *served* by ``warren serve`` to AMQP clients
that come and go (:mod:`~benchmarks.long_run.clients`). Both have a memory limit below their backlogs.

Lines report all that was confirmed and all that came out; they are compared at the end
(:mod:`~benchmarks.long_run.ledger`).
"""
