"""What can be asked of a node and its parts: each verb once, for threads and for coroutines."""
