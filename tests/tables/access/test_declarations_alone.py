"""What a declaration says of a server is known to whoever reads declarations, and to nobody else before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_server_source_needs_no_other_import(tmp_path: Path) -> None:
    """In a process that has imported the reader of declarations alone."""
    declared = tmp_path / "visits.yml"
    declared.write_text(
        "name: visits\nsource: {spark: lake, table: /lake/visits}\nprivacy_unit: {column: person}\n"
        "contribution_bounds: {rows: 1}\ncolumns: {age: {lower: 0, upper: 120}}\n"
    )
    program = (
        "from dpflow.tables.access.declarations import load_table\n"
        f"print(load_table({str(declared)!r}).source.spark)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("lake\n", 0), ended.stderr
