"""The matrix of raw values: each type of `raw_values` in each role, for each kind of request.

A world is one file with a table of plain rows, and the same table with rows more, each of a privacy
unit of its own and with a raw value. What is compared is all that anybody could see: answer or
refusal, its words, logs, streams and files; and how far the exact answers are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
from duckdb_files import duckdb_file
from raw_answers import ask
from raw_outcomes import Outcome, check_distance, distance, observe
from raw_values import TYPES, RawType
from twin_tables import seal

from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.declaration import Table, UnitRows
from dpflow.core.contract.requests import (
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
    UnitSizes,
)
from dpflow.core.contract.squares import Square
from dpflow.errors import DpflowError
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import PackedRows
from dpflow.tables.language.expressions import parse_expression
from dpflow.tables.private import PrivateTable

#: Names of the types.
KINDS = {one.name: one for one in TYPES}
ROWS, GROUPS, DAYS = 60, 64, ("2020-01-01", "2020-01-02")

#: What a condition asks of a column, and an expression of a group's.
CONDITIONS = (
    *("{x} IS NULL", "{x} IS NOT NULL", "{x}", "NOT {x}"),
    *("{x} = {c}", "{x} <> {c}", "{x} < {c}", "{x} >= {c}"),
    *("{x} IN ({c})", "{x} BETWEEN {c} AND {c}", "{x} = {x}", "coalesce({x}, {c}) = {c}"),
    *("{x} LIKE 'a%'", "lower({x}) = 'a'", "upper({x}) = 'A'", "length({x}) > 0"),
    *("abs({x}) >= 0", "sqrt({x}) >= 0", "ln({x}) >= 0", "exp({x}) >= 0", "-{x} <= 0"),
    *("{x} + {x} >= 0", "{x} - 1 >= 0", "{x} * {x} >= 0", "{x} / {x} > 0", "1 / {x} > 0"),
    *("{x} % 7 >= 0", "7 % {x} >= 0", "least({x}, 1) = 1", "greatest({x}, 1) = 1"),
    "CASE WHEN {x} = {c} THEN 1 ELSE 0 END = 0",
)
EXPRESSIONS = (
    *("count({x})", "count(DISTINCT {x})", "count_if({x} IS NULL)", "min({x})", "max({x})"),
    *("median({x})", "quantile_cont({x}, 0.3)", "quantile_disc({x}, 0.3)", "max(length({x}))"),
    *("sum({x})", "avg({x})", "var_samp({x})", "var_pop({x})", "stddev_samp({x})"),
    *("covar_pop({x}, v)", "corr({x}, v)", "regr_slope({x}, v)"),
    *("arg_max(v, {x})", "last({x} ORDER BY v)"),
    *("sum(least(greatest({x}, 0), 1))", "sum(v) FILTER (WHERE {x} = {c})"),
    *("max({x} * {x})", "avg(CASE WHEN {x} = {c} THEN 1 ELSE 0 END)"),
)

#: Of the rows of each privacy unit, of which the answer is a sum over units.
FEATURES = (
    *("count({x})", "count(DISTINCT {x})", "min({x})", "max({x})", "avg({x})"),
    *("arg_max(v, {x})", "arg_min({x}, v)", "first(v ORDER BY {x})", "last({x} ORDER BY v)"),
    "sum(v) FILTER (WHERE {x} = {c})",
)

#: What the raw column is to a declaration, and where it lies.
ROLES = ("unit", "one unit", "block", "dimension key", "unit of a join", "unread")
PLACES = ("own", "dimension", "unit join")
USES = ("value", "value with missing", "number", "public key", "private key", "condition")


def _sums(by: str | None = None, keys: Sequence[str] | None = None, value: str = "v") -> Any:
    return GroupedSums(by, None if keys is None else tuple(keys), 100, 100, ((value, 0),))


#: Requests of a raw column as a value, as a key, and of others beside it, by name.
Maker = Callable[[str, tuple[str, ...]], Any]
_VALUE: dict[str, Maker] = {
    "sums": lambda x, _: _sums(value=x),
    "sums and squares by public key": lambda x, _: GroupedSums(
        "k", ("a", "b", "c"), 100, 100, ((x, 0),), (Square(x, 0, 0),)
    ),
    "sums by private key": lambda x, _: _sums("p", value=x),
    "sums by small key": lambda x, _: _sums("s", value=x),
    "sorted values": lambda x, _: SortedValues(x, 100),
    "sorted values by key": lambda x, _: SortedValues(x, 100, "k", ("a", "b"), 100),
    "records": lambda x, _: Records((x, "v"), 100),
    "group values": lambda x, _: GroupValues(GROUPS, (x, "v")),
    "group moments": lambda x, _: GroupMoments(GROUPS, (x, "v"), ("n", "x", "xx", "yy", "xy")),
}
_NUMBER: dict[str, Maker] = {
    "unbounded values": lambda x, _: UnboundedValues(x, rows_per_group=100),
    "unbounded values by key": lambda x, _: UnboundedValues(x, "k", ("a", "b"), 100, 100),
    "group values": _VALUE["group values"],
}
_PUBLIC_KEY: dict[str, Maker] = {
    "sums by public key": lambda x, keys: _sums(x, keys),
    "sorted values by key": lambda x, keys: SortedValues("v", 100, x, keys, 100),
    "unbounded values by key": lambda x, keys: UnboundedValues("v", x, keys, 100, 100),
    "records": lambda x, _: Records((x, "v"), 100),
    "unit sizes": lambda x, _: UnitSizes((x,)),
}
_PRIVATE_KEY: dict[str, Maker] = {
    "sums by private key": lambda x, _: _sums(x),
    "key sets": lambda x, _: KeySets(x, 100),
    "unit sizes": lambda x, _: UnitSizes((x,)),
}
_BESIDE: dict[str, Maker] = {
    **{name: (lambda x, keys, make=make: make("v", keys)) for name, make in _VALUE.items()},
    **{
        name: (lambda x, keys, make=make: make("v", keys))
        for name, make in _NUMBER.items()
        if name != "group values"
    },
    "sums by public key": lambda x, _: _sums("k", ("a", "b", "c")),
    "key sets": lambda x, _: KeySets("p", 100),
    "group estimates": lambda x, _: GroupEstimates(GROUPS, "avg(v)"),
}
_ESTIMATES = {
    text: (lambda x, keys, text=text: GroupEstimates(GROUPS, text)) for text in EXPRESSIONS
}
_FEATURES = {f"unit: {text}": (lambda x, keys: None) for text in FEATURES}
#: Beside the raw column, where it says whose rows they are, or which.
_BESIDE["unit: last(v ORDER BY s)"] = lambda x, keys: None
REQUESTS: dict[str, dict[str, Maker]] = {
    "value": _VALUE | _ESTIMATES | _FEATURES,
    "value with missing": _VALUE | _ESTIMATES | _FEATURES,
    "number": _NUMBER | _ESTIMATES | _FEATURES,
    "public key": _PUBLIC_KEY,
    "private key": _PRIVATE_KEY,
    "condition": _BESIDE,
    **dict.fromkeys(ROLES, _BESIDE),
}
#: The condition that every request is asked with.
USUAL_CONDITION = "{x} = {c}"


@dataclass(frozen=True)
class Case:
    """What is asked of a column; with a type it is a cell of the matrix.

    Attributes:
        role: what the column is: one of `ROLES`, or a place and a use.
        request: the request's name.
        where: the condition, for the use of that name.
        cached: whether and how sums of blocks are cached.
        form: how contributions are bounded: ``sorted`` where that fits, or always ``queried``.
    """

    role: tuple[str, ...]
    request: str
    where: str
    cached: str
    form: str

    @property
    def is_by_unit(self) -> bool:
        """Whether there is a row for each privacy unit."""
        return self.request.startswith("unit: ")

    def impossible(self) -> str | None:
        """The rule by which there is no such case; None if there is one."""
        joined = self.role[0] in ("unit join", "unit of a join")
        if self.cached != "off" and joined:
            return "blocks are not protected one by one beside a second private table"
        if self.cached != "off" and self.is_by_unit:
            return "rows by unit are of all blocks together, and no block's sums are kept"
        return None

    def repeats(self) -> str | None:
        """The rule by which a possible case runs the queries of another one; None if it does not."""
        if self.where not in ("", USUAL_CONDITION) and self.request != "sums":
            return "a condition is one expression whatever the request"
        if self.is_by_unit and self.form == "queried":
            return "contributions of rows by unit are bounded as of any rows"
        of_rows = ("group", "records", "key sets", "unbounded", *EXPRESSIONS)
        if self.request.startswith(of_rows) and (self.cached, self.form) != ("off", "sorted"):
            return "answered from rows: neither the form of bounding nor the cache is asked"
        if self.where not in ("", USUAL_CONDITION) and self.cached != "off":
            return "a condition is part of the rows query, cached or not"
        if self.form == "queried" and self.cached != "off":
            return "sums that are cached are always queried"
        return None

    def facets(self) -> set[tuple[str, ...]]:
        """What a part of the matrix should have once."""
        place, use = self.role[0], self.role[-1]
        return {
            ("role", *self.role),
            ("request", use, self.request),
            ("condition", self.where),
            ("cached", self.cached),
            ("form", self.form),
            ("role and request", *self.role, self.request),
            ("role and cached", *self.role, self.cached),
            ("request and cached", self.request, self.cached),
            ("request and form", self.request, self.form),
            ("condition and place", self.where, place),
        }


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, impossible ones included."""
    roles = [(role,) for role in ROLES] + list(product(PLACES, USES))
    ways = list(product(("off", "checked", "sealed"), ("sorted", "queried")))
    cases = []
    for role in roles:
        wheres = CONDITIONS if role[-1] == "condition" else ("",)
        for name, where, way in product(REQUESTS[role[-1]], wheres, ways):
            cases.append(Case(role, name, where, *way))
    return tuple(cases)


