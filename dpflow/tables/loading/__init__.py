"""The owner's side: rows of files, frames and servers into a private DuckDB file. No part of a
release.
"""
