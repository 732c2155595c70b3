"""Suites of Great Expectations as contracts: the checks hold where Great Expectations' own judgement does."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from typer.testing import CliRunner

from dpflow.cli.contract import app
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.row_checks import (
    RowCheck,
    computed_columns,
    describe_check,
    make_excess,
)
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.mechanisms.check_rows import CheckRows, CheckRowsParams
from dpflow.quality.contract_file import load_contract, parse_contract
from dpflow.quality.contract_run import plan_contract
from dpflow.quality.decidability import list_decidability
from dpflow.quality.from_suite import import_expectations, read_contract, read_suites
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.language.grouping import declare_columns
from dpflow.tables.private import PrivateTable
from dpflow.tables.source_checks import describe_typed_columns, readable_types

DECLARATION = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "max_contributions": {"rows": 1, "within_bounds": ["age"]},
    "columns": {
        "age": {"lower": -200, "upper": 200, "step": 1},
        "weight": {"lower": -200, "upper": 200, "step": 1},
        "city": {"public_keys": ["Bonn", "Oslo", "Rome"]},
        "day": {},
        "person": {},
    },
}
AGE = {"type": "comparison", "column": {"name": "age"}, "operator": ">", "parameter": 30}
BOTH = {
    "type": "and",
    "conditions": [AGE, {"type": "nullity", "column": {"name": "city"}, "is_null": False}],
}
#: Expectations with what they ask; each is judged on every table.
LINEAR: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_not_be_null", {"column": "age", "mostly": 0.8}),
    ("column_values_to_not_be_null", {"column": "city", "mostly": 0.7, "row_condition": AGE}),
    ("column_values_to_be_null", {"column": "city", "mostly": 0.1}),
    ("column_values_to_be_between", {"column": "age", "min_value": 10, "max_value": 60, "mostly": 0.7}),
    ("column_values_to_be_between", {"column": "age", "min_value": 20, "strict_min": True, "mostly": 0.75}),
    ("column_values_to_be_between", {"column": "age", "max_value": 50, "mostly": 0.6, "row_condition": BOTH}),
    ("column_values_to_be_in_set", {"column": "city", "value_set": ["Oslo", "Rome"], "mostly": 0.6}),
    ("column_values_to_not_be_in_set", {"column": "city", "value_set": ["Bonn"], "mostly": 0.7}),
    ("column_value_lengths_to_equal", {"column": "city", "value": 4, "mostly": 0.9}),
    ("column_value_lengths_to_be_between", {"column": "city", "min_value": 3, "max_value": 5, "mostly": 0.9}),
    ("column_pair_values_a_to_be_greater_than_b",
     {"column_A": "age", "column_B": "weight", "mostly": 0.5, "ignore_row_if": "either_value_is_missing"}),
    ("column_pair_values_to_be_equal",
     {"column_A": "age", "column_B": "weight", "mostly": 0.1, "ignore_row_if": "either_value_is_missing"}),
    ("column_proportion_of_non_null_values_to_be_between", {"column": "age", "min_value": 0.7, "max_value": 0.95}),
    ("column_mean_to_be_between", {"column": "age", "min_value": 30, "max_value": 45}),
    ("column_sum_to_be_between", {"column": "age", "min_value": 300, "max_value": 900}),
    ("column_max_to_be_between", {"column": "age", "min_value": 70}),
    ("table_row_count_to_be_between", {"min_value": 12, "max_value": 25, "strict_max": True}),
    ("table_row_count_to_equal", {"value": 20}),
    ("column_unique_value_count_to_be_between", {"column": "person", "min_value": 15}),
]  # fmt: skip


def write_entries(kinds: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"type": f"expect_{kind}", "kwargs": dict(kwargs)} for kind, kwargs in kinds]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "visits.yml").write_text(yaml.safe_dump(DECLARATION))
    return load_table(tmp_path / "visits.yml")


def list_kept(checks: list[RowCheck], table: Table) -> list[bool]:
    """Whether the exact excess of each check is at most 0."""
    params = CheckRowsParams(checks=tuple(checks), epsilon=Fraction(1))
    table = declare_columns(table, CheckRows().computed_columns(params, table))
    query = CheckRows().make_query(params, table)
    answer = PrivateTable(table).answer(query.data_request(), ())
    moments = {moment: int(answer.moment(*moment)[0]) for moment in query.moments}
    return [make_excess(check, query).evaluate(moments) <= 0 for check in checks]


def test_a_check_holds_where_the_expectation_does(table: Table, tmp_path: Path) -> None:
    """On random rows with missing values, by Great Expectations itself; both outcomes are seen."""
    import great_expectations as gx
    import pandas as pd

    entries = write_entries(LINEAR)
    checks, left_out = import_expectations(entries, table)
    assert not left_out
    counts = [len(import_expectations([entry], table)[0]) for entry in entries]
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("p").add_dataframe_asset("a")
    batch = asset.add_batch_definition_whole_dataframe("b")
    suite = gx.ExpectationSuite("s")
    for entry in entries:
        kind = "".join(part.capitalize() for part in entry["type"].split("_"))
        suite.add_expectation(getattr(gx.expectations, kind)(**entry["kwargs"]))
    seen = set()
    for seed in range(6):
        draw = random.Random(seed)
        frame = pd.DataFrame(
            {
                "person": f"p{n}",
                "age": None if draw.random() < 0.15 else draw.randint(5, 75),
                "weight": None if draw.random() < 0.15 else draw.randint(5, 75),
                "city": draw.choice([None, "Bonn", "Oslo", "Oslo", "Rome", "Vienna"]),
            }
            for n in range(draw.choice([10, 20, 24, 30]))
        )
        with duckdb.connect(str(table.database)) as connection:
            connection.execute(
                "CREATE OR REPLACE TABLE visits AS SELECT person, age::INTEGER age, weight::INTEGER weight, "
                "city, DATE '2020-01-01' AS day FROM frame"
            )
        result = batch.get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
        kept = iter(list_kept(checks, table))
        for entry, count, theirs in zip(entries, counts, _align(entries, result), strict=True):
            ours = all([next(kept) for _ in range(count)])
            assert ours == theirs, (seed, entry)
            seen.add((entry["type"], ours))
    assert len(seen) >= 1.6 * len({entry["type"] for entry in entries})


def test_medians_of_dates_are_checks_that_run(tmp_path: Path) -> None:
    """They were imported and planned, and the run refused to compare a date with 20473."""
    days = {"day": {"lower": "2020-01-01", "upper": "2020-12-31"}}
    (tmp_path / "visits.yml").write_text(
        yaml.safe_dump(DECLARATION | {"columns": DECLARATION["columns"] | days})
    )
    table = load_table(tmp_path / "visits.yml")
    with duckdb.connect(str(table.database)) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT 'p' || i AS person, 1 AS age, 1 AS weight, 'Oslo' AS city, "
            "DATE '2020-02-01' + i::INTEGER AS day FROM range(21) t(i)"
        )
    bounds = [
        ("max_value", "2020-02-11"),
        ("max_value", "2020-02-10"),
        ("min_value", "2020-02-11"),
        ("min_value", "2020-02-12"),
    ]
    entries = write_entries(
        [("column_median_to_be_between", {"column": "day", side: end}) for side, end in bounds]
    )
    checks, left_out = import_expectations(entries, table)
    assert not left_out and list_kept(checks, table) == [True, False, True, False]


def _align(entries: list[dict[str, Any]], result: Any) -> list[bool]:
    """Their outcome of each entry; results come in an order of their own."""
    outcomes = []
    for one in result.results:
        kwargs = {
            name: json.loads(value.json()) if hasattr(value, "json") else value
            for name, value in one.expectation_config.kwargs.items()
        }
        outcomes.append((one.expectation_config.type, kwargs, bool(one.success)))
    found = []
    for entry in entries:
        wanted = entry["kwargs"].items()
        (success,) = [
            success
            for kind, kwargs, success in outcomes
            if kind == entry["type"] and all(kwargs.get(name) == value for name, value in wanted)
        ]
        found.append(success)
    return found


#: What is no check, and a word of the reason.
LEFT_OUT: list[tuple[str, dict[str, Any], str]] = [
    ("column_values_to_be_between", {"column": "age", "min_value": 1}, "give a tolerance"),
    ("column_values_to_be_unique", {"column": "age"}, "no sum over rows"),
    ("column_stdev_to_be_between", {"column": "age", "min_value": 1}, "no sum over rows"),
    ("column_to_exist", {"column": "age"}, "mode public"),
    ("column_values_to_match_regex", {"column": "city", "regex": "O.*", "mostly": 0.9}, "no sum over rows"),
    ("query_results_to_match_comparison", {"base_query": "SELECT 1"}, "SQL of its own"),
    ("column_mean_to_be_between", {"column": "day", "min_value": 1}, "declares no bounds"),
    ("column_mean_to_be_between", {"column": "age", "min_value": 1, "strict_min": True}, "strict"),
    ("column_mean_to_be_between", {"column": "age", "min_value": {"$PARAMETER": "x"}}, "parameter of a run"),
    ("column_mean_to_be_between", {"column": "age", "min_value": 1, "row_condition": AGE}, "row_condition"),
    ("column_mean_to_be_between", {"column": "weight", "min_value": 1}, "takes weight clamped to -200..200"),
    ("column_sum_to_be_between", {"column": "weight", "min_value": 1}, "within_bounds: [weight]"),
    ("column_mean_to_be_between", {"column": "age", "max_value": "50 EUR"}, "no numbers"),
    ("column_mean_to_be_between", {"column": "age", "max_value": float("nan")}, "no numbers"),
    ("column_median_to_be_between", {"column": "age", "max_value": "2020-02-01"}, "are dates"),
    ("column_quantile_values_to_be_between",
     {"column": "age", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [5]}}, "no numbers"),
    ("column_quantile_values_to_be_between",
     {"column": "age", "quantile_ranges": {"quantiles": [0.5, 0.9], "value_ranges": [[1, 50]]}}, "no numbers"),
    ("column_values_to_not_be_null", {"column": "email", "mostly": 0.9}, "there is no column"),
    ("column_values_to_not_be_null", {"column": "age", "mostly": 0.9, "row_condition": 'col("age") > 3'}, "object"),
    ("column_values_to_be_in_set", {"column": "age", "value_set": [[1]], "mostly": 0.9}, "cannot be written"),
    ("column_min_to_be_between", {"column": "age", "max_value": 3}, "no sum over rows"),
    ("column_median_to_be_between", {"column": "age", "min_value": 1, "surprise": 1}, "surprise"),
    ("column_values_to_not_be_null", {"column": "person", "mostly": 0.95}, "rows without a unit are dropped"),
    ("column_values_to_be_null", {"column": "person", "mostly": 0.05}, "rows without a unit are dropped"),
    ("column_proportion_of_non_null_values_to_be_between", {"column": "person", "min_value": 0.95}, "rows without a unit are dropped"),
    (
        "column_values_to_not_be_null",
        {"column": "age", "mostly": 0.95, "row_condition": {"type": "nullity", "column": {"name": "person"}, "is_null": True}},
        "rows without a unit are dropped",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "kwargs"), LINEAR, ids=lambda one: one if isinstance(one, str) else ""
)
@pytest.mark.parametrize("both", [False, True])
def test_no_argument_is_dropped(
    table: Table, kind: str, kwargs: dict[str, Any], both: bool
) -> None:
    """A row condition is in every check that an expectation becomes, or the expectation is none; so with both bounds."""
    bounds = {"min_value": kwargs.get("max_value"), "max_value": kwargs.get("min_value")}
    wider = {name: value for name, value in bounds.items() if both and value is not None}
    (entry,) = write_entries([(kind, {**wider, **kwargs, "row_condition": AGE})])
    for check in import_expectations([entry], table, Fraction(1, 50))[0]:
        assert check.among is not None and '"age" > 30' in check.among, check


def test_what_is_no_check_is_listed_with_its_reason(table: Table) -> None:
    """One reason each; a tolerance makes a check of what allows no row."""
    entries = write_entries([(kind, kwargs) for kind, kwargs, _ in LEFT_OUT])
    checks, left_out = import_expectations(entries, table)
    assert not checks
    for one, (kind, _, words) in zip(left_out, LEFT_OUT, strict=True):
        assert one.expectation == f"expect_{kind}" and words in one.reason, one
    ((check,), _) = import_expectations(entries[:1], table, Fraction(1, 50))
    assert (check.at_most, check.among) == (Fraction(1, 50), '("age" IS NOT NULL)')


def test_a_checkpoint_becomes_a_contract(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its suites are found in its project; the contract's file loads, names what it leaves out, and a name that
    leaves the project is refused.
    """
    project = tmp_path / "gx"
    files = {
        "checkpoints/daily": {"name": "daily", "validation_definitions": [{"name": "v"}]},
        "validation_definitions/v": {"name": "v", "suite": {"name": "visits"}},
        "expectations/visits": {"name": "visits", "expectations": write_entries(
            [("table_row_count_to_be_between", {"min_value": 100}), ("column_values_to_be_unique", {"column": "age"})])},
    }  # fmt: skip
    for name, content in files.items():
        path = project / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    options = ["--table", "visits.yml", "--scope", "visits", "--output", "contract.yml"]
    done = CliRunner().invoke(app, ["from-suite", "gx/checkpoints/daily.json", *options])
    assert done.exit_code == 0, done.output
    contract = load_contract(tmp_path / "contract.yml")
    assert [(c.check, c.limit) for c in contract.checks] == [("rows", 100)]
    assert (tmp_path / "contract.yml").read_text().splitlines()[-2:] == [
        "# not checked: expect_column_values_to_be_unique of age: is no sum over rows, and no quantile",
        "# rows without person are in no check, and in all of Great Expectations",
    ]
    # A second table's suite would be asked of this one.
    for asset, problem in (("machines", r"several tables \(machines, visits\)"), ("visits", "")):
        for name, of in (("v", "visits"), ("w", asset)):
            data = {"datasource": {"name": "d"}, "asset": {"name": of}, "batch_definition": {"name": name}}  # fmt: skip
            definition = {"name": name, "suite": {"name": "visits"}, "data": data}
            (project / f"validation_definitions/{name}.json").write_text(json.dumps(definition))
        both = {"validation_definitions": [{"name": "v"}, {"name": "w"}]}
        (project / "checkpoints/daily.json").write_text(json.dumps(both))
        if problem:
            with pytest.raises(InvalidInput, match=problem):
                read_suites(project / "checkpoints" / "daily.json")
        else:
            assert len(read_suites(project / "checkpoints" / "daily.json")) == 1
    (project / "checkpoints/daily.json").write_text(
        json.dumps({"validation_definitions": [{"name": "../../secret"}]})
    )
    with pytest.raises(InvalidInput, match="no usable name"):
        read_suites(project / "checkpoints" / "daily.json")
    with pytest.raises(InvalidInput, match="neither a suite nor a checkpoint"):
        read_suites(project / "validation_definitions" / "v.json")


