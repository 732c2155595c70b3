"""`dpflow reference`: by job, searched, with the mechanism to prefer; estimators, calculators and errors."""

from __future__ import annotations

import csv
import json

import pytest

from dpflow.cli import measured_doors, reference
from dpflow.core.contract.mechanism import JOBS, Mechanism
from dpflow.mechanisms.rank_methods import NEVER_TAKEN, list_choices
from dpflow.registry import Registry

REGISTRY = Registry.load()
#: Parts of other mechanisms, sessions of papers, and methods that are there to compare.
LABORATORY = {
    *("interior_point", "find_interior_point", "estimate_first_moment", "unimodal_mode"),
    *("stable_median", "mean_queries", "multiplicative_weights", "effective_rounds"),
    "learn_thresholds_by_search",
}


def list_rows(capsys: pytest.CaptureFixture[str], word: str | None = None) -> dict[str, dict]:  # type: ignore[type-arg]
    reference.command(word, as_json=True)
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_each_mechanism_has_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Every job has some; without a word all are listed, grouped in the order of jobs."""
    rows = list_rows(capsys)
    assert {name for name, row in rows.items() if row["job"] in JOBS} == set(REGISTRY.mechanisms)
    assert {row["job"] for row in rows.values()} == {*JOBS, "estimators", "calculators", "errors"}
    assert {name for name, row in rows.items() if row["job"] == JOBS[-1]} == LABORATORY
    reference.command(None)
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{job}\n") for job in JOBS[1:]]
    assert places == sorted(places)
    for name in ("column_mean", "vote_sizes", "BudgetExceeded"):
        assert f"│ {name} " in shown


def test_a_word_is_searched_and_a_name_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """In names, jobs, summaries and citations, in any case; what is nowhere is refused."""
    assert {"median", "quantile", "approximate_median"} <= list_rows(capsys, "MEDIAN").keys()
    assert {"cdf", "quantiles"} <= list_rows(capsys, "distribution").keys()
    assert "count" not in list_rows(capsys, "quantile ")
    assert list_rows(capsys, "witness").keys() == {"WitnessBehind"}
    reference.command("approximate_median")
    shown = capsys.readouterr().out
    assert "prefer median for a column with bounds (no larger error in" in shown
    assert "; it takes this one for: a column without bounds, by groups; certain: true" in shown
    reference.command("quantiles")
    assert "takes cdf for: a column with bounds, nine deciles; a column without bounds" in (
        capsys.readouterr().out
    )
    with pytest.raises(Exception, match="no mechanism, estimator, calculator or error 'nowhere'"):
        reference.command("nowhere")


def test_doors_are_there_and_said_by_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    """Whom to prefer is a mechanism of the same job that is a door of nobody else; what it takes is what
    its rule says now.
    """
    rows = list_rows(capsys)
    doors = {name: m.door for name, m in REGISTRY.mechanisms.items() if m.door}
    assert {"approximate_median", "seeded_median", "sanitize_thresholds"} <= doors.keys()
    for name, door in doors.items():
        other = REGISTRY.mechanisms[door]
        assert isinstance(other, Mechanism) and not other.door
        assert rows[name]["prefer"].startswith(door)
    median = REGISTRY.mechanisms["median"]
    assert isinstance(median, Mechanism)
    assert list_choices(median) == {
        "cdf": ["a column without bounds"],
        "approximate_median": ["a column without bounds, by groups", "certain: true"],
    }


def test_preferences_are_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mechanism with a door was measured; of other numbers the sentence says the opposite."""
    with measured_doors.TABLE.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    pairs = {(line["mechanism"], line["door"]) for line in lines}
    assert pairs == {(name, m.door) for name, m in REGISTRY.mechanisms.items() if m.door}
    for name, _ in pairs:
        said = measured_doors.describe_preference(name)
        for case in {line["case"] for line in lines if line["mechanism"] == name}:
            found = [line for line in lines if (line["mechanism"], line["case"]) == (name, case)]
            better = sum(float(line["error of the door"]) <= float(line["error"]) for line in found)
            told = f"{case} (no larger error in {better} of {len(found)} measurements)"
            assert told in said.partition("not for ")[0 if 2 * better > len(found) else 2]
    turned = [
        line | {"error": line["error of the door"], "error of the door": line["error"]}
        for line in lines
        if line["mechanism"] == "approximate_median"
    ]
    monkeypatch.setattr(measured_doors, "_read_table", lambda: turned)
    assert "not for a column with bounds" in measured_doors.describe_preference(
        "approximate_median"
    )
    assert measured_doors.describe_preference("seeded_median") == ""


def test_a_method_that_measures_better_is_taken_or_has_a_reason() -> None:
    """The reference says why a door leaves out what is nearer in most measurements of a case, and of nothing that it takes."""
    taken, reasons = set(), set()
    for name, door in {n: m.door for n, m in REGISTRY.mechanisms.items() if m.door}.items():
        mechanism = REGISTRY.mechanisms[door]
        assert isinstance(mechanism, Mechanism)
        taken |= list_choices(mechanism).keys()
        shown = reference.describe_door(REGISTRY.mechanisms[name], REGISTRY)
        if name in NEVER_TAKEN:
            assert shown.endswith(f"; it never takes this one: {NEVER_TAKEN[name]}")
            reasons.add(name)
        elif "; not for " in shown:
            assert name in taken
    assert reasons == NEVER_TAKEN.keys() and not reasons & taken


@pytest.mark.slow
def test_the_table_is_what_its_command_measures() -> None:
    """Of the fewest rows: the same numbers again."""
    from experiments.measured_doors import SIZES, measure

    with measured_doors.TABLE.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if int(line["rows"]) == SIZES[0]]
    assert [*measure(SIZES[:1])] == lines
