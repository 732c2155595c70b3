"""Plans that run through ranges: what a certificate covers was tried, or is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.audit_cells import describe_cells, merge_cells
from dpflow.core.contract.contribution import PeriodLimits
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupedSums, UnboundedValues
from dpflow.core.contract.results import Result
from dpflow.engine.releases import certificates
from dpflow.engine.releases.certificates import MechanismCertificate
from dpflow.mechanisms.bounds import Bounds
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.registry import Registry
from dpflow.testing.code_constants import list_constants
from dpflow.testing.examples import (
    EXAMPLE_TABLE,
    examples_for,
    plan_mechanism,
    read_examples,
    typical_answer,
)
from dpflow.testing.generated_checks import find_violation
from dpflow.testing.generated_ranges import MAX_KEYS, range_cases
from dpflow.testing.generated_tables import (
    MAX_UNITS,
    EqualUnits,
    _distinct_units,
    _name_tables,
    answer_units,
    generate_cases,
    list_sizes,
    tiny_rows,
)
from dpflow.testing.harness import LimitedSource, NotConformant, StreamSource
from dpflow.testing.mechanism_audit import _check_conduct, audit_mechanism
from dpflow.testing.neighbours import answer_fingerprint
from dpflow.testing.sensitivity_audit import check_moves
from dpflow.testing.work import count_work
from tests.smallworld import PASSED_AUDIT
from tests.testing.corpus import HIDDEN, broken_ranges, broken_releases


@pytest.fixture(autouse=True)
def tests_have_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder is no package."""
    monkeypatch.setattr(certificates, "digest_package", lambda name: f"of {name}")


@pytest.mark.parametrize(
    ("mechanism", "changes"),
    [HIDDEN[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in HIDDEN[1:4])],
    ids=lambda one: type(one).__name__,
)
def test_a_fault_that_no_audit_guesses_is_covered_by_no_certificate(
    mechanism: Mechanism[Any], changes: dict[str, Any]
) -> None:
    """The plan that hits it was not tried, and a scale of its own is covered as it was tried alone."""
    violation, coverage = find_violation(mechanism, 1 / 32)
    assert violation is None
    case = generate_cases(mechanism)[0]
    params, _ = plan_mechanism(mechanism, case.table, {**case.params, **changes})
    audit = PASSED_AUDIT | {
        "mechanism": mechanism.name,
        "version": 1,
        "arithmetic": "own arithmetic",
        "ranges": False,
        "coverage": {name: sorted(values) for name, values in coverage.cells.items()},
        "plans": sorted(coverage.plans),
    }
    certificate = MechanismCertificate.of_audit(mechanism, "corpus", audit)
    tried = plan_mechanism(mechanism, case.table, case.params)[0]
    assert not certificate.list_uncovered(describe_cells(case.table, tried))
    assert certificate.list_uncovered(describe_cells(case.table, params))


def test_constants_of_code_are_tried_however_they_are_written() -> None:
    """Folded, as a length, in a table, as an argument of a partial, as a class attribute."""
    for kind, number in (
        (broken_ranges.HalfFromManyKeys, 300),
        (broken_ranges.HalfAtSomeKeys, 38),
        (broken_ranges.WrongWeight, 73),
        (broken_ranges.ElevenRows, 11),
        (broken_ranges.PeakCappedHigh, 2**17),
        (broken_ranges.ExactAtALongText, 777),
    ):
        assert number in list_constants(kind()).numbers, kind
    # Whoever counts its calls reads the same code.
    with count_work(counted := broken_ranges.HalfFromManyKeys()):
        assert 300 in list_constants(counted).numbers
    keys = merge_cells(case.cells for case in range_cases(broken_ranges.HalfFromManyKeys()))
    assert {"299", "300", "301"} <= keys["by: keys"]


def test_generated_plans_reach_the_ends_of_every_range() -> None:
    """Of whatever a mechanism can read; each plan is another one."""
    cases = range_cases(Count())
    cells = merge_cells(case.cells for case in cases)
    assert {"1", "400", "5", "7"} <= cells["by: keys"] and {"1/1000", "100", "3/2"} <= cells[
        "epsilon"
    ]
    assert {"1", "1000"} <= cells["rows of a unit in a group"]
    assert {"1", "100", "3"} <= cells["groups of a unit"]
    assert {"holdout", "backend spark", "one row a unit"} <= cells["declares"]
    # Names are in no cell, nor what is written though it is the default.
    plans = {
        (
            frozenset(case.cells.items()),
            case.table.model_dump_json(),
            *sorted(case.table.model_fields_set),
        )
        for case in cases
    }
    assert len(plans) == len(cases) > 100


