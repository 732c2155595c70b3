"""A declared number for missing values is one: every request, mechanism and method answers as if it were stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corner_mechanisms import list_examples, list_mechanisms
from duckdb_files import duckdb_file
from raw_answers import ask
from raw_matrix import REQUESTS

from dpflow import Ledger, api
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupEstimates, UnboundedValues
from dpflow.errors import DpflowError, PlanRefused
from dpflow.tables.private import PrivateTable
from dpflow.testing.examples import EXAMPLE_TABLE, add_computed_columns, plan_mechanism

#: By type: what is declared, values that are stored, the declared one first, and those that are missing.
KINDS: dict[str, tuple[Any, list[str], list[str]]] = {
    "TINYINT": (0, ["0", "5", "-3"], ["NULL"]),
    "INTEGER": (-2, ["-2", "5", "3"], ["NULL"]),
    "BIGINT": (2**53 + 1, [str(2**53 + 1), "5", str(2**62)], ["NULL"]),
    "UBIGINT": (7, ["7", "5", str(2**64 - 1)], ["NULL"]),
    "HUGEINT": (-(2**70), [str(-(2**70)), "5", str(2**100)], ["NULL"]),
    "DECIMAL(9,2)": ("0.25", ["0.25", "-3.5"], ["NULL"]),
    "DECIMAL(30,4)": ("-0.0625", ["-0.0625", "3.5"], ["NULL"]),
    "FLOAT": ("0.5", ["0.5", "'-inf'", "2.25"], ["NULL", "'nan'"]),
    "DOUBLE": ("0.1", ["0.1", "'inf'", "2.25"], ["NULL", "'nan'"]),
    "BOOLEAN": (1, ["true", "false"], ["NULL"]),
    "DATE": ("2020-02-29", ["'2020-02-29'", "'1969-12-31'"], ["NULL"]),
    "TIMESTAMP": ("1.5", ["'1970-01-02 12:00'", "'2020-02-29 12:00:00.000001'"], ["NULL"]),
    "TIMESTAMP WITH TIME ZONE": (
        10**6,
        ["'4707-11-29 00:00+00'", "'2020-02-29 00:00+00'"],
        ["NULL"],
    ),
}


USUAL_BOUNDS = {"lower": "-100", "upper": "100", "step": "0.25"}
#: Of types whose number lies elsewhere; None where it does too far away.
BOUNDS = {
    "DATE": {"lower": "1969-01-01", "upper": "2021-01-01"},
    **dict.fromkeys(("BIGINT", "HUGEINT", "TIMESTAMP WITH TIME ZONE")),
}


def declare_twins(
    folder: Path, kind: str, columns: dict[str, Any], **changes: Any
) -> Iterator[PrivateTable]:
    """The table whose values are missing, with the declaration, and the one that stores the number."""
    number, values, absent = KINDS[kind]
    folder.mkdir()
    for name, rule in (("lacks", number), ("stores", "skip")):
        texts = values[1:] + 2 * (absent if name == "lacks" else values[:1] * len(absent))
        file = folder / f"{name}.duckdb"
        with duckdb_file(file) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            listed = ", ".join(
                f"({i}, '{'ab'[i % 2]}', {i}.5, CAST({text} AS {kind}))"
                for i, text in enumerate(texts)
            )
            connection.execute(f"CREATE TABLE data (u INTEGER, k VARCHAR, v DOUBLE, x {kind})")
            connection.execute(f"INSERT INTO data VALUES {listed}")
        fields = {
            "name": "data",
            "database": file,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": columns | {"x": columns["x"] | {"missing": rule}},
        }
        yield PrivateTable(Table.model_validate(fields | changes))


def try_request(private: PrivateTable, request: Any) -> Any:
    """The exact answer, or the words of the refusal."""
    try:
        private.check_request(request)
    except DpflowError as error:
        return str(error)
    return ask(private, request, ())


@pytest.mark.parametrize(
    "estimates", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["requests", "estimates"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_reads_the_number(kind: str, estimates: bool, tmp_path: Path) -> None:
    """Of each type, with bounds and without; an expression that cannot says so."""
    others = {"k": {"public_keys": ["a", "b"]}, "v": {"lower": 0, "upper": 9}}
    answered = 0
    for use, bounds in (("value with missing", BOUNDS.get(kind, USUAL_BOUNDS)), ("number", {})):
        if bounds is None:
            continue
        lacks, stores = declare_twins(tmp_path / use, kind, others | {"x": bounds})
        with lacks.hold_open(), stores.hold_open():
            for name, make in REQUESTS[use].items():
                request = make("x", ("a", "b"))
                # Rows by unit are no requests of the table.
                if name.startswith("unit: ") or name.endswith(("private key", "small key")):
                    continue
                if isinstance(request, GroupEstimates) is not estimates or "{c}" in name:
                    continue
                if isinstance(request, GroupEstimates):
                    request = replace(request, sql=request.sql.format(x="x"))
                found, truth = try_request(lacks, request), try_request(stores, request)
                if isinstance(found, str) and "declares missing" in found:
                    continue
                np.testing.assert_array_equal(found, truth, name)
                answered += not isinstance(found, str)
    assert answered > 2


def test_every_mechanism_reads_the_number(tmp_path: Path) -> None:
    """What it asks of the table gets the same answer, by groups and of all rows."""
    twins = []
    for name, rule in (("lacks", 3), ("stores", "skip")):
        file = tmp_path / f"{name}.duckdb"
        amount = "3" if name == "stores" else "NULL"
        share = "3" if name == "stores" else "CASE WHEN i % 2 = 0 THEN 'nan'::DOUBLE END"
        with duckdb_file(file) as connection:
            connection.execute(
                f"CREATE TABLE example AS SELECT i AS user, DATE '2020-01-01' AS day, ['a', 'b', 'c'][1 + i % 3] AS kind, "
                f"'w' AS word, CASE WHEN i % 10 < 7 THEN {amount} ELSE i END AS amount, "
                f"CASE WHEN i % 10 < 7 THEN {share} ELSE i / 2 END AS share FROM range(30) t(i)"
            )
        raw = EXAMPLE_TABLE.model_dump(mode="json", exclude_unset=True) | {"database": file}
        for column in ("amount", "share"):
            raw["columns"][column] |= {"missing": rule, "lower": -10, "upper": 30}
        twins.append(Table.model_validate(raw | {"contribution_bounds": {"rows": 1}}))
    seen: set[str] = set()
    for name, mechanism in list_mechanisms().items():
        for example in list_examples(mechanism, twins[0]):
            try:
                moved = [add_computed_columns(mechanism, replace(example, table=t)) for t in twins]
                params, _ = plan_mechanism(mechanism, moved[0].table, example.params)
                request = mechanism.data_request(params, moved[0].table)
                lacks, stores = (PrivateTable(one.table) for one in moved)
                lacks.check_request(request)
            except DpflowError:
                continue
            # A key is no number: rows without one are in no group.
            by = {getattr(request, "by", None), *getattr(request, "groupings", ())}
            if not by & {"amount", "share"} and (words := repr(request)) not in seen:
                seen.add(words)
                assert ask(lacks, request, ()) == ask(stores, request, ()), (name, words)
    assert len(seen) > 15 and any("UnboundedValues" in words for words in seen), seen


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "median": ("median", {}),
    "median, certain": ("median", {"certain": True, "delta": "1e-3"}),
    "cdf": ("cdf", {"quantiles": ["0.5"]}),
    "quantiles": ("quantiles", {"quantiles": ["0.5"]}),
    "seeded_median": ("seeded_median", {"delta": "1e-3"}),
    "interior_point": ("interior_point", {"delta": "1e-3"}),
    "approximate_median": ("approximate_median", {"delta": "1e-3"}),
}


@pytest.mark.parametrize("method", METHODS)
def test_medians_are_those_of_the_declaration(method: str, tmp_path: Path) -> None:
    """Seven values in ten are missing, and spread numbers far above stand for them: no median is near the rest."""
    file = tmp_path / "t.duckdb"
    with duckdb_file(file) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT i AS u, CASE WHEN i % 10 < 7 THEN CASE WHEN i % 2 = 0 THEN 'nan'::DOUBLE END "
            "ELSE 100 + i % 7 END AS x FROM range(4000) q(i)"
        )
    name, params = METHODS[method]
    declared = {"lower": 0, "upper": 1000, "missing": 900}
    table = Table.model_validate(
        {
            "name": "t",
            "database": file,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"x": declared},
        }
    )
    ledger = Ledger(tmp_path / "l.sqlite", create=True)
    ledger.grant("t", 1000, "0.5", table=table, principal="owner", confirm_large=True)
    plan = api.plan(name, table, name="r", scope="t", column="x", epsilon=50, **params)
    record = api.release(plan, ledger)
    value = record.result.rows[0].value
    # An atom can end a search without a number, which is no wrong one.
    assert value is None or value > 120, record.result.rows


def test_a_number_that_the_type_lacks_is_refused(make: Any) -> None:
    """Before anything is read: no grid would round it."""
    create = "CREATE TABLE data AS SELECT 1 AS u, CAST(NULL AS {}) AS v"
    for kind, number in (
        ("INTEGER", "0.5"),
        ("TINYINT", 300),
        ("DECIMAL(4,2)", "0.001"),
        ("DECIMAL(4,2)", 100),
        ("DATE", "0.5"),
        ("BOOLEAN", 2),
        ("TIMESTAMP", "1/7"),
    ):
        private = make(create.format(kind), columns={"v": {"missing": number}})
        with pytest.raises(
            PlanRefused, match="declares missing: .* declare a number that the type"
        ):
            private.check_request(UnboundedValues("v"))
