"""What is built of a topic's CommitLog: ConsumeQueues, index files, consumer offsets."""
