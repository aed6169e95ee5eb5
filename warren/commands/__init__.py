"""The commands that use a running store: publish, consume, queues, purge, definitions."""
