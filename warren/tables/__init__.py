"""Brokers' directories as tables: what Spark reads as ``format("warren")``, and DuckDB in ``warren sql``.

A table is planned as small *tasks*, and each task gives batches of Arrow's columns, of which only those are made that
are asked for. Who runs the tasks is not said here: Spark's executors, or one process, one after the other.

=========================================  ==============================================================
:mod:`~warren.tables.catalog`              the tables by their names; each is a module of its own
:mod:`~warren.tables.schemas`              every table's columns
:mod:`~warren.tables.table`                what a table is: how it is planned, how a task reads its part
:mod:`~warren.tables.places`               what paths name: the directories, each one's kind
:mod:`~warren.tables.options`              what to read, and how
:mod:`~warren.tables.filters`              what of a table is wanted: columns, and bounds of their values
=========================================  ==============================================================
"""
