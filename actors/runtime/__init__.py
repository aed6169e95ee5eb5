"""What actors run on: a pool of threads, inboxes, futures, timers, and the ways between threads and event loops."""
