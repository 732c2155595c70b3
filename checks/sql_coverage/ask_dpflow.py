"""What dpflow says to a query: accepted, or the rule that refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from sqlglot import exp, parse_one

from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.declaration import PrivacyUnit, Table
from dpflow.core.contract.joins import Join
from dpflow.errors import SqlRefused
from dpflow.registry import Registry

Tables = Mapping[str, Mapping[str, str]]
_NUMBERS = ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL")


def ask_dpflow(text: str, tables: Tables, units: Mapping[str, Mapping[str, str]]) -> str:
    """``accepted``, or the rule of the refusal that stands furthest in the text.

    Args:
        units: by unit, the column of each table that holds it. Each is tried, with keys that are
            declared public and with private ones.
    """
    registry, refusals = Registry.load(), [(0, 0, "no unit")]
    equalities = list(list_equalities(text, tables))
    for columns in units.values():
        for public in (False, True):
            declared = [
                declare_table(table, tables, columns, equalities, public) for table in columns
            ]
            options = {"epsilon": "1", "delta": "1e-6", "scope": "coverage"}
            try:
                plan_sql(text, options, declared, (), None, registry)
            except SqlRefused as refusal:
                refusals.append((refusal.line, refusal.column, refusal.rule))
            else:
                return "accepted"
    return max(refusals)[2]


def list_tables(text: str, tables: Tables) -> set[str]:
    """The benchmark's tables that a query reads."""
    names = {table.name.lower() for table in parse_one(text, dialect="duckdb").find_all(exp.Table)}
    return names & set(tables)


def list_equalities(text: str, tables: Tables) -> Iterator[tuple[str, str, str, str]]:
    """Pairs of columns of two tables that a query demands to be equal, both ways."""
    parsed = parse_one(text, dialect="duckdb")
    aliases = {
        table.alias_or_name.lower(): table.name.lower() for table in parsed.find_all(exp.Table)
    }

    def locate(column: Any) -> tuple[str, str] | None:
        if not isinstance(column, exp.Column):
            return None
        name = column.name.lower()
        named = aliases.get(column.table.lower(), "")
        owners = [table for table in tables if name in tables[table] and named in ("", table)]
        return (owners[0], name) if len(owners) == 1 else None

    for equality in parsed.find_all(exp.EQ):
        left, right = locate(equality.this), locate(equality.expression)
        if left and right and left[0] != right[0]:
            yield (*left, *right)
            yield (*right, *left)


def declare_table(
    table: str,
    tables: Tables,
    units: Mapping[str, str],
    equalities: list[tuple[str, str, str, str]],
    public: bool,
) -> Table:
    """A private table that suits a query: bounds for all numbers, and the joins that it names where
    the rules of joins allow them.
    """
    columns = dict(declare_columns(tables[table], "", public))
    joins: dict[str, Join] = {}
    for left, key, right, other in equalities:
        if left != table or right in joins:
            continue
        if right in units:
            # Private tables join on their unit.
            if (key, other) != (units[left], units[right]):
                continue
            joins[right] = Join(relation=right, name=right, kind="unit", on={key: other}, rows=10)
        elif other == next(iter(tables[right])):
            joins[right] = Join(relation=right, name=right, kind="dimension", on={key: other})
        else:
            continue
        columns |= declare_columns(tables[right], f"{right}.", public)
    return Table(
        name=table,
        database=Path("coverage.duckdb"),
        privacy_unit=PrivacyUnit(column=units[table]),
        contribution_bounds=ContributionBounds(rows=10, groups=3),
        columns={name: one for name, one in columns.items() if name != units[table]},
        joins=tuple(joins.values()),
    )


def declare_columns(
    columns: Mapping[str, str], prefix: str, public: bool
) -> Iterator[tuple[str, Column]]:
    """Numbers with bounds, and texts with public keys or private ones."""
    for name, kind in columns.items():
        if kind.startswith(_NUMBERS):
            yield f"{prefix}{name}", Column(lower=Fraction(0), upper=Fraction(100))
        elif public and kind == "VARCHAR":
            yield f"{prefix}{name}", Column(public_keys=("a", "b", "c"))
        else:
            yield f"{prefix}{name}", Column()
