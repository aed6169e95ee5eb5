"""warren and its peers on the same work, in one run. ``python -m benchmarks.peers``, or ``make bench-peers``.

Two tables. A *work* (:mod:`~benchmarks.peers.works`) says what is done, how often, what is measured and what is to be
reached; how it is done stands in :mod:`~benchmarks.peers.procedures` and :mod:`~benchmarks.peers.lifecycle`. A *peer*
(:mod:`~benchmarks.peers.peer`) is one small class in a file of its own, with the same few methods;
:data:`~benchmarks.peers.contestants.PEERS` lists them.

Every (peer, work) runs in a process of its own (:mod:`~benchmarks.peers.child`), peer after peer, and that five times
(:mod:`~benchmarks.peers.running`), so that a ratio is of neighbours in time. What comes out is compared with what went
in. :mod:`~benchmarks.peers.growth` is how cost grows; :mod:`~benchmarks.peers.outcome` what all of it comes to;
:mod:`~benchmarks.peers.page` and :mod:`~benchmarks.peers.pictures` show it.
"""
