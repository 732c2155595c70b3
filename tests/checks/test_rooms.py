"""The lint rules of the rooms hold, and each of them sees a breach that is put before it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from checks import rooms

BREACHES = {
    "core does no I/O": (
        "dpflow/core/toolbox/x.py",
        [
            "import os",
            "from time import sleep",
            "import yaml",
            "import random",
            "import numpy as np\nx = np.random.default_rng(1)",
            "import datetime as dt\nx = dt.datetime.now()",
            "import datetime as dt\nx = dt.date.today()",
            "x = open('f')",
            "from pathlib import Path\nx = Path('f').read_text()",
        ],
    ),
    "core knows no cluster": (
        "dpflow/core/contract/x.py",
        [
            '"""Rows on Spark."""',
            "from dpflow.tables.backends import spark_source as x",
            "x = y.spark",
            "class SparkSource: pass",
            "def f(spark): pass",
            "x = f'{y} on Spark'",
        ],
    ),
    "a method that subclasses write is abstract": (
        "dpflow/engine/x.py",
        [
            "def f(): raise NotImplementedError",
            "class A:\n    def f(self):\n        raise NotImplementedError('f')",
        ],
    ),
    "only tables opens a private source": (
        "dpflow/quality/x.py",
        [
            "import duckdb",
            "import duckdb as d\nx = d.connect('f')",
            "from duckdb import connect",
            "def f():\n    import duckdb",
            "from importlib import import_module\nx = import_module('duckdb')",
            "x = 'duckdb://'",
            "x = create(f'duckdb:///{y}')",
            "from pyspark.sql import SparkSession",
            "import duckdb_sqlalchemy",
            "from adbc_driver_duckdb import dbapi",
            "x = __import__('_duckdb')",
        ],
    ),
    "only tables and the engine use the reader of private rows": (
        "dpflow/analyst_sql/x.py",
        [
            "from dpflow.tables.private import PrivateTable",
            "from dpflow.tables import private",
            "import dpflow.tables.private",
            "import dpflow.tables.snapshot as s",
            "from importlib import import_module\nx = import_module('dpflow.tables.private')",
            "from dpflow.engine.releases.execute import PrivateTable",
            "from dpflow.engine.releases import execute\nx = execute.PrivateTable(t)",
            "from dpflow.tables.backends import find_backend",
            "from dpflow.tables.access.isolated_database import open_file",
            "from dpflow.tables.access.file_list import open_source",
            "from dpflow.tables.access import file_list\nx = file_list.open_source(f, 'f')",
            "from dpflow.tables.access import contract_rows",
            "from dpflow.tables.backends.duckdb_backend import backend",
            "from dpflow.tables.access import file_list\nx = file_list.open_list(f, 'f')",
        ],
    ),
    "only tables and the ledger run statements": (
        "dpflow/analyst_sql/releases/cells.py",
        [
            "x = conn.execute(text)",
            "x = helper.lend().cursor().execute(text)",
            "x = connection.sql(text)",
            "x = self._connection.query(text)",
            "x = spark.sql(text)",
            "x = get_session().sql(text)",
            "x = pandas.read_sql(text, y)",
            "x = source.fetch_rows(text)",
            "x = sa.create_engine(url)",
            "x = driver.connect('f')",
            "from driver import connect\nx = connect('f')",
        ],
    ),
    "only fail_closed draws": (
        "dpflow/engine/releases/x.py",
        [
            "x = SystemSource()",
            "from dpflow.core.sampling import randomness\nx = randomness.SystemSource()",
        ],
    ),
    "queries of private rows stand in the backend that runs them": (
        "dpflow/tables/language/x.py",
        [
            "x = f'SELECT {y} FROM t'",
            "x = f'{y} FROM ({z})'",
            "x = f'INSERT INTO {y} VALUES (1)'",
            "x = f'{y} GROUP BY {z}'",
            "x = 'SELECT a FROM t'",
            "x = 'select a from t'",
            "x = '  WITH a AS (SELECT 1)\\n  FROM a'",
            "x = 'SELECT {} FROM t'.format(y)",
            "x = ask('COPY t TO 1')",
        ],
    ),
    "only tables.access.arithmetic writes arithmetic over row values": (
        "dpflow/tables/backends/x.py",
        [
            "x = f'{y} + {z}'",
            "x = f'{y} * 4 AS v'",
            "x = 'v0 - 1'",
            "x = f'(x // {y}) AS z'",
            "x = f'sum({y})'",
            "x = f'-({y})'",
            "x = f'{y} & 3'",
            "x = f'{y} << 3'",
            "x = f'({y} div 2L)'",
            "x = f'pmod({y}, 2L)'",
            "x = f'{y}+{z}'",
            "x = y + ' + ' + z",
            "x = ' + '.join(y)",
            "x = '{} + {}'.format(y, z)",
            "x = f'{y} {op} {z}'",
            "x = f'abs({y})'",
            "x = f'power({y}, 2)'",
            "x = 'product(v0)'",
            "x = exp.Add(this=y, expression=z)",
            "x = functions.sum(y)",
            "x = f'{y}::BIGINT'",
        ],
    ),
}


@pytest.mark.slow  # `make lint` does the same
def test_the_rules_hold() -> None:
    assert rooms.find_breaches() == []


def test_exceptions_exist() -> None:
    """Each is a file or folder, or what a rule would find there."""
    assert {rule.name for rule in rooms.RULES} == set(BREACHES)
    for rule in rooms.RULES:
        for exception in rule.exceptions:
            place, _, name = exception.partition(":")
            assert (rooms.ROOT / place).exists()
            # A function that was renamed, or needs no exception any more, is taken out of the list.
            nodes = [*ast.walk(ast.parse((rooms.ROOT / place).read_text()))] if name else []
            lines = [line for line, _ in rule.finds(nodes)]
            assert not name or any(name in rooms.name_scopes(nodes, line) for line in lines), (
                exception
            )


@pytest.mark.parametrize(
    ("rule", "file", "code"),
    [(rule, file, code) for rule, (file, codes) in BREACHES.items() for code in codes],
)
def test_a_breach_is_seen(rule: str, file: str, code: str, tmp_path: Path) -> None:
    """Negative controls: each way to break a rule is named with its file."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    breaches = [breach for breach in rooms.find_breaches(tmp_path) if breach.endswith(f": {rule}")]
    assert len(breaches) == 1 and breaches[0].startswith(f"{file}:")


