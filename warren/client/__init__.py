"""client: a node that another process hosts, reached by AMQP 0-9-1 over one socket a process and vhost.

From the socket up:

- :mod:`~warren.client.link` is the socket: who reads it, what goes out in one write, and what happens when it is lost;
- :mod:`~warren.client.channels` and :mod:`~warren.client.publishing` are channels: questions and answers, and messages
  that wait for their confirms, to be sent again over the next socket;
- :mod:`~warren.client.link_queue`, :mod:`~warren.client.link_vhost` and :mod:`~warren.client.link_topic` are the hosts
  that the handles' verbs (:mod:`warren.verbs`) have here, instead of the hosts in the node's process.
"""
