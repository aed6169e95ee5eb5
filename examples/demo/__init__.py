"""The demo, ``python -m examples.demo``: the main job, done and watched, in about a minute.

The demo opens a RabbitMQ node's directory from ``data`` and takes its messages over into a fresh directory. A separate
process publishes many more under a memory limit and is killed meanwhile; the directory is recovered, the rest is
published, everything is fetched again and checked. Then a RabbitMQ's directory with queues of all types is read and
exported; the store of a dead RocketMQ broker, also from ``data``, is opened, and its index rebuilt; a topic is written
in a fresh node, read by groups, found by key. A summary is printed.

Whatever is printed was measured or checked in that very run:

======================  ============================================================================
:mod:`.shipped`         the shipped directory: what is in it, its messages, what RabbitMQ made of them
:mod:`.numbered`        the messages that are published: each follows from its number
:mod:`.publisher`       publishing, under the limit; also the process that is killed
:mod:`.killing`         starting that process, following its reports, killing it
:mod:`.checking`        what must have come back, and whether it did
:mod:`.measuring`       a moment of the queue, in numbers
:mod:`.queue_types`     the act with classic queues v1 and v2 and quorum queues, and what RabbitMQ made of them
:mod:`.shipped_store`   the shipped RocketMQ store, and what RocketMQ read and answered
:mod:`.dead_rocketmq`   the act with it
:mod:`.topics`          the act with a topic
:mod:`.topic_checking`  what its groups must have read, what must be found by key, and whether it was
:mod:`.summary`         what came of the run, for people and as JSON
:mod:`.screen`          drawing it, on a terminal or as plain lines
:mod:`.bars`            the picture of a topic: bars that grow
:mod:`.acts`            the acts with the queue, one function each
:mod:`.run`             one act after the other
:mod:`.__main__`        the command
======================  ============================================================================
"""
