"""Classic queues of both versions."""
