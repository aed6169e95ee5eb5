"""What is derived from the CommitLog: ConsumeQueues, index files, consumer offsets."""
