"""Quorum queues, as RabbitMQ keeps them: a log of commands, and the machine that they drive.

The messages lie in the log, and nowhere else; what is in a queue is found by replaying it. *Files* (write-ahead log,
segment, snapshot) give entries (:mod:`warren.salvage.quorum.ra.log`); entries hold commands
(:mod:`warren.salvage.quorum.fifo.decoding`); commands change the queue (:mod:`warren.salvage.quorum.fifo.machine`).
"""
