"""Areas under ROC curves through `dpflow gate`: plan, three prediction tables, a champion, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from gate_commands import ask_gate

from dpflow.errors import DpflowError, PlanRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """CREATE TABLE visits AS SELECT 'p' || i AS person, i AS visit, i % 4 = 0 AS sick, i % 2 AS other
          FROM range(4000) t(i)"""
SCORES = {
    "poor": "hash(visit) % 1000",
    "good": "(visit % 4 = 0)::INT * 400 + hash(visit) % 1000",
    # Without a score for some rows, which then win one half.
    "better": "CASE WHEN visit % 21 > 0 THEN (visit % 4 = 0)::INT * 1e6 + hash(visit) % 1000 END",
}
BIT = {"lower": 0, "upper": 1, "missing": 0}
METRIC = {"estimator": "auc", "label": "sick"}
WISHES: dict[str, Any] = {
    "metric": METRIC, "tolerance": "0.1", "candidates": 20, "paid": 4, "units": 1000, "deviation": "0.3",
}  # fmt: skip


def write_gate(tiny: Tiny, gate: dict[str, Any], **table: Any) -> Path:
    tiny.fill(ROWS)
    fixed = {"block": None, "protects": "unit", "contribution_bounds": {"rows": 1}, "holdout": True}
    columns = {"sick": BIT, "other": BIT, "visit": {}}
    path = tiny.declare(**fixed | {"columns": columns, "generalisation_only": True} | table)
    grant = {"filter": "basic", "principal": "o", "confirm_large": True}
    Ledger(tiny.ledger).grant("gate", 40, 0, table=load_table(path), **grant)
    file = tiny.folder / "gate.yml"
    file.write_text(yaml.safe_dump({"name": "g", "table": "visits.yml", "scope": "gate", **gate}))
    return file


def write_candidates(tiny: Tiny, *names: str, **fields: Any) -> Path:
    listed = []
    for name in names:
        said = tiny.folder / f"{name}.duckdb"
        with duckdb.connect(str(said)) as connection:
            connection.execute(f"ATTACH '{tiny.database}' AS p (READ_ONLY)")
            connection.execute(
                f"CREATE OR REPLACE TABLE said AS SELECT visit, {SCORES[name]} AS prediction FROM p.visits"
            )
        table = {"database": str(said), "table": "said", "id": "visit"}
        listed.append({"name": name, "label": "sick", "predictions": table, **fields})
    file = tiny.folder / "candidates.yml"
    file.write_text(yaml.safe_dump(listed))
    return file


def test_the_better_table_becomes_champion(tiny: Tiny) -> None:
    file, champion = (
        write_gate(tiny, {"gate": WISHES | {"better_by": "0.02"}}),
        tiny.folder / "champion.json",
    )
    _, planned = ask_gate(tiny, "plan", file)
    assert planned["verdicts"] == "proven" and "alike in each class" in str(planned)
    assert 0 < planned["proven_widths"]["fixed beforehand"] < 0.1
    ask_gate(tiny, "open", file)

    def submit(*names: str) -> list[tuple[str, str]]:
        code, said = ask_gate(tiny, "submit", file, write_candidates(tiny, *names), "--champion", champion)  # fmt: skip
        assert code == int(all(v["outcome"] == "not_better" for v in said["verdicts"])), said
        return [(v["outcome"], v.get("guarantee", "")) for v in said["verdicts"]]

    assert submit("good")[0][0] == "promoted"
    assert submit("poor", "better") == [("not_better", "proven"), ("promoted", "proven")]
    # What the gate asks, though the command asks for nothing; the same again is the same question.
    _, said = ask_gate(tiny, "submit", file, write_candidates(tiny, "poor"), "--champion", champion)
    assert said["verdicts"][0]["better_by"] == "1/50", said
    with pytest.raises(PlanRefused, match="a comparison is of one label"):
        ask_gate(tiny, "submit", file, write_candidates(tiny, "good", label="other"), "--champion", champion)  # fmt: skip


def test_a_claimed_area_has_an_interval(tiny: Tiny) -> None:
    file = write_gate(tiny, {"gate": WISHES | {"question": "claim"}})
    code, said = ask_gate(tiny, "submit", file, write_candidates(tiny, "good", claim="0.81"))
    (verdict,) = said["verdicts"]
    # 400 of 1,000 are above all, and the others win as coins do: 1 - .6^2 / 2.
    assert (code, verdict["guarantee"]) == (0, "proven") and verdict["interval"][0] < 0.82
    code, said = ask_gate(tiny, "submit", file, write_candidates(tiny, "poor", claim="0.81"))
    assert code == 1 and said["verdicts"][0]["interval"][1] < 0.95


def test_without_a_label_for_every_row_nothing_is_proven(tiny: Tiny) -> None:
    columns = {"sick": {"lower": 0, "upper": 1}, "visit": {}}
    file = write_gate(tiny, {"gate": WISHES | {"question": "claim"}}, columns=columns)
    _, said = ask_gate(tiny, "submit", file, write_candidates(tiny, "good", claim="0.8"))
    assert "may lack a value in sick" in said["verdicts"][0]["because"]


def test_a_person_of_two_rows_proves_nothing(tiny: Tiny) -> None:
    file = write_gate(tiny, {"gate": WISHES | {"question": "claim"}})
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("INSERT INTO visits VALUES ('p7', 9999, true, 1)")
    _, said = ask_gate(tiny, "submit", file, write_candidates(tiny, "good", claim="0.8"))
    assert "several rows" in said["verdicts"][0]["because"]


EXACT = {"metric": METRIC, "method": "description_length", "question": "champion"}


@pytest.mark.parametrize(
    ("gate", "table", "why"),
    [
        ({"params": EXACT}, {"generalisation_only": False}, "generalisation_only"),
        ({"params": EXACT}, {"contribution_bounds": {"rows": 2}}, "each unit has one row"),
        ({"params": EXACT | {"method": "sparse_vector", "epsilon": 1}}, {}, "description_length"),
        ({"params": EXACT | {"metric": "auc"}}, {}, "without noise metric: .*label"),
        ({"params": EXACT | {"metric": {"estimator": "accuracy", "label": "sick"}}}, {}, "leave label out"),
        ({"gate": WISHES}, {"generalisation_only": False}, "its label on a table that is gen"),
    ],
)  # fmt: skip
def test_what_proves_nothing_is_refused(
    tiny: Tiny, gate: dict[str, Any], table: dict[str, Any], why: str
) -> None:
    mechanism = {} if "gate" in gate else {"mechanism": "gate"}
    file = write_gate(tiny, mechanism | gate, **table)
    listed = write_candidates(tiny, "good")
    with pytest.raises(DpflowError, match=why):
        ask_gate(tiny, "plan", file)
        ask_gate(tiny, "submit", file, listed, "--champion", tiny.folder / "champion.json")
