"""Every aggregate by name: planned, charged, read from a table and released, through the file's
door.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from dpflow import Ledger, release
from dpflow.engine import load_request, make_plan
from dpflow.errors import PlanRefused
from dpflow.registry import BUILT_INS, Registry

if TYPE_CHECKING:
    from smallworld import Tiny

MANY = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, 20 + i % 50 AS age FROM range(4000) t(i)
"""
MEASURES = ["count", {"measure": "mean", "column": "age"}, {"measure": "variance", "column": "age"}]
RELEASES: list[tuple[str, dict[str, Any], int]] = [
    ("count", {"by": "city"}, 2),
    ("count_distinct", {}, 1),
    ("sum", {"column": "age"}, 1),
    ("mean", {"column": "age", "by": "city"}, 2),
    ("variance", {"column": "age"}, 1),
    ("standard_deviation", {"column": "age", "by": "city"}, 2),
    ("vector_sum", {"columns": ["age"], "delta": "1e-7"}, 1),
    ("aggregates", {"measures": MEASURES, "by": "city"}, 6),
    ("histogram", {"by": "city"}, 2),
    ("private_histogram", {"by": "city", "of": "units", "epsilon": "0.9", "delta": "0.4e-6"}, 0),
    (
        "private_aggregates",
        {
            "by": "city, clinic",
            "measures": ["count", {"measure": "mean", "column": "age"}],
            "epsilon": "0.9",
            "delta": "0.4e-6",
            "noise": "laplace",
        },
        0,
    ),
    ("key_union", {"by": "clinic", "epsilon": "0.9", "delta": "0.4e-6"}, 0),
    ("quantile", {"column": "age"}, 1),
    ("quantiles", {"column": "age", "quantiles": ["1/4", "3/4"]}, 2),
    ("quantiles", {"column": "age", "quantiles": ["1/4", "3/4"], "by": "city"}, 4),
    ("median", {"column": "age"}, 1),
    ("median", {"column": "age", "by": "city"}, 2),
    ("minimum", {"column": "age"}, 1),
    ("maximum", {"column": "age"}, 1),
    ("bounds", {"column": "age"}, 2),
    ("bounds", {"column": "age", "by": "city"}, 4),
    ("arg_max", {"by": "city"}, 1),
    ("top_k", {"by": "city", "k": 2}, 2),
]


@pytest.mark.parametrize(
    ("name", "params", "rows"),
    RELEASES,
    ids=[name + " by" * ("by" in params) for name, params, _ in RELEASES],
)
def test_a_release_by_name(tiny: Tiny, name: str, params: dict[str, Any], rows: int) -> None:
    """The rows that were asked for, charged as planned, stored: the same file again is free and the
    same.
    """
    file = tiny.file(mechanism=name, params={"epsilon": "0.5", **params})
    wanted = make_plan(load_request(file), Registry.load())
    receipt = release(wanted, Ledger(tiny.ledger))
    assert name.startswith("private_") or name == "key_union" or len(receipt.result.rows) == rows
    assert float(receipt.epsilon) == pytest.approx(float(params.get("epsilon", "0.5")), rel=0.01)
    again = release(wanted, Ledger(tiny.ledger))
    assert again.replayed
    assert again.result == receipt.result


def test_target_errors_set_the_price(tiny: Tiny) -> None:
    """Without an epsilon the plan says what the errors cost, and charges that."""
    file = tiny.file(
        mechanism="aggregates",
        params={"measures": [{"measure": "count", "error": 20}], "by": "city"},
    )
    wanted = make_plan(load_request(file), Registry.load())
    described = wanted.describe()
    assert described["half_width_95"]["count"] <= 20
    assert 0.2 < float(described["epsilon"]) < 0.4
    assert release(wanted, Ledger(tiny.ledger)).epsilon == described["epsilon"]


