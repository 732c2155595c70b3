"""Prints the entry of ``packages.yml`` for the macros that this distribution carries."""

from pathlib import Path

print(f"packages:\n  - local: {Path(__file__).parent / 'dbt_package'}")
