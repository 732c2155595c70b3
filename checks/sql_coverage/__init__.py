"""How much SQL is answered: `python -m checks.sql_coverage` asks dpflow, Qrlew and SmartNoise the same
queries and writes docs/research/sql-coverage.md.
"""
