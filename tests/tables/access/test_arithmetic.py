"""Expressions over whole numbers are what Python computes, within their stated range, at every end of a type."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from duckdb_files import duckdb_file

from dpflow.errors import PlanRefused
from dpflow.tables.access.arithmetic import (
    BIGINT,
    DUCKDB,
    HUGEINT,
    RANGES,
    SPARK,
    Whole,
    choose,
    coalesce,
    date_difference,
    days_of_date,
    decimal_digits,
    greatest,
    hash_remainder,
    least,
    sum_remainders,
)

#: An expression and what it means for the values of a and b; None is NULL.
Meant = tuple[Whole, Callable[[int | None, int | None], int | None]]
_CONSTANTS = (0, 1, 2, 7, 1000, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -1, -(2**63), 2**126)


def _lift(function: Callable[..., int]) -> Callable[..., int | None]:
    return lambda *values: None if None in values else function(*values)


def _grow(meant: Meant, other: Meant, chance: random.Random) -> Meant:
    """One operation more."""
    (x, f), (y, g) = meant, other
    n, m = chance.choice(_CONSTANTS), chance.choice((1, 2, 3, 1000, 2**40))
    low, high = sorted((n, chance.choice(_CONSTANTS)))
    both = {
        "+": (lambda: x + y, lambda a, b: _lift(lambda p, q: p + q)(f(a, b), g(a, b))),
        "-": (lambda: x - y, lambda a, b: _lift(lambda p, q: p - q)(f(a, b), g(a, b))),
        "*": (lambda: x * y, lambda a, b: _lift(lambda p, q: p * q)(f(a, b), g(a, b))),
        "+n": (lambda: x + n, lambda a, b: _lift(lambda p: p + n)(f(a, b))),
        "-n": (lambda: x - n, lambda a, b: _lift(lambda p: p - n)(f(a, b))),
        "*n": (lambda: x * n, lambda a, b: _lift(lambda p: p * n)(f(a, b))),
        "neg": (lambda: -x, lambda a, b: _lift(lambda p: -p)(f(a, b))),
        "abs": (lambda: abs(x), lambda a, b: _lift(abs)(f(a, b))),
        "square": (lambda: x.square(), lambda a, b: _lift(lambda p: p * p)(f(a, b))),
        "floor_to": (lambda: x.floor_to(m), lambda a, b: _lift(lambda p: p // m * m)(f(a, b))),
        "floor_by": (
            lambda: x.floor_by(x.dialect.number(m)),
            lambda a, b: _lift(lambda p: p // m)(f(a, b)),
        ),
        "//": (lambda: abs(x) // m, lambda a, b: _lift(lambda p: abs(p) // m)(f(a, b))),
        "%": (lambda: abs(x) % m, lambda a, b: _lift(lambda p: abs(p) % m)(f(a, b))),
        ">>": (lambda: abs(x) >> 5, lambda a, b: _lift(lambda p: abs(p) >> 5)(f(a, b))),
        "&": (lambda: abs(x) & 1023, lambda a, b: _lift(lambda p: abs(p) & 1023)(f(a, b))),
        "half": (
            lambda: x.divide_half_away(m),
            lambda a, b: _lift(lambda p: (1 if p >= 0 else -1) * ((2 * abs(p) + m) // (2 * m)))(
                f(a, b)
            ),
        ),
        "clamp": (
            lambda: x.clamp(low, high),
            lambda a, b: _lift(lambda p: min(max(p, low), high))(f(a, b)),
        ),
        "coalesce": (lambda: coalesce(x, n), lambda a, b: n if f(a, b) is None else f(a, b)),
        "least": (lambda: least(x, y, n), lambda a, b: _extreme(min, f(a, b), g(a, b), n)),
        "greatest": (lambda: greatest(x, y), lambda a, b: _extreme(max, f(a, b), g(a, b))),
        "choose": (
            lambda: choose([(f"{x} IS NULL", y)], x),
            lambda a, b: g(a, b) if f(a, b) is None else f(a, b),
        ),
        "wide": (lambda: x.to(x.dialect.types[-1]), f),
    }
    make, mean = both[chance.choice(list(both))]
    return make(), mean


def _extreme(pick: Callable[[list[int]], int], *values: int | None) -> int | None:
    there = [value for value in values if value is not None]
    return pick(there) if there else None


ENDS = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**62, 2**63 - 1, None)
PAIRS = [(a, b) for a in ENDS for b in ENDS]


@pytest.mark.parametrize("seed", range(4))
def test_expressions_are_what_python_computes(seed: int) -> None:
    """Random ones, at the ends of 64 bits: no error, the exact number, and within the range."""
    with duckdb_file() as connection:
        rows = ", ".join(
            f"(CAST({'NULL' if a is None else a} AS BIGINT), CAST({'NULL' if b is None else b} AS BIGINT))"
            for a, b in PAIRS
        )
        connection.execute(f"CREATE TABLE t AS SELECT * FROM (VALUES {rows}) AS v(a, b)")
        chance, made = random.Random(seed), list[Meant]()
        while len(made) < 60:
            whole = RANGES["bigint"]
            pool: list[Meant] = [
                (DUCKDB.column("a", *whole), lambda a, b: a),
                (DUCKDB.column("b", *whole), lambda a, b: b),
            ]
            for _ in range(chance.randint(1, 4)):
                # What is refused is left out.
                with contextlib.suppress(PlanRefused, ValueError):
                    pool.append(_grow(chance.choice(pool), chance.choice(pool), chance))
            if len(pool[-1][0].sql) < 4000:
                made.append(pool[-1])
        for value, mean in made:
            got = connection.execute(f"SELECT {value}, typeof({value}) FROM t").fetchall()
            for (a, b), (number, kind) in zip(PAIRS, got):
                assert number == mean(a, b), (value.sql, a, b)
                assert number is None or value.low <= number <= value.high, value.sql
                assert kind == value.type.name, value.sql


def test_what_no_type_holds_is_refused() -> None:
    """Before a query is written: by the range alone."""
    wide = DUCKDB.column("x", -(2**64), 2**64)
    assert wide.type is HUGEINT
    with pytest.raises(PlanRefused, match="bits"):
        wide * wide
    with pytest.raises(PlanRefused):
        DUCKDB.column("x", 0, 2**63).to(BIGINT)
    with pytest.raises(PlanRefused):
        DUCKDB.sum_rows(DUCKDB.column("x", 0, 2**90))
    with pytest.raises(PlanRefused):
        SPARK.column("x", -(2**63), 2**63 - 1) * 10**20
    # Spark's div gives 64 bits whatever it divides.
    with pytest.raises(PlanRefused):
        SPARK.column("x", 0, 2**64) // 2
    with pytest.raises(ValueError, match="not defined"):
        DUCKDB.column("x", -1, 5) // 2


def test_every_stored_type_is_read_whole() -> None:
    """At both ends; the least HUGEINT as the next one."""
    with duckdb_file() as connection:
        for kind, (low, high) in RANGES.items():
            if kind == "boolean":
                continue
            for end in (low, high):
                value = DUCKDB.read(f"CAST('{end}' AS {kind})", kind)
                ((got,),) = connection.execute(f"SELECT {value}").fetchall()
                assert got == max(end, HUGEINT.low)
                ((got,),) = connection.execute(f"SELECT {DUCKDB.read('NULL', kind)}").fetchall()
                assert got is None
        for text, days in (
            ("infinity", 2**31 - 1),
            ("1970-01-02", 1),
            ("5877642-06-25 (BC)", None),
        ):
            value = days_of_date(f"CAST('{text}' AS DATE)")
            ((got,),) = connection.execute(f"SELECT {value}").fetchall()
            assert value.low <= got <= value.high and days in (None, got)
        for width, scale in ((4, 2), (18, 18), (18, 9), (38, 37), (38, 0)):
            text = "9" * (width - scale) + ("." + "9" * scale if scale else "")
            value = decimal_digits(f"CAST('-{text}' AS DECIMAL({width}, {scale}))", width, scale)
            ((got,),) = connection.execute(f"SELECT {value}").fetchall()
            assert got == value.low == 1 - 10**width
        ((got,),) = connection.execute(f"SELECT {hash_remainder('hash(7)', 5)}").fetchall()
        assert 0 <= got < 5


def test_differences_and_hashes_stay_in_their_range() -> None:
    """Between the ends of the calendar, in the smallest unit; and over many columns of a row."""
    with duckdb_file() as connection:
        ends = "TIMESTAMP '0001-01-01'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
        for start, end in (ends, ends[::-1]):
            value = date_difference("'microsecond'", start, end)
            ((got,),) = connection.execute(f"SELECT {value}").fetchall()
            assert value.low <= got <= value.high and abs(got) > 2**58
        total = sum_remainders([f"hash(i + {n})" for n in range(300)])
        ((got,),) = connection.execute(f"SELECT {total} FROM range(50) t(i)").fetchall()
        assert 0 < got < 300 * 50


@pytest.mark.parametrize(
    "low, high", [(-(2**63), 2**63 - 1), (2**62, 2**63 - 1), (0, 2**64 - 1), (-3, 3)]
)
def test_doubles_are_rounded_within_bounds(low: int, high: int) -> None:
    """Whatever the DOUBLE is, infinities too."""
    with duckdb_file() as connection:
        for text in (
            "1e308",
            "-1e308",
            "inf",
            "-inf",
            "0.5",
            "-0.5",
            "2.4999",
            "9223372036854775808",
        ):
            value = DUCKDB.round_double(f"CAST('{text}' AS DOUBLE)", low, high)
            ((got,),) = connection.execute(f"SELECT {value}").fetchall()
            number = float(text)
            near = high if number >= high else low if number <= low else None
            assert low <= got <= high and (near is None or got == near)
