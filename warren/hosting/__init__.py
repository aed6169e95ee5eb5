"""Nodes that run in this process: what they stand on, and what becomes of them when the process forks or ends."""
