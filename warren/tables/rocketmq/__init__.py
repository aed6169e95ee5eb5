"""The tables of a RocketMQ store: records, entries of consume queues, items of key indexes, and consumer offsets."""
