"""Macros beside a published table answer as Python does."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.distribution import SHARE_BELOW, Distribution
from dpflow.core.contract.printed_numbers import round_between
from dpflow.core.contract.results import Result, Row
from dpflow.tables import PublishedRelease, publish

EDGES = [("-2.5", 0.1, 0.05), ("0.0", 0.4, 0.02), ("1.5", 0.4, 0.2), ("100.0", 0.97, 0.02)]
DAYS = [("2013-01-01", 0.25, 0.05), ("2013-01-11", 0.55, 0.05)]
#: Whole numbers, of which most rows have one; doubles of the same kind.
ATOMS = [("6", 0.1, 0.05), ("7", 0.2, 0.05), ("8", 0.8, 0.05), ("20", 0.9, 0.05)]
DOUBLES = [
    ("6.0", 0.1, 0.05),
    ("7.0", 0.2, 0.05),
    ("7.000000000000001", 0.8, 0.05),
    ("20.0", 0.9, 0.05),
]


def published(
    file: Path, edges: list[tuple[str, float, float]], name: str = "minutes", at: int = 1
) -> None:
    rows = [Row("", "quantile 1/2", 3.0), *(Row(k, SHARE_BELOW, v, h) for k, v, h in edges)]
    release = PublishedRelease(
        *(f"id {name} {at}", name, "", "cdf", "1", "0", Result(tuple(rows))),
        released_at=dt.datetime(2020, 1, at, tzinfo=dt.UTC),
    )
    publish(file, "my releases", release)


def ask(file: Path, question: str, *words: Any) -> dict[str, Any]:
    with duckdb.connect(str(file), read_only=True) as connection:
        (found,) = connection.execute(
            f'SELECT "my releases_{question}"(?, ?)', list(words)
        ).fetchone()
    return dict(found)


@pytest.mark.parametrize("x", [-9, -2.5, -1, 0, 0.7, 1.5, 3, 99.99, 100, 1e6])
def test_shares(tmp_path: Path, x: float) -> None:
    """At edges, between them and outside."""
    published(tmp_path / "public.duckdb", EDGES)
    found = ask(tmp_path / "public.duckdb", "share_below", "minutes", x)
    assert found == pytest.approx(vars(Distribution.from_rows(EDGES, None).share_below(x)))


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.4, 0.41, 0.9, 0.96, 0.99])
def test_quantiles(tmp_path: Path, p: float) -> None:
    """With no end where nothing bounds it. Python's upper end is the last double below SQL's, and its value has no
    digits that the interval does not leave.
    """
    published(tmp_path / "public.duckdb", EDGES)
    found = ask(tmp_path / "public.duckdb", "quantile", "minutes", p)
    estimate = Distribution.from_rows(EDGES, None).quantile(p)
    expected = vars(estimate)
    assert found.pop("only_a_bound") is estimate.only_a_bound
    assert {name: found[name] is None for name in found} == {n: expected[n] is None for n in found}
    if None not in found.values():
        found["value"] = round_between(found["value"], expected["low"], expected["high"])
    for name in found:
        assert found[name] == (
            None if expected[name] is None else pytest.approx(expected[name], abs=1e-9)
        )


@pytest.mark.parametrize("edges", [ATOMS, DOUBLES], ids=["whole", "doubles"])
@pytest.mark.parametrize("p", [0.5, 0.83])
def test_a_value_of_many_rows_is_shown_as_in_python(
    tmp_path: Path, edges: list[tuple[str, float, float]], p: float
) -> None:
    """Its rank is exact, though the rows up to it are not; a value of a wide rank is none in both."""
    published(tmp_path / "public.duckdb", edges)
    shown = ask(tmp_path / "public.duckdb", "quantile", "minutes", p)
    step = Fraction(1) if edges is ATOMS else None
    expected = Distribution.from_rows(edges, step).quantile(p).value
    assert shown["value"] == (None if expected is None else pytest.approx(expected))
    assert p > 0.5 or expected == 7


def test_a_wide_rank_is_no_number(tmp_path: Path) -> None:
    """Both ends stay."""
    wide = [("0.0", 0.2, 0.05), ("1.5", 0.8, 0.05)]
    published(tmp_path / "public.duckdb", wide)
    shown = ask(tmp_path / "public.duckdb", "quantile", "minutes", 0.5)
    assert shown == {"value": None, "low": 0.0, "high": 1.5, "only_a_bound": True}
    assert Distribution.from_rows(wide, None).quantile(0.5).value is None


def test_dates_and_several_releases(tmp_path: Path) -> None:
    """A name means what was settled last; an id means that release, and nothing of another."""
    file = tmp_path / "public.duckdb"
    published(file, EDGES, at=1)
    published(file, DAYS, at=2)
    published(file, [("0.0", 0.9, 0.0)], "other", at=3)
    assert ask(file, "share_below", "minutes", dt.date(2013, 1, 6))["value"] == pytest.approx(0.4)
    assert ask(file, "share_below", "minutes", "2013-01-01")["low"] == pytest.approx(0.2)
    assert ask(file, "share_below", "id minutes 1", 0)["value"] == 0.4
    # The day before the sixth: less than .4 are below the sixth, and .4 up to the day before it.
    assert ask(file, "quantile", "minutes", 0.4)["value"] == pytest.approx(
        dt.datetime(2013, 1, 5, tzinfo=dt.UTC).timestamp()
    )
    days = Distribution.from_rows(DAYS, Fraction(1), "date")
    assert days.quantile(0.4).value == "2013-01-05"
    assert ask(file, "share_below", "nobody's", 0)["value"] is None


def test_a_name_means_the_latest_interval(tmp_path: Path) -> None:
    """A backfill of an older day is settled later, and the name goes on to mean the newer day."""
    file = tmp_path / "public.duckdb"
    for day, at in ((2, 1), (1, 2)):
        edges = ((day - 1, 0.1), (day, 0.5), (day + 1, 0.9))
        rows = tuple(Row(f"{edge}", SHARE_BELOW, share, 0.0) for edge, share in edges)
        run = f"dag/task/2026-01-0{day}T00:00:00+00:00/2026-01-0{day + 1}T00:00:00+00:00"
        settled = dt.datetime(2026, 2, at, tzinfo=dt.UTC)
        about = PublishedRelease(
            f"id {day}", "daily", "", "cdf", "1", "0", Result(rows), run=run, released_at=settled
        )
        publish(file, "my releases", about)
    # Half of the rows are below 2, and up to 1.
    assert ask(file, "quantile", "daily", 0.5)["value"] == 1


def test_other_mechanisms_make_no_macro(tmp_path: Path) -> None:
    """And publishing the same release again changes nothing."""
    file = tmp_path / "public.duckdb"
    publish(
        file, "t", PublishedRelease("1", "n", "", "count", "1", "0", Result((Row("", "count", 3),)))
    )
    with duckdb.connect(str(file)) as connection:
        query = (
            "SELECT count(*) FROM duckdb_functions() WHERE function_name LIKE 't\\_%' ESCAPE '\\'"
        )
        assert connection.execute(query + " AND NOT internal").fetchone() == (0,)
    published(file, EDGES)
    published(file, EDGES)
    assert ask(file, "share_below", "minutes", 0)["value"] == 0.4


@pytest.mark.parametrize("x", [2**60, str(2**60), 2.0**60])
def test_edges_that_doubles_cannot_tell_apart(tmp_path: Path, x: Any) -> None:
    """A heavy whole number beyond 2^53 has edges at itself and at the next: neither bounds it here."""
    file = tmp_path / "public.duckdb"
    published(file, [("0", 0.05, 0.01), (str(2**60), 0.1, 0.01), (str(2**60 + 1), 0.9, 0.01)])
    found = ask(file, "share_below", "minutes", x)
    assert found["low"] == pytest.approx(0.04) and found["high"] == 1


def test_edges_of_many_digits_that_are_doubles(tmp_path: Path) -> None:
    """Their text is the double's own, and timestamps of today are told apart: these do bound."""
    file = tmp_path / "public.duckdb"
    published(file, [(repr(1 / 3), 0.3, 0.01), (repr(2e20 / 3), 0.6, 0.01)])
    for x, share in ((1 / 3, 0.3), (2e20 / 3, 0.6)):
        found = ask(file, "share_below", "minutes", x)
        assert (found["low"], found["high"]) == pytest.approx((share - 0.01, share + 0.01))
    published(file, [("2013-01-01 00:00:00.000001", 0.3, 0.01)], at=2)
    found = ask(file, "share_below", "minutes", dt.datetime(2013, 1, 1, 0, 0, 0, 1))
    assert (found["low"], found["high"]) == pytest.approx((0.29, 0.31))
