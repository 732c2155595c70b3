"""Both ends of the ranges in pyproject.toml: ``python -m checks.compat [NAME...]`` builds an
environment for each set of versions and runs the tests that lean on those packages, against the
wheels in dist/. The name ``clients`` has old and new versions of DuckDB read what is published.

Environments stay in .venv-compat, so that a second run only installs what changed. A range that a
set breaks is narrowed in pyproject.toml, with the reason beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dpflow.errors import UnknownName

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-compat"
UV = Path(sys.executable).with_name("uv")

#: What the resolver prefers, and versions that it must choose, by the set's name: of each minor of Airflow the first
#: release that dpflow takes, and the newest. The newest FastAPI is too new for the newest Airflow, so the resolver alone
#: would take an older Airflow. Airflow 3.2 admits newer FastAPIs than it runs tasks with ("needs a discriminator
#: field"), 3.2.2 newer Starlettes and svcs ("no attribute 'svcs_registry'"), and 3.1.5 newer PyJWTs than it makes tokens
#: with ("Issuer (iss) must be a string").
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "oldest": ("lowest-direct", ("apache-airflow==3.1.5", "pyjwt<2.11")),
    "3.1": ("highest", ("apache-airflow==3.1.*",)),
    "middle": (
        "highest",
        ("apache-airflow==3.2.1", "fastapi<0.130", "sqlalchemy==2.0.*", "pandas==2.*"),
    ),
    "3.2": ("highest", ("apache-airflow==3.2.*", "fastapi<0.136", "starlette<1.1", "svcs<26")),
    "newest": ("highest", ("apache-airflow==3.3.*", "sqlalchemy==2.1.*")),
}
#: An S3 server and its file system, which the tests of stores need.
STORES = ("s3fs>=2025.9", "moto[server]>=5.1.18")
#: Operators and tables, and whatever else calls SQLAlchemy, cryptography, MLflow, scikit-learn or Great
#: Expectations itself.
TESTS = (
    "tests/airflow",
    "tests/tables",
    "tests/quality",
    "tests/ledger/audit/test_witness_stores.py",
    "tests/ledger/history",
    "tests/ledger/storage",
    # Its S3 server is here alone.
    "tests/ledger/books/test_witnesses.py",
    "tests/engine/sessions",
)
#: Clients that must read a published file: the oldest that its format promises, and the newest before 2.
CLIENTS = ("duckdb==1.2.0", "duckdb<2")
#: Everything that dpflow puts into a published file, made and changed once more; and a client's look at it.
PUBLISH = """
import datetime as dt, sys
from pathlib import Path
from dpflow.core.contract.distribution import SHARE_BELOW
from dpflow.core.contract.results import Result, Row, Synthetic
from dpflow.tables import PublishedRelease, publish, publish_answers
from dpflow.tables.public.named_tables import AnswerRun, publish_view
file, made = Path(sys.argv[1]), Synthetic((("n", "whole"), ("big", "huge")), ((1, 2**100),))
for name in ("a", "b"):
    shares = (Row("1", SHARE_BELOW, 0.48, 0.01), Row("2", SHARE_BELOW, 0.52, 0.01))
    rows = (*shares, Row("2013-01-01", "count", 3, 1.0))
    publish(file, "releases", PublishedRelease(name, "daily", "", "cdf", "1", "0", Result(rows, {}, made)))
    run = AnswerRun("", f"2026-01-0{1 + (name == 'b')}T00:00:00", dt.datetime(2026, 2, 1))
    publish_view(file, "answer", [("n", "BIGINT", [7]), ("day", "DATE", [dt.date(2026, 1, 1)])], run)
    publish_answers(file, "points", "s", ["k"], [1.0])
