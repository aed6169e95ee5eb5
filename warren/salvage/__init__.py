"""Salvage: look into the directories of a broker that is not running, without changing a byte of them.

A *source* (:mod:`~warren.salvage.source`) is what the user points at, opened read-only. It has vhosts
(:mod:`~warren.salvage.vhost`), and a vhost has stores and queues. A queue's directory answers one small protocol
(:mod:`~warren.salvage.queue_directory`), whatever the format of its files. On that stand the three things that can be
asked for: :mod:`~warren.salvage.inspect`, :mod:`~warren.salvage.export` and :mod:`~warren.salvage.verify`.
"""