def test_the_plan_says_what_can_be_decided(table: Table, tmp_path: Path) -> None:
    """At a number of rows, from the noise alone; the cost is split so that more checks can. An epsilon that is
    said to be enough is enough.
    """
    fields = {
        "table": "visits.yml", "mode": "metered", "scope": "s", "epsilon": "1", "checks": [
            {"name": "few", "check": "violations", "condition": "age > 90", "at_most": "0.02"},
            {"name": "known", "check": "unknown_keys", "column": "city", "at_most": "0.2"},
            {"name": "middle", "check": "quantile", "column": "age", "p": "0.5", "at_most": 60},
            {"name": "units", "check": "units", "at_least": 1},
            {"name": "none", "check": "violations", "condition": "age > 190", "at_most": 0},
        ],
    }  # fmt: skip

    def decide(**more: Any) -> dict[str, Any]:
        contract = parse_contract(fields | more, tmp_path)
        ((plan, _),) = plan_contract(contract, (), Registry.load())
        return {one.check: one for one in list_decidability(contract, plan)}

    split, even = decide(rows=270), decide()
    assert {name for name, one in even.items() if one.decides is not None} == {"none"}
    assert even["none"].describe() == split["none"].describe() == "no"
    unsplit = {name for name, one in even.items() if one.min_rows and one.min_rows <= 270}
    decided = {name for name, one in split.items() if one.decides}
    assert unsplit < decided == {"known", "middle"}, (even, split)
    enough = decide(rows=270, epsilon=f"{split['few'].min_epsilon * 1.05:.4f}")
    assert enough["few"].decides and split["few"].describe().startswith("from epsilon")
    assert decide(rows=even["few"].min_rows * 2)["few"].decides


