"""A queue's index on disk: journal, segments, their recovery."""
