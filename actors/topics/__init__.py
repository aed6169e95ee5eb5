"""The actors of a topic store, and of streams."""