@pytest.mark.parametrize("room", ["plugins/dpflow-x/dpflow_x", "integrations/dpflow-x/dpflow_x"])
@pytest.mark.parametrize(
    "code",
    [
        "import duckdb",
        "from dpflow.tables.private import PrivateTable",
        "x = cursor.execute(text)",
        "x = 'SELECT a FROM t'",
        "x = SystemSource()",
    ],
)
def test_plugins_and_integrations_keep_the_rules(room: str, code: str, tmp_path: Path) -> None:
    """Distributions beside dpflow have the same doors as its own rooms."""
    path = tmp_path / room / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert len(rooms.find_breaches(tmp_path)) == 1


def test_what_only_looks_like_a_breach_is_none(tmp_path: Path) -> None:
    """Docstrings, sentences, sqlglot's ``sql`` and Airflow's ``execute`` break no rule."""
    path = tmp_path / "dpflow" / "airflow" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        '''"""SELECT a FROM t"""
x = "Select a column from the list"
y = tree.sql("duckdb")
z = candidate.query()
Base.execute(self, context)
from dpflow.tables import check_schema
'''
    )
    assert rooms.find_breaches(tmp_path) == []


def test_exceptions_stay_exceptions(tmp_path: Path) -> None:
    """A file that may draw, may; the file beside it may not."""
    for name in ("fail_closed.py", "session.py"):
        path = tmp_path / "dpflow" / "engine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = SystemSource()")
    assert rooms.find_breaches(tmp_path) == [
        "dpflow/engine/session.py:1: SystemSource(): only fail_closed draws"
    ]


ROOMS = sorted(
    path.name
    for path in (rooms.ROOT / "dpflow").iterdir()
    if (path / "__init__.py").exists() and path.name != "tables"
)


@pytest.mark.parametrize("room", [".", *ROOMS])
def test_duckdb_is_imported_in_no_room_but_tables(room: str, tmp_path: Path) -> None:
    """A planted import is refused in each room, in its inner rooms, and beside them."""
    folders = [rooms.ROOT / "dpflow" / room]
    folders += [p.parent for p in folders[0].rglob("__init__.py") if room != "."]
    for folder in folders:
        planted = tmp_path / folder.relative_to(rooms.ROOT) / "planted.py"
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text("import duckdb")
    breaches = rooms.find_breaches(tmp_path)
    assert len(breaches) == len({*folders})
    assert all("import duckdb: only tables opens a private source" in b for b in breaches)


def test_the_import_contracts_refuse_it_too(tmp_path: Path) -> None:
    """By what ``make lint`` runs, on a copy of the package with one planted import in each room."""
    shutil.copytree(
        rooms.ROOT / "dpflow", tmp_path / "dpflow", ignore=shutil.ignore_patterns("__pycache__")
    )
    settings = tomllib.loads((rooms.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    head = '[tool.importlinter]\nroot_packages = ["dpflow"]\ninclude_external_packages = true\n'
    contracts = [
        c
        for c in settings["contracts"]
        if "duckdb" in c.get("forbidden_modules", ()) or c["type"] == "protected"
    ]
    assert len(contracts) == 2
    for contract in contracts:
        lines = [f"{name} = {json.dumps(value)}" for name, value in contract.items()]
        head += "\n".join(("[[tool.importlinter.contracts]]", *lines, ""))
    (tmp_path / "pyproject.toml").write_text(head)
    for room in ROOMS:
        planted = tmp_path / "dpflow" / room / "planted.py"
        planted.write_text("import duckdb\nfrom dpflow.tables.private import PrivateTable")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for room in ROOMS:
        assert f"dpflow.{room}.planted -> duckdb" in done.stdout
        refused = f"dpflow.{room}.planted -> dpflow.tables.private" in done.stdout
        assert refused is (room != "engine"), room
