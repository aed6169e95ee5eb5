"""Traces of the real broker's queue: recorded, generated at random, compared with ours.

An operation here may say more than those of the first traces did: ``restart`` with ``"stores": "restarted"`` stops and
starts the message stores too; ``size`` and ``expiry`` may be lists, which start over at their end; ``publish`` and
``batch_publish`` with ``"confirm": true`` want to be confirmed, and ``drain_confirmed`` answers which were.
"""