@cache
def running_cases() -> tuple[Case, ...]:
    """The cases that run, for each type."""
    return tuple(one for one in all_cases() if not one.impossible() and not one.repeats())


def covering_part() -> dict[str, list[Case]]:
    """By type, a case of every use: of those that are left the one with the most facets that no
    earlier one has, and where none has any, each in turn.
    """
    by_use: dict[str, list[tuple[Case, set[tuple[str, ...]]]]] = {}
    for case in running_cases():
        by_use.setdefault(case.role[-1], []).append((case, case.facets()))
    seen: set[tuple[str, ...]] = set()
    part: dict[str, list[Case]] = {}
    for number, (kind, cases) in enumerate(product(KINDS, by_use.values())):
        turned = [*cases[number % len(cases) :], *cases[: number % len(cases)]]
        best, facets = max(turned, key=lambda one: len(one[1] - seen))
        seen |= facets
        part.setdefault(kind, []).append(best)
    return part


# --- Worlds ---------------------------------------------------------------------------------------


@dataclass
class World:
    """A type's file, loaded from the Parquet file ``RELATION/part.parquet`` of each table if ``through_parquet``.
    ``plain`` has no raw value; ``every`` has one row of each, ``row0``, ``row1``,
    ... one row of one of them where they are tried singly. ``other_...`` has a row for each unit of a table, with ``x``, too;
    ``source`` has every value by its number ``n``.
    """

    kind: RawType
    folder: Path
    _closing: ExitStack = field(default_factory=ExitStack)
    _session: isolated_database.Connection | None = None
    singly: bool = False
    through_parquet: bool = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def __post_init__(self) -> None:
        # Servers other than Apache Spark read no floats.
        number = "DECIMAL(9, 4)" if self.through_parquet else "DOUBLE"
        with duckdb_file(self.database) as connection:
            self.kind.load(connection, self.kind.values)
            connection.execute("ALTER TABLE source RENAME i TO n")
            connection.execute(
                "CREATE TABLE base AS SELECT i AS u, DATE '2020-01-01' + CAST(i % 2 AS INTEGER) AS b, "
                "['a', 'b', 'c', 'z'][1 + i % 4] AS k, 'p' || (i % 5) AS p, "
                f"CAST(i % 7 AS SMALLINT) AS s, CAST(i / 60 AS {number}) AS v, CAST(i % 3 AS BIGINT) AS n "
                f"FROM range({ROWS}) t(i)"
            )
            rows = "FROM base JOIN source USING (n)"
            raw = (
                "SELECT 1000 + n AS u, DATE '2020-01-01' AS b, 'a' AS k, 'p0' AS p, "
                f"CAST(1 AS SMALLINT) AS s, CAST(0.5 AS {number}) AS v, n, x FROM source WHERE n "
            )
            wanted = {"plain": "< 0", "every": ">= 3"}
            if self.through_parquet:
                for name, alike in self._list_alike(connection).items():
                    wanted[name] = f">= 3 AND n IN ({alike})"
            if self.singly:
                wanted |= {f"row{i}": f"= {i + 3}" for i in range(self.raws)}
            for name, which in wanted.items():
                connection.execute(
                    f"CREATE TABLE {name} AS SELECT base.*, x {rows} UNION ALL {raw} {which}"
                )
                connection.execute(
                    f"CREATE TABLE other_{name} AS SELECT u, x, 1 AS one FROM {name}"
                )
            if self.through_parquet:
                names = [
                    "source",
                    *(f"{prefix}{name}" for name in wanted for prefix in ("", "other_")),
                ]
                for name in names:
                    (self.folder / name).mkdir()
                    file = self.folder / name / "part.parquet"
                    connection.execute(f"COPY {name} TO '{file}' (FORMAT parquet)")
                    connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM '{file}'")

    def _list_alike(self, connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
        """The numbers of values that every engine takes for the same, NULL among them: no infinite times, and none
        that DuckDB lacks (``shared``); and those that have a text everywhere, of the years 1 to 9999 (``near``).
        """
        kind = connection.execute("SELECT typeof(x) FROM source LIMIT 1").fetchall()[0][0]
        field = sql.Field("x", kind.lower(), kind)
        conditions = dict.fromkeys(("shared", "near"), "true")
        if sql.is_time(field):
            conditions["shared"] = (
                f"x IS NULL OR ({field.sql} IS NOT NULL AND isfinite({field.sql}) AND x > '-infinity')"
            )
            conditions["near"] = f"x IS NULL OR year({field.sql}) BETWEEN 1 AND 9999"
        return {
            name: ", ".join(
                str(n)
                for (n,) in connection.execute(
                    f"SELECT n FROM source AS t WHERE {where}"
                ).fetchall()
            )
            for name, where in conditions.items()
        }

    @property
    def database(self) -> Path:
        """The private file."""
        return self.folder / "raw.duckdb"

    @property
    def raws(self) -> int:
        """How many raw values there are."""
        return len(self.kind.values) - 3

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Plain values as DuckDB writes them, and where it cannot, a text."""
        with duckdb_file(self.database, read_only=True) as connection:
            query = "SELECT DISTINCT CAST(x AS VARCHAR) FROM source WHERE n < 3 ORDER BY 1"
            return tuple(str(text) for (text,) in connection.execute(query).fetchall())

    @cached_property
    def block_texts(self) -> tuple[str, ...]:
        return self.keys[:2]

    @property
    def relations(self) -> dict[str, int]:
        """The tables with raw rows, and how many each has."""
        single = {f"row{i}": 1 for i in range(self.raws)} if self.singly else {}
        return {"every": self.raws} | single

    def bounding(self, case: Case) -> Any:
        """In it, contributions are bounded in the case's form."""
        if case.form == "sorted":
            return nullcontext()
        return patch.object(PackedRows, "fit_in_words", lambda self: False)

    def name(self, case: Case) -> str:
        """What a declaration calls the raw column."""
        place = {"dimension": "d.", "unit join": "o."}.get(case.role[0], "")
        return f"{place}x" if len(case.role) == 2 else "x"

    def place(self, relation: str) -> dict[str, Any]:
        """Where a declaration says that one of the relations is."""
        return {"database": self.database, "relation": relation}

    def table(self, case: Case, relation: str) -> Table:
        """The declaration of a case over one of the relations."""
        role, use, x = case.role[0], case.role[-1], self.name(case)
        columns: dict[str, Any] = {
            "v": {"lower": 0, "upper": 1, "step": "0.01"},
            "k": {"public_keys": ["a", "b", "c"]},
            "p": {},
            "s": {},
        }
        declared: dict[str, Any] = {
            "name": "raw",
            **self.place(relation),
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 100, "groups": 100},
            "block": "b",
            "joins": [],
        }
        if role in ("unit", "one unit", "unit of a join"):
            missing = "one-unit" if role == "one unit" else "drop"
            declared["privacy_unit"] = {"column": "x", "missing": missing}
        if role == "block":
            declared["block"] = "x"
        if role in ("dimension", "dimension key"):
            on = {"n": "n"} if role == "dimension" else {"x": "x"}
            join = {"relation": "source", "name": "d", "kind": "dimension", "on": on}
            declared["joins"] = [join]
        if role in ("unit join", "unit of a join"):
            on = {"u": "u"} if role == "unit join" else {"x": "x"}
            other = {"relation": f"other_{relation}", "name": "o", "kind": "unit", "on": on}
            declared["joins"] = [other | {"rows": 1}]
        if role == "dimension key":
            columns["d.n"] = {"lower": 0, "upper": 2}
        if role == "unit of a join":
            columns["o.one"] = {"lower": 0, "upper": 2}
        if use in ("value", "value with missing"):
            columns[x] = {"lower": -1, "upper": 2, "step": "0.5"}
            if use == "value with missing":
                columns[x]["missing"] = 1
        elif use == "public key":
            columns[x] = {"public_keys": list(self.keys)}
        elif use in ("number", "private key", "condition", "block"):
            columns[x] = {}
        if case.cached != "off" or role == "block":
            declared["protects"] = "unit-block"
        if case.cached != "off":
            declared["cached_partials"] = case.cached
        table = Table.model_validate(declared | {"columns": columns})
        if not case.is_by_unit:
            return table
        feature = self.feature(case, table)
        units = UnitRows(table, self.condition(case), self.blocks(case), (), (feature,))
        bounds = Column.model_validate({"lower": -1, "upper": 2, "step": "0.05"})
        return table.by_unit(units, {feature: bounds}, ContributionBounds(rows=1))

    def feature(self, case: Case, table: Table) -> str:
        """What a case asks of each unit's rows."""
        text = case.request.removeprefix("unit: ").replace("{x}", _quoted(self.name(case)))
        return str(parse_expression(text.replace("{c}", self.kind.literal or "1"), table))

    def request(self, case: Case) -> Any:
        """The request of a case."""
        if case.is_by_unit:
            (feature,) = self.table(case, "plain").columns
            return GroupedSums(None, None, 1, 1, ((feature, 0),))
        made = REQUESTS[case.role[-1]][case.request](self.name(case), self.keys)
        swap = {"dimension key": "d.n", "unit of a join": "o.one"}.get(case.role[0])
        if swap is not None:
            made = _replace_value(made, swap)
        if isinstance(made, GroupEstimates):
            text = made.sql.replace("{x}", _quoted(self.name(case)))
            made = GroupEstimates(made.groups, text.replace("{c}", self.kind.literal or "1"))
        return made

    def where(self, case: Case) -> str | None:
        """The condition of a case on the rows of its answer."""
        return None if case.is_by_unit else self.condition(case)

    def condition(self, case: Case) -> str | None:
        """The condition of a case on the rows of the table."""
        text = case.where.replace("{x}", _quoted(self.name(case)))
        return text.replace("{c}", self.kind.literal or "1") or None

    def blocks(self, case: Case) -> tuple[str, ...]:
        """The blocks that a case names."""
        if case.role == ("block",):
            return self.block_texts
        return DAYS if case.cached != "off" else ()

    def run(self, case: Case, relation: str) -> Outcome:
        """What a case shows over one of the relations."""
        return observe(self.folder, lambda: self.answer(case, relation))

    def answer(self, case: Case, relation: str) -> Any:
        """The exact answer of a case over one of the relations, in a form that can be compared."""
        sealed = None if case.cached == "off" else seal
        private = PrivateTable(self.table(case, relation), self.where(case), sealed)
        request, blocks = self.request(case), self.blocks(case)
        self.hold(private)
        private.check_schema()
        private.check_request(request, blocks)
        first = ask(private, request, blocks)
        if case.cached != "off":
            fresh = PrivateTable(private.declaration, private.where)
            fresh._backend._held = private._backend._held
            for other in (private, fresh):
                assert not distance(first, ask(other, request, blocks)), "cached is not fresh"
        return first

    def hold(self, private: PrivateTable) -> None:
        """Let a table use the world's open file, without what the last case left in its session:
        opening it takes ten times as long as an answer. A session that an error has ended is not
        used again.
        """
        listed = "SELECT 'TABLE', table_name FROM duckdb_tables() WHERE temporary AND NOT internal"
        listed += " UNION ALL SELECT 'VIEW', view_name FROM duckdb_views() WHERE temporary AND NOT internal"
        try:
            assert self._session is not None
            for kind, name in self._session.fetch_rows(listed):
                self._session.execute(f"DROP {kind} {name}")
        except (AssertionError, DpflowError):
            self._closing.close()
            self._session = self._closing.enter_context(
                isolated_database.open_file(self.database, "table 'raw'")
            )
        private._backend._held = self._session