def test_tables_have_one_name_where_their_answers_are_equal() -> None:
    """Of each kind of request, tables of one and two units: names add up over units, and answers are compared."""
    kinds = dict[type, Any]()
    for mechanism in Registry.load().mechanisms.values():
        cases = generate_cases(mechanism) if isinstance(mechanism, Mechanism) else ()
        for case in cases[:40]:
            params, _ = plan_mechanism(mechanism, case.table, case.params)
            request = mechanism.data_request(params, case.table)
            kinds.setdefault(
                (type(request), getattr(request, "keys", None) is None), (request, case.table)
            )
    assert len(kinds) >= 7
    for request, table in kinds.values():
        try:
            units = _distinct_units(request, table)
        except TypeError:  # without a reference answer
            continue
        name_tables, named = _name_tables(request, table, units), set[Any]()
        for company in ((), *((i,) for i in range(len(units)))):
            names, alone = name_tables(company)
            shared = [units[i] for i in company]
            tables = [shared, *([*shared, unit] for unit in units)]
            answers = [answer_fingerprint(answer_units(request, table, one)) for one in tables]
            named |= {*zip([alone, *names], answers, strict=True)}
        assert len(named) == len(dict(named)) == len({answer for _, answer in named}), request


def test_a_draw_for_as_many_keys_as_plans_have_is_not_without_an_end() -> None:
    """One for 389 keys was refused, and the audit refuted a sound mechanism."""
    keys = [str(number) for number in range(MAX_KEYS)]
    kind = EXAMPLE_TABLE.column("kind").model_copy(update={"public_keys": tuple(keys)})
    table = EXAMPLE_TABLE.model_copy(update={"columns": {**EXAMPLE_TABLE.columns, "kind": kind}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "amount", "epsilon": "1", "by": "kind"})
    answer = typical_answer(Bounds().data_request(params, table), table)
    result = Bounds().draw(params, table, answer, LimitedSource(StreamSource(0)))
    assert len({row.key for row in result.rows}) == MAX_KEYS


@pytest.mark.parametrize("mechanism", [Count(), PrivateHistogram()], ids=lambda one: one.name)
def test_answers_on_equal_units_are_those_of_the_reference(mechanism: Mechanism[Any]) -> None:
    """Multiples of one unit's answer, also beside a unit without values."""
    for case in generate_cases(mechanism)[:8]:
        params, _ = plan_mechanism(mechanism, case.table, case.params)
        request = mechanism.data_request(params, case.table)
        assert isinstance(request, GroupedSums)
        units, unit = EqualUnits(request, case.table), tuple(tiny_rows(case.table)[-1:])
        for n, absent in ((0, 0), (1, 0), (5, 1), (7, 0)):
            listed = [*[unit] * n, *[(dict.fromkeys(unit[0]),)] * absent]
            expected = answer_units(request, case.table, listed)
            assert answer_fingerprint(units.answer(n, absent)) == answer_fingerprint(expected)
    assert np.all(units.answer(10**6).rows <= 10**6)


def test_values_that_stand_by_themselves_are_not_repeated_without_end() -> None:
    """Of a column without bounds each value is in memory: as many as where units are counted one by one."""
    units = EqualUnits(UnboundedValues("amount"), generate_cases(Count())[0].table)
    assert units.most == MAX_UNITS and len(units.answer(MAX_UNITS).groups[0]) == MAX_UNITS


class ExactBeside(Count):
    """The exact number where something public that no parameter names has some value."""

    def __init__(self, fails: Callable[[Any, Table], object]) -> None:
        self.fails = fails

    def draw(self, params: Any, table: Table, answer: Any, source: Any) -> Result:
        result = super().draw(params, table, answer, source)
        if not self.fails(params, table):
            return result
        exact = zip(result.rows, answer.rows.tolist(), strict=True)
        return Result(tuple(replace(row, value=number) for row, number in exact))


