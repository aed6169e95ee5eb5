"""Delayed messages on disk, in order of time. Imported with the first of them."""
