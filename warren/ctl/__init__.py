"""ctl: rabbitmqctl's verbs, for a node that runs in this process or in another one.

A verb is parsed in :mod:`warren.commands.ctl`, and run in the process of the node: over the node's socket as
``{"want": "ctl", "verb": …, "arguments": {…}}``, or at once if no node was running. :mod:`warren.ctl.verbs` lists all
of them; their code is in :mod:`~warren.ctl.access`, :mod:`~warren.ctl.listing` and :mod:`~warren.ctl.node_verbs`; the
text of their answers, in :mod:`~warren.ctl.listing`.
"""
