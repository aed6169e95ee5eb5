"""A quorum queue's directories, read as a restarting broker reads them: the log is replayed."""
