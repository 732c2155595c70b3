"""What users may write: conditions on rows, and expressions of aggregates. Parsed, checked, rebuilt
for DuckDB.
"""
