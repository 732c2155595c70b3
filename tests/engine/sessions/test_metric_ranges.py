"""What an estimator computes is compared within the range that its proofs are stated for, whoever wrote it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dpflow import Session, hookimpl, plan
from dpflow.core.contract.estimators import Estimator, FromMoments, Metric
from dpflow.engine.planning.gate_design import _range_width
from dpflow.engine.sessions.holdout_gate import parse_submission
from dpflow.errors import InvalidInput, PlanRefused, UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from pathlib import Path

    from smallworld import Tiny

#: 100 in one of 28 rows and 0 elsewhere, beside .5 and .1 in all.
ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, 'r' || i AS visit, i % 2 AS sick,
       CASE WHEN i % 28 = 0 THEN 100 ELSE 0 END AS rare, 0.5 AS steady, 0.1 AS narrow
FROM range(4000) t(i)
"""
WIDE = {"lower": 0, "upper": 100, "step": "0.5", "missing": 0}
COLUMNS = {
    "sick": {"lower": 0, "upper": 1, "missing": 0},
    "rare": WIDE,
    "steady": WIDE,
    "narrow": {"lower": 0, "upper": "0.1", "step": "0.1", "missing": 0},
    "visit": {},
}
GROUPS: dict[str, Any] = {"groups": 400, "epsilon": "2000", "queries": 20, "failures": 10}
UNITS: dict[str, Any] = {"epsilon": "2000", "queries": 20, "failures": 10}


def _first(rows: Any, subject: Any) -> Any:
    return rows[subject.columns[0]]


def _liar(name: str, function: Any, **more: Any) -> Estimator:
    """Says that its numbers are in [0, 1], and they reach 100."""
    return Estimator(name, "s", 0.0, function, model="", better="higher", range=(0.0, 1.0), **more)


LIARS = (
    _liar("lying_mean", lambda r, s: _first(r, s).mean(), row_scores=_first),
    _liar(
        "lying_sums",
        lambda r, s: _first(r, s).mean(),
        row_scores=_first,
        moments=FromMoments(("n", "x"), lambda m: m["x"] / m["n"]),
    ),
    _liar("lying_largest", lambda r, s: _first(r, s).max()),
    _liar(
        "lying_total",
        lambda r, s: _first(r, s).sum(),
        moments=FromMoments(("x",), lambda m: m["x"]),
    ),
)
MEANS = ("lying_mean", "lying_sums")


@pytest.fixture
def table(tiny: Tiny) -> Path:
    tiny.fill(ROWS)
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=COLUMNS, block=None, holdout=True
    )
    Ledger(tiny.ledger).grant(
        "gate", 9000, 0, filter="basic", table=load_table(path), principal="owner", confirm_large=True
    )  # fmt: skip
    return path


def open_session(tiny: Tiny, mechanism: str, **params: Any) -> Session:
    plugin = SimpleNamespace(dpflow_register_estimators=hookimpl(lambda: list(LIARS)))
    registry = Registry(dict(Registry.load()._manager.list_name_plugin()) | {"liars": plugin})
    planned = plan(
        mechanism,
        tiny.folder / "visits.yml",
        registry=registry,
        name="gate",
        scope="gate",
        **params,
    )
    return Session.open(planned, Ledger(tiny.ledger), registry)


def challenge(session: Session, challenger: str, champion: str) -> dict[str, Any]:
    claim = {} if session.plan.mechanism.name == "gate" else {"claim": "0"}

    def load(column: str) -> Any:
        fields = {"name": column, "features": [column], **claim}
        return session.load_candidate(parse_submission(session, fields))

    return session.challenge(load(challenger), load(champion))


@pytest.mark.parametrize("liar", [liar.name for liar in LIARS])
def test_groups_are_compared_within_the_range(tiny: Tiny, table: Path, liar: str) -> None:
    """Within [0, 1] half is more than 1 in a few rows; beyond it 100 in a few rows is more."""
    session = open_session(tiny, "reusable_holdout", metric=liar, **GROUPS)
    said = challenge(session, "rare", "steady")
    assert (said["verdict"], said["guarantee"]) == ("no", "proven")
    said = challenge(session, "steady", "rare")
    assert (said["verdict"], said["guarantee"]) == ("yes", "proven")


@pytest.mark.parametrize("liar", MEANS)
def test_units_are_compared_within_the_range(tiny: Tiny, table: Path, liar: str) -> None:
    session = open_session(tiny, "gate", metric=liar, question="champion", **UNITS)
    said = challenge(session, "rare", "steady")
    assert (said["verdict"], said["guarantee"]) == ("no", "proven")
    said = challenge(session, "steady", "rare")
    assert (said["verdict"], said["guarantee"]) == ("yes", "proven")


@pytest.mark.parametrize("liar", [*MEANS, "lying_largest"])
def test_a_claim_on_groups_is_about_clamped_numbers(tiny: Tiny, table: Path, liar: str) -> None:
    """Three of ten groups have a row of 100: of ten rows it makes the mean 10, and .1 where it counts 1."""
    half = {"rho": "0.2", "alpha": "0.1"}
    session = open_session(tiny, "reusable_holdout", metric=liar, **GROUPS, **half)
    words = {
        claim: session.ask({"columns": ["rare"], "claim": claim})["verdict"]
        for claim in ("0.05", "0.4", "1", "1.1", "9")
    }
    expected = {"0.05": "yes", "0.4": "no", "1": "no", "1.1": "no", "9": "no"}
    if liar == "lying_largest":
        expected |= {"0.4": "yes", "1": "yes"}
    assert words == expected