def test_rows_alone_decide_whether_bounds_above_them_can_be_decided(
    table: Table, tmp_path: Path
) -> None:
    """At most so many rows, or so large a sum, is told kept up to a number of rows: no units are in it."""
    bounds = {
        "few": ({"check": "rows", "at_most": 10000}, "up to "),
        "narrow": ({"check": "rows", "at_most": 1}, "no"),
        "total": ({"check": "sum", "column": "age", "at_most": 100000}, ""),
        "never": ({"check": "mean", "column": "age", "at_most": -10}, "from "),
        "units": ({"check": "units", "at_most": 9}, "depends on the units"),
    }
    fields = {
        "table": "visits.yml", "mode": "metered", "scope": "s", "epsilon": "1",
        "checks": [{"name": name} | bound for name, (bound, _) in bounds.items()],
    }  # fmt: skip

    def decide(**more: Any) -> dict[str, Any]:
        contract = parse_contract(fields | more, tmp_path)
        ((plan, _),) = plan_contract(contract, (), Registry.load())
        return {one.check: one for one in list_decidability(contract, plan)}

    found = decide()
    for name, (_, words) in bounds.items():
        assert found[name].describe().startswith(words), found[name]
        assert ("units" in found[name].describe()) == (name == "units")
    weights = {"checks": [one | {"weight": 2} for one in fields["checks"]]}
    for name, end, step in [("few", "max_rows", 1), ("never", "min_rows", -1)]:
        rows = getattr(found[name], end)
        assert decide(rows=rows, **weights)[name].decides
        assert not decide(rows=rows + step, **weights)[name].decides


