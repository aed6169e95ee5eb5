"""Quorum queues, as RabbitMQ keeps them: a log of commands, and the machine that they drive.

The messages lie in the log, and nowhere else; what is in a queue is found by replaying it. *Files* (write-ahead log,
segment, snapshot) give entries (:mod:`warren.queue_index.quorum.log`); entries hold commands
(:mod:`warren.queue_index.quorum.decoding`); commands change the queue (:mod:`warren.queue_index.quorum.machine`).
"""
