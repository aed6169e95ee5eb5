"""RocketMQ's CommitLog: records, scans, recovery."""