"""
READ = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1], read_only=True)
def ask(query): return connection.execute(query).fetchall()
assert ask("SELECT count(*), max(key_date)::VARCHAR FROM releases") == [(6, "2013-01-01")]
assert ask("SELECT big::VARCHAR FROM daily_synthetic") == [(str(2**100),)] * 2
assert ask("SELECT (releases_share_below('a', 1)).value, (releases_quantile('daily', 0.5)).value FROM range(1)") == [(0.48, 1.0)]
assert ask("SELECT n, run FROM answer_latest") == [(7, "2026-01-02T00:00:00")] and len(ask("FROM answer")) == 2
assert ask("SELECT number FROM points") == [(1.0,)]
print(f"duckdb {duckdb.__version__} reads a published file")
"""
#: A connection, a DAG and its page in a browser, for two users; and an engineer's first weeks under a scheduler.
WALKS = ("tests/integration/walk/test_walk.py", "tests/integration/walk/test_engineer.py")


def build_environment(name: str) -> Path:
    """An environment with a set's versions and our wheels; its bin folder."""
    resolution, versions = SETS[name]
    home, pins, constraints = HOME / name, HOME / f"{name}.txt", HOME / f"{name}.constraints"
    HOME.mkdir(exist_ok=True)
    constraints.write_text("\n".join(versions))
    stores = HOME / "stores.in"
    stores.write_text("\n".join(STORES))
    run = f"{sys.version_info[0]}.{sys.version_info[1]}"
    _uv(
        *(
            "pip",
            "compile",
            "pyproject.toml",
            str(stores),
            "--all-extras",
            "--group",
            "test",
            "--quiet",
        ),
        *("--python-version", run, "--no-header", "--no-annotate", "--resolution", resolution),
        *("--constraint", str(constraints), "--upgrade", "--output-file", str(pins)),
    )
    if not home.exists():
        _uv("venv", "--quiet", "--python", sys.executable, str(home))
    environ = os.environ | {"VIRTUAL_ENV": str(home)}
    _uv("pip", "sync", "--quiet", "--compile-bytecode", str(pins), environ=environ)
    wheels = sorted(str(wheel) for wheel in (ROOT / "dist").glob("*.whl"))
    _uv("pip", "install", "--quiet", "--no-deps", "--no-index", *wheels, environ=environ)
    # behind the wheels, for tests that take their ledgers from bench
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "repository.pth").write_text(f"{ROOT}\n")
    return home / "bin"


def run_tests(name: str) -> bool:
    """Whether a set passes. pytest's own script does not put the repository before the wheels."""
    programs = build_environment(name)
    print(f"== {name}: {' '.join(_main_versions(name))}", flush=True)
    pytest = [str(programs / "pytest"), "-p", "no:cacheprovider", "-q"]
    passed = [
        subprocess.run([*pytest, *words], cwd=ROOT, check=False).returncode == 0
        for words in (("-n", "2", *TESTS), ("-m", "integration", *WALKS))
    ]
    return all(passed)


def check_clients() -> bool:
    """Whether old and new clients read a published file."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/published.duckdb"
        subprocess.run([sys.executable, "-c", PUBLISH, file], cwd=ROOT, check=True)
        options = ("--quiet", "--isolated", "--no-project", "--python", sys.executable)
        return all(
            subprocess.run(
                [str(UV), "run", *options, "--with", client, "python", "-c", READ, file],
                check=False,
            ).returncode
            == 0
            for client in CLIENTS
        )


def _main_versions(name: str) -> list[str]:
    leading = ("apache-airflow==", "duckdb==", "sqlalchemy==", "mlflow-skinny==", "pandas==")
    pins = (HOME / f"{name}.txt").read_text().splitlines()
    return [pin.split(" ")[0] for pin in pins if pin.startswith(leading)]


def _uv(*words: str, environ: dict[str, str] | None = None) -> None:
    subprocess.run([str(UV), *words], cwd=ROOT, env=environ, check=True)


def main() -> None:
    """Run the named sets, or all; fails if one fails."""
    parser = argparse.ArgumentParser(prog="python -m checks.compat", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(("clients", *SETS)))
    names = parser.parse_args().names
    for name in names:
        if name not in ("clients", *SETS):
            parser.error(str(UnknownName("set of versions", name, ("clients", *SETS))))
    failed = [
        name
        for name in names or ("clients", *SETS)
        if not (check_clients() if name == "clients" else run_tests(name))
    ]
    if failed:
        sys.exit(f"these versions do not work: {', '.join(failed)}")


if __name__ == "__main__":
    main()
