"""The actors of a node: its vhosts, stores and memory monitor, how publishers are let in, and who looks at it."""
