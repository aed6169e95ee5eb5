"""The actor of a queue: what any thread may call, its turns, and what it sends."""
