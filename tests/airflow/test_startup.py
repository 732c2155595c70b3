"""A scheduler reads DAG files again and again: our operators import nothing heavy there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAVY = (
    "duckdb",
    "sqlalchemy",
    "numpy",
    "psycopg",
    "great_expectations",
    "pandas",
    "dpflow.engine",
)
SCRIPT = """
import runpy, sys
import airflow.sdk
before = set(sys.modules)
from dpflow.airflow import *
for file in {files!r}:
    runpy.run_path(file)
print(*(name for name in {heavy!r} if name in sys.modules and name not in before))
"""


def test_parsing_imports_nothing_heavy(tmp_path: Path) -> None:
    """Every operator, and the example DAGs."""
    from dpflow.demo.workspace import find_example_dags

    files = [str(path) for path in find_example_dags().glob("*.py") if path.name != "analyst.py"]
    assert len(files) >= 8
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(files=files, heavy=HEAVY)],
        env=os.environ | {"AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "", done.stdout
