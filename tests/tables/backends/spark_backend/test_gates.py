"""A gate whose holdout lies on Spark: the demo of a promotion, from the session to the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from holdout_gates import MemoryRegistry
from spark_servers import declare_source

from dpflow import Session, plan
from dpflow.engine.sessions.holdout_gate import judge_all
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

#: 3,000 people; a is right on eight of ten, b on six.
ROWS = """
CREATE TABLE visits AS SELECT i AS person, i % 2 AS sick,
       CASE WHEN i % 10 < 8 THEN i % 2 ELSE 1 - i % 2 END AS a,
       CASE WHEN i % 10 < 6 THEN i % 2 ELSE 1 - i % 2 END AS b
FROM range(3000) t(i)
"""
BIT = {"lower": 0, "upper": 1}
AGREEMENT = {"estimator": "column_agreement"}
GATES: dict[str, dict[str, Any]] = {
    "gate": {"metric": AGREEMENT, "threshold": "0.05", "epsilon": "40", "queries": 9, "failures": 2},
    "reusable_holdout": {
        "metric": AGREEMENT, "groups": 600, "queries": 9, "failures": 2, "rho": "0.24", "alpha": "0.1", "epsilon": "20",
    },
}  # fmt: skip
CLAIMS = [("a", "0.8"), ("b", "0.6"), ("b", "0.99"), ("a", "0.8"), ("b", "0.95")]


def open_gate(folder: Path, mechanism: str, where: dict[str, Any]) -> tuple[Session, Ledger]:
    """A session over a table that is declared in one of two ways."""
    folder.mkdir()
    fields = {
        "name": "visits",
        "privacy_unit": {"column": "person"},
        "protects": "unit",
        "contribution_bounds": {"rows": 1},
        "columns": {name: BIT for name in ("sick", "a", "b")},
        "holdout": True,
    }
    (folder / "visits.yml").write_text(yaml.safe_dump(fields | where))
    table, ledger = load_table(folder / "visits.yml"), Ledger(folder / "ledger.db", create=True)
    ledger.grant("gate", 200, 0, filter="basic", table=table, principal="owner", confirm_large=True)
    made = plan(mechanism, folder / "visits.yml", name="gate", scope="gate", **GATES[mechanism])
    return Session.open(made, ledger, Registry.load()), ledger


@pytest.mark.parametrize("mechanism", GATES)
def test_a_gate_promotes_and_catches_as_on_a_file(
    mechanism: str, tmp_path: Path, spark_server: str
) -> None:
    """True claims pass and register a model, false ones fail and use the failures up, at the price of the
    same gate over the same rows in a DuckDB file.
    """
    database, lake = tmp_path / "visits.duckdb", tmp_path / "lake"
    lake.mkdir()
    with duckdb.connect(str(database)) as connection:
        connection.execute(ROWS)
        connection.execute(f"COPY visits TO '{lake}/part.parquet' (FORMAT parquet)")
    places = {
        "file": {"database": str(database)},
        "spark": {"source": declare_source(spark_server, lake)},
    }
    said, paid = {}, {}
    for name, where in places.items():
        session, ledger = open_gate(tmp_path / name, mechanism, where)
        registry = MemoryRegistry()
        asked = [
            {"name": column, "features": ["sick", column], "claim": claim}
            for column, claim in CLAIMS
        ]
        answers = judge_all([lambda session=session: session], asked, registry)  # type: ignore[misc]
        said[name] = [(one["verdict"], one["outcome"] == "promoted") for one in answers]
        paid[name] = [row["epsilon_spent"] for row in ledger.remaining("gate").rows()]
        assert session.remaining()["state"] != "open"
    assert said["spark"] == said["file"] and paid["spark"] == paid["file"]
    # The second is right, and no better than the first.
    assert [promoted for _, promoted in said["spark"]] == [True, False, False, True, False]
