"""Benchmarks: what warren adds to the bare writing and reading of the same bytes.

``make bench`` runs them all (:mod:`benchmarks.__main__`). One idea a module: :mod:`~benchmarks.tape` records what an
engine asks of the disk and plays it again bare; :mod:`~benchmarks.measure` times the two in turn;
:mod:`~benchmarks.scenarios` publishes and fetches; :mod:`~benchmarks.backlog` fills and drains a queue and watches
its memory; :mod:`~benchmarks.killed` leaves what a killed process leaves; :mod:`~benchmarks.exporting` reads a
directory out; :mod:`~benchmarks.figures` is what comes of it, :mod:`~benchmarks.plot` and :mod:`~benchmarks.report`
show it. Beside other queues, warren is measured in :mod:`benchmarks.peers`;
how long a shared directory is without a host, in :mod:`benchmarks.takeover`.
"""
