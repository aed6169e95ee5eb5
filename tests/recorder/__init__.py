"""Traces of the real broker's queue: recorded, generated at random, compared with ours, and made small."""
