"""Messages as Arrow's columns: what Parquet files are written from, and Spark's tables.

It comes with ``pip install "warrenmq[parquet]"``; Spark brings it, too.

=========================================  ====================================================================
:mod:`~warren.arrow.arrays`                arrays out of numpy's columns and a file's bytes, and batches of them
:mod:`~warren.arrow.message_arrays`        batches of messages as such columns
:mod:`~warren.arrow.parquet_export`        an export as Parquet: the schema, and a file of it
=========================================  ====================================================================
"""
