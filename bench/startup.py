"""What starting costs: commands in fresh processes beside the imports that none of them can do without,
and our operators against Airflow's base class.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import duckdb

from bench.timing import hold, show, show_bars

REPEATS = 5
FLOOR = "import duckdb, sqlalchemy, pydantic, numpy, sqlglot"
OPERATORS = (
    "from dpflow.airflow import BudgetBranchOperator, BudgetCheckOperator, BudgetGrantOperator, "
    "BudgetReportOperator, DataContractOperator, PrivatePredictionOperator, ReleaseOperator, "
    "ReusableHoldoutOperator, SessionOperator, SqlReleaseOperator"
)
BASE = "from airflow.sdk import BaseOperator"
#: As many commands as ours, each with an option, and no other import than typer.
MINIMAL = """
import sys
import typer
app = typer.Typer(no_args_is_help=True)
for number in range({commands}):
    @app.command(f"command-{{number}}")
    def command(option: str = "") -> None:
        "What this command does, in one line of help."
sys.argv = ["minimal", "--help"]
app()
"""
UNITS = 3_000
VISITS = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 2},
    "columns": {"person": {}, "city": {"public_keys": ["Oslo", "Rome"]}},
}
ARRIVALS = {
    "name": "arrivals",
    "database": "arrivals.duckdb",
    "privacy_unit": {"column": "plane"},
    "contribution_bounds": {"rows": 1},
    "holdout": True,
    "columns": {"plane": {}, "hour": {"lower": 0, "upper": 23}, "late": {"lower": 0, "upper": 1}},
}
COUNT = {
    "name": "visits by city",
    "mechanism": "count",
    "table": "visits.yml",
    "scope": "visits",
    "params": {"by": "city", "epsilon": "0.1"},
}
GATE = {
    "name": "arrivals gate",
    "table": "arrivals.yml",
    "scope": "arrivals",
    "gate": {
        "metric": "accuracy",
        "tolerance": "0.2",
        "candidates": 50,
        "units": UNITS,
        "max_epsilon": "1",
    },
}
ASK = ("sql", "--table", "visits.yml", "--scope", "visits", "--epsilon", "0.1")
STORED = "SELECT city, count(*) FROM visits GROUP BY city"
GRANT = ("--epsilon", "10", "--delta", "1e-6")


@dataclass(frozen=True)
class Case:
    """A command in a fresh process, and the process that it may take ``bar`` times the CPU of."""

    title: str
    command: Sequence[str]
    floor: Sequence[str]
    bar: float


def _python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def _dpflow(*words: str) -> tuple[str, ...]:
    # Beside the interpreter, as the installer wrote it.
    return str(Path(sys.executable).with_name("dpflow")), *words


def list_cases() -> list[Case]:
    """Commands, in a folder that `make_world` filled."""
    imports, skops = _python(FLOOR), _python("import skops.io")
    submit = ("gate", "submit", "gate.yml")
    champion = ("--champion", "champion.json")
    return [
        Case("dpflow --help", _dpflow("--help"), imports, 0.4),
        Case("dpflow plan", _dpflow("plan", "count.yml"), imports, 1.2),
        Case("dpflow sql, a stored answer", _dpflow(*ASK, STORED), imports, 1.5),
        Case("dpflow sql, a new answer", _dpflow(*ASK, "SELECT count(*) FROM visits"), imports, 1.8),
        Case("dpflow release", _dpflow("release", "count.yml"), imports, 1.8),
        Case("dpflow gate submit, 3 tables", _dpflow(*submit, "tables.yml", *champion), imports, 2.0),
        Case("dpflow gate submit, 3 skops files", _dpflow(*submit, "models.yml", *champion), skops, 1.5),
    ]  # fmt: skip


def make_world(folder: Path) -> None:
    """A private table, a holdout, three models and three tables of predictions in an empty folder."""
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE visits AS SELECT 'p' || i % {UNITS} AS person, "
            f"CASE WHEN i % 3 = 0 THEN 'Oslo' ELSE 'Rome' END AS city FROM range({2 * UNITS}) t(i)"
        )
    with duckdb.connect(str(folder / "arrivals.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE arrivals AS SELECT 'N' || i AS plane, i % 24 AS hour, "
            f"(i % 24 > 12)::INT AS late FROM range({UNITS}) t(i)"
        )
    for number, hour in enumerate((20, 12, 16)):
        with duckdb.connect(str(folder / f"said{number}.duckdb")) as connection:
            connection.execute(
                f"CREATE TABLE predictions AS SELECT 'N' || i AS plane, (i % 24 > {hour})::INT AS prediction "
                f"FROM range({UNITS}) t(i)"
            )
    files = {"visits": VISITS, "arrivals": ARRIVALS, "count": COUNT, "gate": GATE}
    about = {"label": "late"}
    files["tables"] = [
        about | {"name": f"table {n}", "predictions": {"database": f"said{n}.duckdb", "table": "predictions", "id": "plane"}}
        for n in range(3)
    ]  # type: ignore[assignment]  # fmt: skip
    files["models"] = [
        about | {"name": f"model {n}", "file": f"model{n}.skops", "features": ["hour"]}
        for n in range(3)
    ]  # type: ignore[assignment]
    for name, content in files.items():
        (folder / f"{name}.yml").write_text(json.dumps(content))  # which is YAML, too
    _make_models(folder)
    run = partial(_run_command, folder)
    run(_dpflow("ledger", "grant", "visits", *GRANT, "--table", "visits.yml"))
    run(_dpflow("ledger", "grant", "arrivals", *GRANT, "--table", "arrivals.yml"))
    run(_dpflow(*ASK, STORED))


def _make_models(folder: Path) -> None:
    import numpy as np
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    hour = np.arange(24)[:, None]
    for number, (cut, depth) in enumerate(((20, 1), (12, 2), (16, 3))):
        model = DecisionTreeClassifier(max_depth=depth).fit(hour, hour[:, 0] > cut)
        skops.io.dump(model, folder / f"model{number}.skops")


def _run_command(folder: Path, command: Sequence[str]) -> float:
    """CPU seconds of a command in a folder. Raises `RuntimeError` where it fails."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "DPFLOW_LEDGER": "ledger.sqlite",
        "HOME": str(folder / "home"),
    }
    # Whoever measures a start with compilation measures the first one only.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("DPFLOW_LEDGER_ANCHOR", None)
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    after = getrusage(RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]}: {done.stderr[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def least_cpu(
    commands: Mapping[str, Sequence[str]], prepare: Callable[[], Path], repeats: int = REPEATS
) -> dict[str, float]:
    """Least CPU seconds of fresh processes that run each command, taken in turns, each in the folder
    that ``prepare`` makes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            taken = _run_command(prepare(), command)
            # The first round writes byte code and fills the disk's cache.
            if turn:
                seconds[name].append(taken)
    return {name: min(values) for name, values in seconds.items()}


def measure_commands(repeats: int = REPEATS) -> list[tuple[str, float, float, float]]:
    """Title, CPU seconds, those of the floor, and the bar of each case."""
    cases = list_cases()
    with tempfile.TemporaryDirectory() as place:
        # At one path, since the ledger's keys are found by it.
        world, spare = Path(place) / "world", Path(place) / "spare"
        world.mkdir()
        make_world(world)
        world.rename(spare)

        def prepare() -> Path:
            shutil.rmtree(world, ignore_errors=True)
            return Path(shutil.copytree(spare, world))

        floors = {" ".join(case.floor): case.floor for case in cases}
        cpu = least_cpu(
            {**floors, **{case.title: case.command for case in cases}}, prepare, repeats
        )
    return [(case.title, cpu[case.title], cpu[" ".join(case.floor)], case.bar) for case in cases]


def main() -> None:
    """Print the tables."""
    from dpflow.cli.commands import COMMANDS

    measured = measure_commands()
    minimal = MINIMAL.format(commands=len(COMMANDS))
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        codes = {
            "minimal": _python(minimal),
            "operators": _python(OPERATORS),
            "base": _python(BASE),
        }
        cpu = least_cpu({"help": _dpflow("--help"), **codes}, lambda: home)
    measured += [
        ("dpflow --help, against a minimal typer application", cpu["help"], cpu["minimal"], 1.5),
        ("import of our operators, against BaseOperator", cpu["operators"], cpu["base"], 1.1),
    ]
    rows = [
        (title, f"{ours:.2f} s", f"{floor:.2f} s", f"{ours / floor:.2f}", str(bar))
        for title, ours, floor, bar in measured
    ]
    show(
        f"start-up, least CPU time of {REPEATS} fresh processes",
        ("what", "ours", "floor", "ratio", "at most"),
        rows,
    )
    for title, ours, floor, bar in measured:
        hold(title, ours / floor, bar)


if __name__ == "__main__":
    main()
    show_bars()
