"""``warren topic …`` and ``warren mqadmin …``: topics, of a node that runs or in the files of a stopped broker."""
