"""The lint rules of the rooms hold, and each of them sees a breach that is put before it."""

from __future__ import annotations

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
    "only tables opens a private source": (
        "dpflow/quality/x.py",
        ["import duckdb\nx = duckdb.connect('f')", "from duckdb import connect", "x = 'duckdb://'"],
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
        ],
    ),
}


def test_the_rules_hold() -> None:
    """What ``make lint`` runs, and each exception is a file or folder that exists."""
    assert rooms.find_breaches() == []
    assert {rule.name for rule in rooms.RULES} == set(BREACHES)
    for rule in rooms.RULES:
        assert all((rooms.ROOT / name).exists() for name in rule.exceptions)


@pytest.mark.parametrize(
    ("rule", "file", "code"),
    [(rule, file, code) for rule, (file, codes) in BREACHES.items() for code in codes],
)
def test_a_breach_is_seen(rule: str, file: str, code: str, tmp_path: Path) -> None:
    """Negative controls: each way to break a rule is named with its file."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    breaches = rooms.find_breaches(tmp_path)
    assert len(breaches) == 1 and breaches[0].startswith(f"{file}:") and breaches[0].endswith(rule)


def test_exceptions_stay_exceptions(tmp_path: Path) -> None:
    """A file that may draw, may; the file beside it may not."""
    for name in ("fail_closed.py", "session.py"):
        path = tmp_path / "dpflow" / "engine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = SystemSource()")
    assert rooms.find_breaches(tmp_path) == [
        "dpflow/engine/session.py:1: SystemSource(): only fail_closed draws"
    ]