@pytest.mark.parametrize(
    ("mechanism", "params", "shown"),
    [
        ("sum", {"column": "age", "epsilon": "0.5"}, "age from 0 to 100"),
        ("count", {"epsilon": "0.5"}, "(none needed)"),
        ("count", {"by": "city", "epsilon": "0.5"}, "(none needed)"),
        (
            "aggregates",
            {
                "measures": [{"measure": "count"}, {"measure": "mean", "column": "age"}],
                "epsilon": "0.5",
            },
            "age from 0 to 100",
        ),
    ],
)
def test_a_plan_says_which_bounds_it_trusts(
    tiny: Tiny, mechanism: str, params: dict[str, Any], shown: str
) -> None:
    """Those of the columns that it names; the rest of the declaration is none of its business."""
    tiny.declare(
        columns={
            "city": {"public_keys": ["a", "b"]},
            "age": {"lower": 0, "upper": 100},
            "pay": {"lower": 0, "upper": 1},
        }
    )
    assert (
        make_plan(
            load_request(tiny.file(mechanism=mechanism, params=params)), Registry.load()
        ).describe()["bounds"]
        == shown
    )


def test_a_median_without_bounds_is_another_mechanism(tiny: Tiny) -> None:
    """cdf, with an interval; approximate_median where it must be certain, or by groups. The plan says
    why; without a delta or the plugin that one is refused with the way out.
    """
    tiny.declare(columns={"city": {"public_keys": ["Oslo"]}, "age": {}})

    def plan_median(**params: Any) -> Any:
        params = {"column": "age", "epsilon": "0.5"} | params
        return make_plan(
            load_request(tiny.file(mechanism="median", params=params)), Registry.load()
        )

    wanted = plan_median()
    assert wanted.request.mechanism == "cdf"
    assert "declares no bounds, so cdf is taken" in wanted.describe()["note"]
    assert release(wanted, Ledger(tiny.ledger)).result.rows[0].measure == "quantile 1/2"
    for need, params in (
        ("certain: true was asked for", {"certain": True}),
        ("cdf takes no groups", {"by": "city"}),
    ):
        with pytest.raises(PlanRefused, match=f"{need}, which takes approximate_median; add delta"):
            plan_median(**params)
        wanted = plan_median(**params, delta="1e-7")
        assert wanted.request.mechanism == "approximate_median"
        assert f"{need}, so approximate_median is taken" in wanted.describe()["note"]
    file = tiny.file(
        mechanism="median",
        params={"column": "age", "epsilon": "0.5", "delta": "1e-7", "certain": True},
    )
    with pytest.raises(PlanRefused, match="install its plugin"):
        make_plan(load_request(file), Registry({name: import_module(name) for name in BUILT_INS}))


def test_a_median_with_bounds_says_what_it_trusts(tiny: Tiny) -> None:
    """The exponential mechanism over the declared range."""
    wanted = make_plan(
        load_request(tiny.file(mechanism="median", params={"column": "age", "epsilon": "0.5"})),
        Registry.load(),
    )
    assert "exponential mechanism over the declared bounds" in wanted.describe()["note"]
    assert wanted.mechanism.name == "median"


def test_bounds_that_were_found_can_be_declared(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a column without bounds, then a sum within those that a release found."""
    monkeypatch.setattr("dpflow.mechanisms.bounds.FAILURE", 1e-12)  # the search takes no empty bin
    tiny.fill(MANY)
    tiny.declare(columns={"age": {}})
    refused = tiny.file(mechanism="sum", params={"column": "age", "epsilon": "0.4"})
    with pytest.raises(PlanRefused, match="bounds"):
        make_plan(load_request(refused), Registry.load())
    found = release(
        make_plan(
            load_request(tiny.file(mechanism="bounds", params={"column": "age", "epsilon": "0.5"})),
            Registry.load(),
        ),
        Ledger(tiny.ledger),
    ).result
    assert found.document["columns"]["age"] == {"lower": 16, "upper": 128}
    tiny.declare(columns=found.document["columns"])
    file = tiny.file(name="total", mechanism="sum", params={"column": "age", "epsilon": "0.4"})
    (row,) = release(
        make_plan(load_request(file), Registry.load()), Ledger(tiny.ledger)
    ).result.rows
    assert abs(float(row.value or 0) - 4000 * 44.5) < 15_000  # 23 scales of its noise
