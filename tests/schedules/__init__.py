"""Threads under a seeded scheduler: which of them goes on is decided at every step, so that an order can
be repeated."""
