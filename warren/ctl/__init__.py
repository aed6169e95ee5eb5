"""ctl: rabbitmqctl's verbs, for a node that runs in this process or in another one.

A verb is parsed where it is said (:mod:`warren.commands.ctl`), and worked in the process of the node: over the node's
socket as ``{"want": "ctl", "verb": …, "arguments": {…}}``, or at once where no node ran. :mod:`warren.ctl.verbs` lists
all of them; what they do stands in :mod:`~warren.ctl.access`, :mod:`~warren.ctl.listing` and
:mod:`~warren.ctl.node_verbs`; how answers look as text, in :mod:`~warren.ctl.text`.
"""