@pytest.mark.parametrize("liar", MEANS)
def test_a_claim_on_units_is_about_clamped_scores(tiny: Tiny, table: Path, liar: str) -> None:
    session = open_session(tiny, "gate", metric=liar, threshold="0.02", count_epsilon="9", **UNITS)
    said = session.ask({"columns": ["rare"], "claim": "0.04"})
    low, high = said["interval"]
    assert (said["verdict"], said["guarantee"]) == ("yes", "proven") and low < 1 / 28 < high
    assert session.ask({"columns": ["rare"], "claim": "0.5"})["verdict"] == "no"


@pytest.mark.parametrize(
    ("liar", "value"),
    [("lying_mean", 0.1), ("lying_sums", 0.1), ("lying_largest", 1.0), ("lying_total", 1.0)],
)
def test_a_median_is_of_clamped_numbers(tiny: Tiny, table: Path, liar: str, value: float) -> None:
    session = open_session(
        tiny, "stable_median", epsilon="1000", groups=400, queries=2, range_size=2001
    )
    span = {"kind": "grid", "lower": 0, "upper": 20, "step": "0.01"}
    asked = {"estimator": liar, "columns": ["rare"], "range": span, "p": "0.85"}
    assert session.ask(asked)["value"] == pytest.approx(value, abs=0.08)


@pytest.mark.parametrize("mechanism", ["reusable_holdout", "gate"])
def test_columns_of_different_bounds_are_not_compared(
    tiny: Tiny, table: Path, mechanism: str
) -> None:
    """.1 is all of [0, .1], and .5 nothing of [0, 100]: shares of two ranges made the smaller one better."""
    params = GROUPS if mechanism == "reusable_holdout" else UNITS | {"question": "champion"}
    session = open_session(tiny, mechanism, metric="column_mean", **params)
    with pytest.raises(PlanRefused, match="declared with different bounds"):
        challenge(session, "narrow", "steady")
    assert session.remaining()["answered"] == 0
    challenge(session, "rare", "steady")
    assert session.remaining()["answered"] == 1


@pytest.fixture
def scores(tiny: Tiny) -> dict[str, Any]:
    """Sure and wrong for 35 of 100 rows, and always nearly sure and wrong: at the floor 1e-15 the first loses more."""
    tables = {}
    for name, right in (("bold", "CASE WHEN i % 20 < 7 THEN 0.0 ELSE 1.0 END"), ("meek", "1e-5")):
        path = tiny.folder / f"{name}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                f"CREATE TABLE said AS SELECT 'r' || i AS visit, 0 AS prediction, "
                f"CASE WHEN i % 2 = 1 THEN {right} ELSE 1 - ({right}) END AS score FROM range(4000) t(i)"
            )
        tables[name] = {"database": str(path), "table": "said", "id": "visit", "score": "score"}
    return tables


@pytest.mark.parametrize("mechanism", ["reusable_holdout", "gate"])
@pytest.mark.parametrize(
    ("floor", "verdict"), [(None, "yes"), ("0.000000000000001", "no"), ("0.01", "yes")]
)
def test_a_log_loss_reaches_as_far_as_its_floor(
    tiny: Tiny, table: Path, scores: Any, mechanism: str, floor: str | None, verdict: str
) -> None:
    """Of 34.5 the bold one loses 12.1, more than the 11.5 of the meek; of 13.8 it loses 4.8, of 4.6 1.6."""
    metric = {"estimator": "log_loss", **({"options": {"floor": floor}} if floor else {})}
    params = GROUPS if mechanism == "reusable_holdout" else UNITS | {"question": "champion"}
    session = open_session(tiny, mechanism, metric=metric, **params)
    claim = {"claim": "1"} if mechanism == "reusable_holdout" else {}
    bold, meek = (
        session.load_candidate(
            parse_submission(session, {"name": name, "label": "sick", "predictions": said, **claim})
        )
        for name, said in scores.items()
    )
    answer = session.challenge(bold, meek)
    assert (answer["verdict"], answer["guarantee"]) == (verdict, "proven")
    width = _range_width(SimpleNamespace(metric=Metric.model_validate(metric)), Registry.load())  # type: ignore[arg-type]
    assert width == pytest.approx(-math.log(float(floor or "1e-6")))


@pytest.mark.parametrize("mechanism", ["gate", "reusable_holdout"])
@pytest.mark.parametrize(
    ("metric", "error"),
    [
        *(
            ({"estimator": "log_loss", "options": {"floor": floor}}, InvalidInput)
            for floor in ("0", "-1", "0.5", "0.0000000000000001")
        ),
        *(
            ({"estimator": "calibration_error", "options": {"bins": bins}}, InvalidInput)
            for bins in ("0", "0.5", "1001")
        ),
        ({"estimator": "column_quantile", "options": {"p": "1.5"}}, InvalidInput),
        ({"estimator": "log_loss", "options": {"flor": "0.1"}}, UnknownName),
        ("log_los", UnknownName),
    ],
)
def test_a_metric_that_nothing_has_opens_no_session(
    tiny: Tiny, table: Path, mechanism: str, metric: Any, error: type[Exception]
) -> None:
    """It would be charged and answer nothing: no loss is finite without a floor."""
    more = UNITS | {"question": "champion"} if mechanism == "gate" else GROUPS
    with pytest.raises(error, match="floor|bins|estimator|share"):
        open_session(tiny, mechanism, metric=metric, **more)
