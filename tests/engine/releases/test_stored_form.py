"""A ledger outlives versions: plans of the same declaration keep the digests that version 1 stored.

The digests were recorded with the code of version 1, whose declarations said ``unit``, ``limits``, ``keys`` and
``partials``. If one changes, a retry across the upgrade is refused or charged a second time: mend the stored form,
not the table below.
"""

from __future__ import annotations

import datetime as dt
from importlib import import_module
from typing import Any

import pytest

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.plan import digest, make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.registry import BUILT_INS, Registry

PLAIN: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 4},
    "columns": {
        "age": {"lower": 0, "upper": 120},
        "city": {"public_keys": ["Rome", "Oslo"]},
        "note": {},
    },
}
BLOCKS = PLAIN | {
    "relation": "main.visits",
    "privacy_unit": {"column": "user", "missing": "one-unit"},
    "protects": "unit-block",
    "block": "day",
    "cached_partials": "checked",
    "contribution_bounds": {"rows": 9, "groups": 3, "rows_per_group": 3},
    "columns": {
        "city": {"public_keys": ["Rome", "Oslo", "no"], "groups": 2, "rows_per_group": 1},
        "cost": {"lower": "-0.25", "upper": "1.05", "step": "0.1", "missing": "0.5"},
        "born": {"lower": dt.date(1940, 1, 1), "upper": dt.date(2020, 1, 1)},
        # a column may be called like a field of either form
        "public_keys": {"lower": 0, "upper": 1},
        "unit": {"lower": 0, "upper": 1, "missing": 0},
    },
}
REPLACE = PLAIN | {
    "neighbours": "replace",
    "columns": {
        "age": {"lower": 0, "upper": 120, "public": True},
        "late": {"lower": 0, "upper": 1},
    },
}
GATE = PLAIN | {"holdout": True, "contribution_bounds": {"rows": 1}}
JOINED = PLAIN | {
    "joins": [
        {"relation": "people", "name": "person", "kind": "unit", "on": {"user": "id"}, "rows": 2},
        {"relation": "towns", "name": "town", "kind": "dimension", "on": {"city": "name"}},
    ],
    "columns": PLAIN["columns"]
    | {
        "town.area": {"public_keys": ["north", "south"]},
        "person.wage": {"lower": 0, "upper": 9000, "step": 100, "missing": 0},
    },
}
CLAIMS = {
    "groups": 400,
    "queries": 20,
    "failures": 2,
    "rho": "0.24",
    "alpha": "0.2",
    "epsilon": "4",
}
DAYS = ["2013-01-02", "2013-01-01"]
PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "public keys": (PLAIN, {"mechanism": "count", "params": {"by": "city", "epsilon": "0.5"}}),
    "a condition": (
        PLAIN,
        {
            "mechanism": "mean",
            "params": {"column": "age", "epsilon": "1"},
            "where": "age >= 18 AND city = 'Oslo'",
        },
    ),
    "blocks": (
        BLOCKS,
        {
            "mechanism": "histogram",
            "params": {"by": "city", "epsilon": "0.25"},
            "blocks": DAYS,
        },
    ),
    "sealed blocks": (
        BLOCKS | {"cached_partials": "sealed"},
        {
            "mechanism": "sum",
            "params": {"column": "cost", "by": "city", "epsilon": "1"},
            "blocks": DAYS[:1],
        },
    ),
    "dates": (
        BLOCKS,
        {
            "mechanism": "quantile",
            "params": {"column": "born", "p": "1/2", "epsilon": "1"},
            "blocks": DAYS[1:],
        },
    ),
    "public columns": (
        REPLACE,
        {"mechanism": "sum", "params": {"column": "late", "epsilon": "1"}},
    ),
    "nobody protected": (
        PLAIN | {"generalisation_only": True},
        {"mechanism": "count", "params": {"epsilon": "1/3"}},
    ),
    "joins": (
        JOINED,
        {"mechanism": "count", "params": {"by": "town.area", "epsilon": "1"}},
    ),
    "a renamed parameter": (
        PLAIN,
        {
            "mechanism": "key_union",
            "params": {"by": "note", "epsilon": "1", "delta": "1e-6", "guarantee": "zcdp"},
        },
    ),
    "a session": (
        PLAIN,
        {"mechanism": "above_threshold", "params": {"epsilon": "0.25"}},
    ),
    "a gate": (GATE, {"mechanism": "reusable_holdout", "params": CLAIMS}),
}
#: For each plan: of the stored declaration, of the plan without its mechanism's version, of the plan.
DIGESTS = {
    "public keys": (
        "454bfb2a6978033bd450108c5d831daf4177062a0c741db1097ae0f1bc126b53",
        "02e05143d5804ea3b95f6704e53a55dd4ea7f4bb0059fa610c0cc5085aa85cca",
        "554808a9cce79a51ad64cb37a85c7b3e71552c9df47ef174aa0cb5711431f3a8",
    ),
    "a condition": (
        "454bfb2a6978033bd450108c5d831daf4177062a0c741db1097ae0f1bc126b53",
        "52515db019f8e655a7600fa53ffee5f14464e8a9c72200401f15f2321ff77076",
        "d67a57cf08780cad316fcc94bc0e90b4bd47b47aa777cec7e5db1e76df1be4ef",
    ),
    "blocks": (
        "6d82fc83d06fed91792f7ffc24bf94672c1d9382ceffed1d05957ffda34a9e52",
        "c6540796e50ef51ad4bc102684fc4dfb7e675e4e6f5e5e550b01723adc0276e8",
        "1a9702ca3e02daf56b701417e37166ec488e3793a394b487a58a6481e269d183",
    ),
    "sealed blocks": (
        "6d82fc83d06fed91792f7ffc24bf94672c1d9382ceffed1d05957ffda34a9e52",
        "f7d458a094027731b4d548b273f7a63267d9813f64ebb235ee73f36993910949",
        "0b5a688403b7ce153bffb3eed96bde6bb92fb794486f4506169c4569d7a26749",
    ),
    "dates": (
        "6d82fc83d06fed91792f7ffc24bf94672c1d9382ceffed1d05957ffda34a9e52",
        "1aa0d9e72f4dc34a1787134de197a7e524c4d427b68fc3a10e11e6b089992349",
        "f5917c32b1458876d72cce08dac62b47d7c4d3ab5aa6b8b758ba4b79ba9a9b7e",
    ),
    "public columns": (
        "4f6fbd60a17820d735ec033b67ba5d69e61424b26b060da3e8354297d13ba77d",
        "72e362f584d4a5a7132e4e3aff5d31e65d5bd2b13cd9f85cb4c3faa3953370c6",
        "49f866429cb3afce561576cd3387ed93bdafbbc7a8231cccd3e99de654ed7244",
    ),
    "nobody protected": (
        "a56a4d13dd5d6436ec4e9db7f0f1a9f90ff47bcd6c2fba0eb5dc0d8640cad61a",
        "e4c44cc042f5579c84aaf85cacc65151e41a3a895ff89fb3d68be62ddfe751de",
        "b20bef94556f7db0d858e27d4fc39d16e619eca2a8eaab630e0a078d7e034cc9",
    ),
    "joins": (
        "924023f99068c28889910353ae5e36e8ab999595b1d2329b7959f5822e71ce1b",
        "57f3944ff2b6a6f2e0a6782de2bee464bf21f3dbb30aa3118c13a1bbe3ab0067",
        "d62ae941fdfd0b1f8e9b0604f50c5e4d84bad65dbd84c13a4ad5afcabd175cea",
    ),
    "a renamed parameter": (
        "454bfb2a6978033bd450108c5d831daf4177062a0c741db1097ae0f1bc126b53",
        "c001de37309698f3bd754f551a0cc5534e4ba73b6da0b37d7451e8937ba05d60",
        "a0597409db3767f8c580b2f7f6febc0bbfe6cdb490d09c17f956c50aa065be94",
    ),
    "a session": (
        "454bfb2a6978033bd450108c5d831daf4177062a0c741db1097ae0f1bc126b53",
        "6c67588bc6af49548cf479117793b5bf52d6e86eed8a46a41bb683eb4db3757d",
        "ae2410ee4a40a2917422c603469bb4c1955926f37b9970ef50a132eb326a31ce",
    ),
    # The last one is of version 3: sessions of version 2 are found by their slot
    # (`test_a_gate_of_the_version_before_goes_on`).
    "a gate": (
        "a7f6e6c8a9ebec81814d5412c0af15d30219b258e56184622cc0bd207f0f2499",
        "1409e1f392470fe3ec60b7238ea99d1c8a8c49b5966f435d2b63b2305e50ea46",
        "2583a91cfbda173042284eac9f5748bd83b3543de340899a35d47acaa1eb3071",
    ),
}
#: Plans that name every column, and sessions: their digests are those of version 1.
USES_ALL = ("public columns", "a session", "a gate")
ORDER = [
    "name",
    "relation",
    "unit",
    "neighbours",
    "protects",
    "block",
    "limits",
    "columns",
    "joins",
    "holdout",
    "generalisation_only",
]
ORDER_OF_COLUMN = [
    "lower",
    "upper",
    "step",
    "missing",
    "keys",
    "groups",
    "rows_per_group",
    "public",
]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_keeps_the_digests_of_version_1(name: str) -> None:
    """New words in a declaration, the same bytes under every digest."""
    declaration, changes = PLANS[name]
    table = Table.model_validate(declaration)
    request = ReleaseRequest.model_validate(
        {"name": name, "table": "t.yml", "scope": "s"} | changes
    )
    registry = Registry({module: import_module(module) for module in BUILT_INS})
    plan = make_plan(request, registry, table)
    assert (digest(table.stored_form()), *plan.former_digests) == DIGESTS[name]
    now = plan.version_independent_digest, plan.digest
    assert (now == plan.former_digests) == (name in USES_ALL)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        pytest.param({"note": {"lower": 0, "upper": 1}}, True, id="another column's bounds"),
        pytest.param({"more": {}}, True, id="another column"),
        pytest.param({"age": {"lower": 0, "upper": 121}}, False, id="a bound of its column"),
        pytest.param({"city": {"public_keys": ["Rome"]}}, False, id="keys in its condition"),
        pytest.param({"note": {"public": True}}, False, id="what is known of each row"),
    ],
)
def test_a_plan_depends_on_the_columns_that_it_names(changes: dict[str, Any], same: bool) -> None:
    """An edit of the declaration that the statistic and its guarantee never use is the same plan."""
    request = ReleaseRequest.model_validate(
        {"name": "n", "table": "t.yml", "scope": "s"} | PLANS["a condition"][1]
    )
    registry = Registry({module: import_module(module) for module in BUILT_INS})
    base = PLAIN | {"neighbours": "replace"}
    plans = [
        make_plan(request, registry, Table.model_validate(base | {"columns": columns}))
        for columns in (base["columns"], base["columns"] | changes)
    ]
    assert (plans[0].digest == plans[1].digest) == same
    assert plans[0].former_digests != plans[1].former_digests


def test_the_stored_form_keeps_its_order() -> None:
    """Names of cached partial aggregates are taken of its text, not of sorted JSON."""
    stored = Table.model_validate(BLOCKS).stored_form()
    assert list(stored) == ORDER
    assert list(stored["columns"]) == list(BLOCKS["columns"])
    assert list(stored["columns"]["city"]) == ORDER_OF_COLUMN