def _quoted(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split("."))


def _replace_value(request: Any, name: str) -> Any:
    """A request that reads another column instead of ``v``."""
    match request:
        case GroupedSums():
            values = tuple((name, c) for _, c in request.values)
            squares = tuple(square._replace(name=name) for square in request.squares)
            return GroupedSums(
                request.by, request.keys, request.groups, request.rows_per_group, values, squares
            )
        case SortedValues() | UnboundedValues():
            return type(request)(**(request.__dict__ | {"column": name}))
        case Records() | GroupValues() | GroupMoments():
            columns = tuple(name if one == "v" else one for one in request.columns)
            return type(request)(**(request.__dict__ | {"columns": tuple(dict.fromkeys(columns))}))
        case GroupEstimates():
            return GroupEstimates(request.groups, request.sql.replace("v)", f"{_quoted(name)})"))
    return request


def check_case(world: World, case: Case) -> None:
    """A case shows the same with raw values and without, and answers no further apart than claimed."""
    with world.bounding(case):
        plain = world.run(case, "plain")
        for relation, units in world.relations.items():
            raw = world.run(case, relation)
            where = f"{world.kind.name}, {case}, {relation}"
            assert raw == plain, f"{where}: {raw.shown} is not {plain.shown}"
            if plain.answer is not None:
                check_distance(raw.answer, plain.answer, units)