def has_column(test: Callable[[Any], object]) -> Callable[[Any, Table], object]:
    return lambda _, table: any(map(test, table.columns.values()))


BESIDE: dict[str, Callable[[Any, Table], object]] = {
    "no columns": lambda _, table: not table.columns,
    "unit not declared": lambda _, table: table.privacy_unit.column not in table.columns,
    "many columns": lambda _, table: len(table.columns) > 12,
    "dates": has_column(lambda column: column.holds_dates),
    "times": has_column(lambda column: column.bounds_are_times and not column.holds_dates),
    "computed": has_column(lambda column: column.expression),
    "limits by period": has_column(lambda column: isinstance(column.groups, PeriodLimits)),
    "bounded columns": lambda _, table: (
        sum(c.lower is not None for c in table.columns.values()) > 2
    ),
    "written default": lambda params, _: (
        "noise" in params.model_fields_set and params.noise == "auto"
    ),
    "no block": lambda _, table: table.block is None and table.protects == "unit",
    "max rows": lambda _, table: table.max_contributions and table.max_contributions.rows > 999,
}


@pytest.mark.parametrize(
    "name",
    [*list(BESIDE)[:4], *(pytest.param(one, marks=pytest.mark.slow) for one in list(BESIDE)[4:])],
)
def test_a_fault_by_what_no_parameter_names_is_found(name: str) -> None:
    """Columns that others declared decide nothing in a plan that is covered."""
    violation, _ = find_violation(ExactBeside(BESIDE[name]), 1 / 16, is_whole=True)
    assert violation is not None


class SinglePrecision(Count):
    """Right up to 2^24 rows; beside many small constants one that is large."""

    LIMITS, LARGE = tuple(range(2, 90)), 4_000_000

    def draw(self, params: Any, table: Table, answer: Any, source: Any) -> Result:
        rows = answer.rows.astype(np.float32).astype(np.int64)
        return super().draw(params, table, replace(answer, rows=rows), source)


def test_tables_of_many_rows_are_tried() -> None:
    """Where floats of few bits round, at powers of two, and at each constant, however many there are."""
    assert check_moves(SinglePrecision(), 1 / 8).excess
    sizes = {*list_sizes(SinglePrecision())}
    assert {3_999_999, 4_000_000, 4_000_001, 2**21 - 1, 2**24 + 1, 2**40} <= sizes
    assert max(list_sizes(SinglePrecision(), 20_000)) == 20_000


@pytest.mark.parametrize("kind", [broken_releases.Talkative, broken_releases.WritesFile])
def test_an_audit_refutes_what_a_draw_does_beside_its_result(kind: Any) -> None:
    """It printed, or wrote a file, and was certified."""
    with pytest.raises(NotConformant, match="draw printed"):
        _check_conduct(kind(), examples_for(kind()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [broken_releases.Talkative, broken_releases.WritesFile])
def test_its_verdict_is_refuted(kind: Any) -> None:
    found = audit_mechanism(kind(), seconds=2)
    assert found.verdict == "refuted" and "draw printed" in found.reason


@pytest.mark.slow
def test_a_named_plan_is_tried_and_covered() -> None:
    """Whatever its names are; others are not, where scales are a mechanism's own."""
    mechanism = broken_ranges.SoundWeight()
    (example, *_) = examples_for(mechanism)
    named = replace(example, params={**example.params, "epsilon": "0.123", "label": "cheap"})
    found = audit_mechanism(mechanism, seconds=2, plans=[named])
    certificate = MechanismCertificate.of_audit(mechanism, "corpus", found.to_json())
    params, _ = plan_mechanism(mechanism, named.table, named.params)
    assert not certificate.ranges and not certificate.list_uncovered(
        describe_cells(named.table, params)
    )
    other = params.model_copy(update={"weight": 61})
    assert certificate.list_uncovered(describe_cells(named.table, other))


@pytest.mark.parametrize(
    "name",
    ["learn_class", "learn_points", "learn_label_private", "predict_value", "predict_walk", "sum"],
)
def test_a_mechanism_that_takes_no_standard_plan_has_those_of_its_examples(name: str) -> None:
    registry = Registry.load()
    examples = read_examples(registry.collect_examples(name))
    cases = range_cases(registry.mechanisms[name], examples)
    assert len([*itertools.islice(cases, 20)]) == 20
