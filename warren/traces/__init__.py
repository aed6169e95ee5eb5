"""``warren replay``: recorded traces of operations on a queue."""
