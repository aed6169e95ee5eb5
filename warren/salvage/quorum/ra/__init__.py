"""Ra's files: write-ahead log, segments and snapshots, as one log of entries."""
