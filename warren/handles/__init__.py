"""What threads hold: nodes, vhosts, queues, exchanges, topics, consumers, readers, and what these hand out."""
