"""``warren demo``: the main job, done and watched, in under a minute.

A RabbitMQ node's directory that ships with the project is opened; its messages are taken over into a fresh directory;
many more are published under a memory limit, by a process of its own that is killed meanwhile; the directory is
recovered, the rest is published, everything is fetched again and checked; the sum of it is printed.

Whatever is printed was measured or checked in that very run:

======================  ============================================================================
:mod:`.shipped`         the shipped directory: what is in it, its messages, what RabbitMQ made of them
:mod:`.numbered`        the messages that are published: each follows from its number
:mod:`.publisher`       publishing, under the limit; also the process that is killed
:mod:`.killing`         starting that process, following its reports, killing it
:mod:`.checking`        what must have come back, and whether it did
:mod:`.measuring`       a moment of the queue, in numbers
:mod:`.summary`         what came of the run, for people and as JSON
:mod:`.screen`          drawing it, on a terminal or as plain lines
:mod:`.acts`            the run, one function an act
:mod:`.command`         the command
======================  ============================================================================
"""
