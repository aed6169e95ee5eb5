"""Directories in archives, and on other machines."""
