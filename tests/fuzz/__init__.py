"""Parsers under hostile bytes: one table of targets, for Hypothesis (tests/test_fuzz.py) and for atheris, a fuzzer that
watches which branches an input takes (``python -m tests.fuzz TARGET --seconds N``)."""
