"""Brokers' directories as tables: what Spark reads as ``format("warren")``, and DuckDB in ``warren sql``.

A table is planned as small *tasks*, and each task gives batches of Arrow's columns, only those that are asked for. The
tasks may run in Spark's executors, or in one process, one after the other.

=========================================  ==============================================================
:mod:`~warren.tables.schemas`              every table's columns
:mod:`~warren.tables.table`                what a table is, and the tables by their names; each is a module of its own
:mod:`~warren.tables.places`               what paths name: the directories, each one's kind
:mod:`~warren.tables.read_options`         what to read, and how
:mod:`~warren.tables.filters`              what a query pushes down to a scan: columns, and bounds of their values
=========================================  ==============================================================
"""
