"""Looking at a running node, from its own process or another one: ``warren top`` and what answers it.

:mod:`~warren.top.snapshots` is the node's side, :mod:`~warren.top.attached` the other's, :mod:`~warren.top.picture`
what is drawn. Nothing here changes anything.
"""
