"""``warren top``: a live view of a running node, in its own process or another one.

:mod:`~warren.top.snapshots` takes the numbers in the node's process, :mod:`~warren.top.attached` fetches them from
another one, :mod:`~warren.top.picture` and :mod:`~warren.top.queue_page` draw them, and :mod:`~warren.top.keys` reads
the keyboard. Nothing here changes a node.
"""
