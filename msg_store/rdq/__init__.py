"""RabbitMQ's message store: records, where they lie, compaction, recovery."""
