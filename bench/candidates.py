"""What a candidate costs a gate: tables of predictions beside reading them and the ledger's transaction,
a gate on a million units, and models beside one batch of scikit-learn.

``python -m bench candidates`` asks about 1,000 tables. ``python -m bench.candidates 10000`` asks about so
many in one session of a gate on means, and says what each thousand of them cost.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import duckdb
import numpy as np

from bench.timing import hold, show, show_bars
from dpflow.core.contract.declaration import Table
from dpflow.engine import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.sessions import candidate
from dpflow.engine.sessions.holdout_gate import judge, judge_all
from dpflow.engine.sessions.session import Session
from dpflow.ledger import Ledger
from dpflow.registry import Registry

ROWS, CANDIDATES = 3_183, 1_000
#: Milliseconds of a table's candidate in a batch, and seconds of opening a gate on `UNITS`.
TABLE_MS, OPEN_SECONDS, UNITS = 5, 5, 10**6
#: As measured on two quiet cores: reading a table takes 2.1 of them. The same code took 4.2 to 7.5 there on different days.
TABLE_MS_REACHED, TABLE_NOISE = 6, 0.3
TABLES_HEADER = ("gate", "all", "reading it", "ledger's transaction")
#: Rows, features, groups and the kind of model.
MODELS = (
    (3_183, 401, 200, "logistic regression"),
    (50_000, 10, 2_000, "forest of 200 trees"),
    (50_000, 10, 50_000, "forest of 200 trees"),
)
#: By mechanism, what it needs beside a metric.
GATES: dict[str, dict[str, Any]] = {
    "gate": {"threshold": "0.05", "count_epsilon": "1"},
    "reusable_holdout": {"groups": 400},
}

T = TypeVar("T")


def main() -> None:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in GATES for row in _judge_tables(Path(folder), name)]
    title = f"CPU a candidate, {CANDIDATES:,} tables of {ROWS:,} predictions"
    show(title, TABLES_HEADER, rows)
    with tempfile.TemporaryDirectory() as folder:
        rows = [_judge_model(Path(folder), number) for number in range(len(MODELS))]
    with tempfile.TemporaryDirectory() as folder:
        opened = _open_large(Path(folder))
    show("CPU of a gate on many units", ("units", "opening it", "first answer"), opened)
    header = ("model", "rows", "groups", "one batch", "gate, first candidate", "gate, each further")
    show("CPU of scoring a model, without loading it", header, rows)


def _judge_tables(
    folder: Path, mechanism: str, candidates: int = CANDIDATES
) -> list[tuple[str, ...]]:
    """A row for each thousand in one session."""
    session = open_gate(folder, ROWS, 0, mechanism, **GATES[mechanism])
    spent = dict.fromkeys(("reading", "ledger"), 0.0)
    read = _time_calls(candidate.read_predictions, spent, "reading")
    store = _time_calls(Ledger.answer, spent, "ledger")
    rows = list[tuple[str, ...]]()
    for first in range(0, candidates, CANDIDATES):
        with tempfile.TemporaryDirectory(dir=folder) as said:
            submissions = _make_predictions(Path(said), first)
            spent.update(dict.fromkeys(spent, 0.0))
            start = time.process_time()
            with (
                mock.patch.object(candidate, "read_predictions", read),
                mock.patch.object(Ledger, "answer", store),
            ):
                verdicts = judge_all([lambda: session], submissions)
            total = (time.process_time() - start) / CANDIDATES
        assert {verdict["verdict"] for verdict in verdicts} == {"yes"}
        parts = (total, *(part / CANDIDATES for part in spent.values()))
        rows.append((mechanism, *(f"{1000 * part:.1f} ms" for part in parts)))
        hold(
            f"gate's candidate from {first:,} on, {mechanism}, ms",
            1000 * total,
            TABLE_MS,
            noise=TABLE_NOISE,
            reached=TABLE_MS_REACHED,
        )
    return rows


def _make_predictions(folder: Path, first: int) -> list[dict[str, Any]]:
    """A thousand candidates in files of their own, no two alike: a candidate is its content."""
    files = [folder / f"said{first + number}.duckdb" for number in range(CANDIDATES)]
    with duckdb.connect() as connection:
        for number, file in enumerate(files, first):
            connection.execute(f"ATTACH '{file}' AS file")
            connection.execute(
                f"CREATE TABLE file.said AS SELECT i AS id, (i + (hash(i + {number}) % 5 = 0)::INT) % 2 AS prediction "
                f"FROM range({ROWS}) t(i)"
            )
            connection.execute("DETACH file")
    tables = ({"database": file, "table": "said", "id": "id"} for file in files)
    about = {"name": "c", "label": "label", "claim": "0.7"}
    return [about | {"predictions": table} for table in tables]


def _time_calls(function: Callable[..., T], spent: dict[str, float], name: str) -> Callable[..., T]:
    def call(*given: Any, **more: Any) -> T:
        start = time.process_time()
        try:
            return function(*given, **more)
        finally:
            spent[name] += time.process_time() - start

    return call


def _judge_model(folder: Path, number: int) -> tuple[str, ...]:
    import skops.io
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rows, features, groups, kind = MODELS[number]
    session = open_gate(folder, rows, features, "reusable_holdout", groups=groups)
    rng = np.random.default_rng(0)
    data = rng.random((2_000, features))
    label = data[:, 0] + rng.random(2_000) > 1
    forest = RandomForestClassifier(200, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = (LogisticRegression() if kind.startswith("log") else forest).fit(data, label * 1.0)
    batch = rng.random((rows, features))
    start = time.process_time()
    model.predict(batch)
    times = [time.process_time() - start]
    names = [f"f{i}" for i in range(features)]
    for turn in range(2):
        file = folder / f"{number}-{turn}.skops"
        # Another file is another candidate, which is scored again.
        skops.io.dump(model.set_params(random_state=turn), file)
        given = {"name": "m", "file": file, "label": "label", "features": names, "claim": "0.01"}
        loaded = candidate.load_candidate(
            candidate.Submission.model_validate(session.fill_metric(given))
        )
        start = time.process_time()
        assert session.ask(loaded.query(), loaded)["verdict"] == "yes"
        times.append(time.process_time() - start)
    return kind, f"{rows:,}", f"{groups:,}", *(f"{taken:.2f} s" for taken in times)


def _open_large(folder: Path) -> list[tuple[str, ...]]:
    """Opening a gate on many units, and the first answer, which reads them all."""
    planned = plan_gate(folder, UNITS, 0, "gate", **GATES["gate"])
    said = folder / "said.duckdb"
    with duckdb.connect(str(said)) as connection:
        connection.execute(
            f"CREATE TABLE said AS SELECT i AS id, i % 2 AS prediction FROM range({UNITS}) t(i)"
        )
    times = [time.process_time()]
    session = Session.open(*planned)
    times.append(time.process_time())
    table = {"database": said, "table": "said", "id": "id"}
    submission = {"name": "c", "label": "label", "claim": "0.9", "predictions": table}
    assert judge(session, submission)["verdict"] == "yes"
    times.append(time.process_time())
    spent = times[1] - times[0], times[2] - times[1]
    hold(f"opening a gate on {UNITS:,} units, s", spent[0], OPEN_SECONDS)
    return [(f"{UNITS:,}", *(f"{seconds:.2f} s" for seconds in spent))]


def open_gate(folder: Path, rows: int, features: int, mechanism: str, **params: Any) -> Session:
    """A gate on accuracy, on a table of so many rows and features."""
    return Session.open(*plan_gate(folder, rows, features, mechanism, **params))


def plan_gate(
    folder: Path, rows: int, features: int, mechanism: str, **params: Any
) -> tuple[Plan, Ledger, Registry]:
    """What opens it."""
    name = f"holdout{rows}x{features}-{mechanism}-{len(list(folder.iterdir()))}"
    path = folder / f"{name}.duckdb"
    listed = "".join(f", random() AS f{i}" for i in range(features))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"CREATE TABLE holdout AS SELECT i AS id, 'p' || i AS person, i % 2 AS label{listed} FROM range({rows}) t(i)"
        )
    bit = {"lower": 0, "upper": 1}
    table = Table.model_validate(
        {
            "name": "holdout",
            "database": path,
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "holdout": True,
            "columns": {"label": bit, "id": {"lower": 0, "upper": rows}}
            | {f"f{i}": bit for i in range(features)},
        }
    )
    ledger = Ledger(folder / f"{name}.sqlite", create=True)
    ledger.grant("holdout", 20, 0, filter="basic", table=table, principal="owner")
    given = {"metric": "accuracy", "queries": 10**6, "failures": 10, "epsilon": 10, **params}
    request = ReleaseRequest.model_validate(
        {
            "name": "gate",
            "mechanism": mechanism,
            "table": table,
            "scope": "holdout",
            "params": given,
        }
    )
    registry = Registry.load()
    return make_plan(request, registry), ledger, registry


if __name__ == "__main__":
    if sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            judged = _judge_tables(Path(place), "gate", int(sys.argv[1]))
        show("CPU a candidate, by the thousand", TABLES_HEADER, judged)
        show_bars()
    else:
        main()