def test_columns_in_which_nan_is_something_else_are_named(tmp_path: Path) -> None:
    """To Great Expectations over DuckDB it is a value above all bounds; to checks it is missing."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT i AS u, i::DOUBLE AS x, i AS n FROM range(9) r(i)"
        )
    fields = {"name": "t", "database": "t.duckdb", "privacy_unit": {"column": "u"}}
    fields |= {"contribution_bounds": {"rows": 1}, "columns": {name: {} for name in "uxn"}}
    (tmp_path / "t.yml").write_text(yaml.safe_dump(fields))
    asked = [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": name, "max_value": 5, "mostly": 0.9},
        }
        for name in "xn"
    ]
    suite = tmp_path / "s.json"
    suite.write_text(json.dumps({"name": "s", "expectations": asked}))
    made = read_contract(suite, str(tmp_path / "t.yml"), "1", "t", None, None)
    assert made.nan_columns == ("x",) and "# NaN in x is a missing value here" in made.text
    assert parse_contract(yaml.safe_load(made.text), tmp_path).checks


def test_a_missing_column_loses_its_own_type_alone(table: Table) -> None:
    """What is declared and not in the source has no type; the others keep theirs."""
    with duckdb.connect(str(table.database)) as connection:
        connection.execute("CREATE TABLE visits (person VARCHAR, age DOUBLE)")
    columns = {"person": Column(), "gone": Column(), "age": Column()}
    declared = table.model_copy(update={"columns": columns})
    types = {row["column"]: row["type"] for row in describe_typed_columns(declared)}
    assert types == {"person": "VARCHAR", "gone": "", "age": "DOUBLE"}
    assert not readable_types(declared.model_copy(update={"name": "nowhere"}))


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({"check": "nulls", "column": "person"}, True),
        ({"condition": "age < 0 OR Person  is NULL"}, True),
        ({"condition": 'NOT ("person" IS NOT NULL)'}, True),
        ({"condition": "NOT (PERSON IS NOT NULL AND age > 0)"}, True),
        ({"condition": "person IS NOT NULL"}, True),
        ({"condition": "NOT (person = person)"}, True),
        ({"condition": "coalesce(person, 'none') = 'none'"}, True),
        ({"condition": "CASE WHEN person = 'x' THEN 0 ELSE 1 END = 1"}, True),
        ({"condition": "(person || '') IS NULL"}, True),
        ({"condition": "person /* of */ IS /* nobody */ NULL"}, True),
        ({"condition": "age < 0", "among": "NOT (person IS NOT NULL)"}, True),
        ({"condition": "age < 0", "among": "coalesce(person, '') = ''"}, True),
        ({"condition": "person IS NULL", "among": "age > 0"}, True),
        ({"condition": "age < 0", "among": "NOT (person IS NULL) AND age > 0"}, False),
        ({"condition": "person LIKE 'x%' OR age IS NULL"}, False),
        ({"condition": "city = 'person IS NULL'"}, False),
        ({"check": "key_share", "column": "city", "condition": "person IS NULL"}, True),
        ({"condition": "age < 0", "among": "person IS NULL"}, True),
        ({"condition": "person LIKE 'x%'", "among": "person IS NOT NULL"}, False),
        ({"condition": "city IS NULL"}, False),
        ({"check": "nulls", "column": "age"}, False),
    ],
)
@pytest.mark.parametrize("missing", ["drop", "one-unit"])
def test_no_check_is_about_rows_without_a_unit(
    table: Table, fields: dict[str, Any], is_refused: bool, missing: str
) -> None:
    """None is counted, or no more than a unit's bounds: such a check would be kept whatever the rows are. What a check
    asks says of which rows it is.
    """
    unit = table.privacy_unit.model_copy(update={"missing": missing})
    table = table.model_copy(update={"privacy_unit": unit})
    check = RowCheck.model_validate(
        {"check": "violations", "at_most": "0.05", "name": "c"} | fields
    )
    assert describe_check(check, table).endswith("of rows with a unit") == (missing == "drop")
    if is_refused:
        with pytest.raises(PlanRefused, match="asks which rows have no person"):
            declare_columns(table, computed_columns([check], table))
    else:
        assert "check_c" in declare_columns(table, computed_columns([check], table)).columns
