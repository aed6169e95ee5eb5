"""A node on a real ext4, whose every write and flush is recorded below the file system; and power losses in between.

``python -m tests.real_disk`` records a workload and tries what a power loss may leave at points of the recording;
docs/how-it-is-tested.md says how. In the order in which they are used:

==================  ==================================================================================================
``recorder``        a FUSE file that notes what is written to it and when it is flushed; the ext4 stands in it
``write_log``       what it notes, and how many records there are already
``workload``        the processes that work on the ext4, and say what they were promised, and at which record
``ledgers``         what must be there, and what may be, when the power fails at a record
``power_loss``      what a disk with a volatile cache may have of the records then
``session``         a recording, and the checks of its states
==================  ==================================================================================================
"""
