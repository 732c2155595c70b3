"""`dpflow predict` at a service answers and writes what it does beside the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from service_world import TOKENS, ServiceWorld, asker, serve_here
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.client import remote

SESSION = {
    "name": "where",
    "mechanism": "predict_vote",
    "table": "visits.yml",
    "scope": "visits/bob",
    "params": {
        "features": ["age", "cost"],
        "label": "city",
        # So much, and cities so far apart, that the shards' vote wins, here and there.
        "epsilon": "10",
        "predictions": 60,
        "shards": 10,
        "learner": "GaussianNB",
    },
}
POINTS = """
CREATE TABLE tomorrow AS SELECT 'q' || i AS id, i + CASE WHEN i < 15 THEN 0 ELSE 20 END AS age,
    CASE WHEN i = 3 THEN NULL ELSE i / 10 END AS cost
FROM range(30) t(i)
"""
TABLES = ("--points", "points.duckdb:tomorrow", "--answers", "answers.duckdb:answers")


def test_a_table_of_points_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charged by the service once, however often it is asked; requests above its limits are split."""
    analyst = tmp_path / "analyst"
    analyst.mkdir()
    world = ServiceWorld(
        tmp_path,
        predict={"session": "where.yml", "max_points": 7},
        principals={"ann": asker("ann", doors=["predict"])},
    )
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as rows:
        rows.execute("UPDATE visits SET city = CASE WHEN age < 25 THEN 'Oslo' ELSE 'Rome' END")
    table = yaml.safe_load((tmp_path / "visits.yml").read_text())
    table["columns"]["age"] |= {"missing": 0}
    table["columns"]["cost"] |= {"missing": 0}
    (tmp_path / "visits.yml").write_text(yaml.safe_dump(table))
    (tmp_path / "where.yml").write_text(yaml.safe_dump(SESSION))
    for folder, catalogue in ((tmp_path, {"ledger": "ledger.sqlite"}), (analyst, {})):
        with duckdb.connect(str(folder / "points.duckdb")) as points:
            points.execute(POINTS)
        (folder / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    monkeypatch.setenv("DPFLOW_TOKEN", TOKENS["ann"][0])
    monkeypatch.setattr(remote, "MAX_POINTS", 16)

    def run(folder: Path, *words: str) -> Any:
        monkeypatch.chdir(folder)
        return CliRunner().invoke(app, ("predict", *words))

    def read_answers(folder: Path) -> list[Any]:
        with duckdb.connect(str(folder / "answers.duckdb"), read_only=True) as answers:
            return answers.sql("SELECT point, label, number FROM answers ORDER BY 1").fetchall()

    here = run(tmp_path, "where.yml", *TABLES)
    assert here.exit_code == 0, here.exception
    with serve_here(world) as server:
        monkeypatch.setenv("DPFLOW_SERVER", server)
        there = run(analyst, *TABLES)
        assert there.exit_code == 0, there.exception
        again = json.loads(run(analyst, *TABLES, "--json").stdout)
        shown = run(analyst).stdout
        refused = run(analyst, *TABLES, "--student", "s.yml")
    # The same lines; a session of another principal has another name and id.
    lines = [
        [" ".join(line.split()) for line in done.stdout.splitlines()] for done in (here, there)
    ]
    assert "predictions where" in lines[0][0] and "predictions where/ann" in lines[1][0]
    differ = [(a, b) for a, b in zip(*lines, strict=True) if a != b and "─" not in a + b]
    assert [line.strip("│ ").split()[0] for pair in differ[1:] for line in pair] == [
        "session_id"
    ] * 2, lines
    assert read_answers(tmp_path) == read_answers(analyst) and len(read_answers(analyst)) == 30
    assert again.items() >= {"points": 30, "predictions_left": 30}.items()
    assert "age, cost" in shown and "predictions left │ 30" in " ".join(shown.split())
    assert "leave the release file and --student out" in str(refused.exception)
    assert world.ledger.verify().ok
