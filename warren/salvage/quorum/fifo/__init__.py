"""rabbit_fifo: the commands in a quorum queue's log, and the machine that they drive."""
