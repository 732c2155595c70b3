"""What a declaration says of a server is known to whoever reads declarations, and to nobody else before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READ = "from dpflow.tables.access.declarations import load_table; table = load_table({path!r})"
WRITTEN = (
    "import dpflow; table = dpflow.Table(name='visits', source={'spark': 'lake', 'table': '/lake/visits'}, "
    "privacy_unit={'column': 'person'}, contribution_bounds={'rows': 1}, columns={'age': {'lower': 0, 'upper': 120}})"
)


@pytest.mark.parametrize("program", [READ, WRITTEN], ids=["read from a file", "written in Python"])
def test_a_server_source_needs_no_other_import(program: str, tmp_path: Path) -> None:
    """In a process that has imported the reader of declarations alone, or the class."""
    declared = tmp_path / "visits.yml"
    declared.write_text(
        "name: visits\nsource: {spark: lake, table: /lake/visits}\nprivacy_unit: {column: person}\n"
        "contribution_bounds: {rows: 1}\ncolumns: {age: {lower: 0, upper: 120}}\n"
    )
    program = f"{program.replace('{path!r}', repr(str(declared)))}; print(table.source.spark)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("lake\n", 0), ended.stderr
