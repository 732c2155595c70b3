"""Equality belongs to the source: texts that it compares by a collation are refused wherever they would
be compared, and of every type of DuckDB's either the answer is exact or the type is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from duckdb_files import duckdb_file

from dpflow.core.contract.requests import CellGrid, GroupedSums, UnboundedValues
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.ledger import Ledger
from dpflow.tables.access import sql
from dpflow.tables.backends.spark_backend.spark_columns import describe_field, key_text, name_type
from dpflow.tables.private import PrivateTable

Maker = Callable[..., PrivateTable]
COUNT = GroupedSums(None, None, 1, 100)
BY_KEY = GroupedSums("k", ("A", "a"), 2, 1)
ROWS = "INSERT INTO {} (u, k, v) VALUES ('X', 'A', 1), ('x', 'A', 1), ('x', 'a', 1)"

#: How one column comes by a collation: the statements that make `data` of the columns u, k and v.
SOURCES = {
    "table": [
        "CREATE TABLE data (u VARCHAR {u}, k VARCHAR {k}, v INT)",
        ROWS.format("data"),
    ],
    "view of a table": [
        "CREATE TABLE stored (u VARCHAR {u}, k VARCHAR {k}, v INT)",
        ROWS.format("stored"),
        "CREATE VIEW data AS SELECT lower(u) AS u, concat(k, '') AS k, v FROM stored",
    ],
    "column that is computed": [
        "CREATE TABLE data (u0 VARCHAR {u}, k0 VARCHAR {k}, v INT, u VARCHAR AS (u0), k VARCHAR AS (k0 || ''))",
        "INSERT INTO data (u0, k0, v) VALUES ('X', 'A', 1)",
    ],
    "trusted view": [
        "CREATE TABLE stored (u VARCHAR, k VARCHAR, v INT)",
        ROWS.format("stored"),
        "CREATE VIEW data AS SELECT DISTINCT u {u} AS u, k {k} AS k, v FROM stored ORDER BY v LIMIT 9",
    ],
}
COLLATIONS = ["NOCASE", "NOACCENT.NOCASE", "NFC", "de"]


def build(make: Maker, source: str, unit: str, key: str, **changes: Any) -> PrivateTable:
    collations = {"u": unit and f"COLLATE {unit}", "k": key and f"COLLATE {key}"}
    if source == "trusted view":
        changes["trusted_sql"] = ["data"]
    return make(*(line.format(**collations) for line in SOURCES[source]), **changes)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("collation", COLLATIONS)
def test_a_unit_with_a_collation_is_refused(make: Maker, source: str, collation: str) -> None:
    """Before any row is read; of bytes, the two units that it has are counted."""
    private = build(make, source, collation, "")
    for ask in (lambda: private.check_request(COUNT), lambda: private.answer(COUNT, ())):
        with pytest.raises(TableUnreadable, match=r"'u' has the collation \S+, .* compares bytes"):
            ask()


@pytest.mark.parametrize("collation", ["", "C", "POSIX", "BINARY"])
@pytest.mark.parametrize("source", ["table", "trusted view"])
def test_a_collation_of_bytes_is_none(make: Maker, source: str, collation: str) -> None:
    """Units and keys are told apart as DuckDB tells them apart."""
    quoted = f'"{collation}"' if collation else ""
    private = build(make, source, quoted, quoted)
    groups = private.answer(BY_KEY, ())
    assert (groups.rows.tolist(), groups.units.tolist()) == ([2, 1], [2, 1])


ROLES: dict[str, Callable[[Maker, str], Any]] = {
    "public key": lambda make, source: build(make, source, "", "NOCASE").check_request(BY_KEY),
    "key of a declared table": lambda make, source: build(
        make, source, "", "NOCASE"
    ).check_schema(),
    "private key": lambda make, source: build(
        make, source, "", "NOCASE", columns={"k": {}}
    ).check_request(GroupedSums("k", None, 2, 1)),
    "block": lambda make, source: build(
        make, source, "", "NOCASE", block="k", protects="unit-block"
    ).check_request(COUNT, ["A"]),
    "condition": lambda make, source: PrivateTable(
        build(make, source, "", "NOCASE").declaration, where="k = 'A'"
    ).check_request(COUNT),
    "pattern": lambda make, source: PrivateTable(
        build(make, source, "", "NOCASE").declaration, where="k LIKE 'a%'"
    ).check_request(COUNT),
    "computed column": lambda make, source: build(
        make,
        source,
        "",
        "NOCASE",
        columns={"k": {}, "low": {"expression": "lower(k)", "public_keys": ["a"]}},
    ).check_request(GroupedSums("low", ("a",), 1, 1)),
    "combined key": lambda make, source: build(
        make, source, "", "NOCASE", columns={"k": {}, "v": {}, "kv": {"parts": ["k", "v"]}}
    ).check_request(GroupedSums("kv", None, 1, 1)),
}


@pytest.mark.parametrize("source", ["table", "view of a table"])
@pytest.mark.parametrize("role", ROLES)
def test_a_collation_is_refused_in_every_role(make: Maker, role: str, source: str) -> None:
    with pytest.raises((TableUnreadable, PlanRefused), match="has the collation NOCASE"):
        ROLES[role](make, source)


@pytest.mark.parametrize("left", [False, True])
def test_a_joined_key_with_a_collation_is_refused(make: Maker, left: bool) -> None:
    """On either side, for types in SQL are the same with and without one."""
    first, second = ("COLLATE NOCASE", "") if left else ("", "COLLATE NOCASE")
    private = make(
        f"CREATE TABLE data (u INT, k VARCHAR {first}, v INT)",
        f"CREATE TABLE sides (k VARCHAR {second}, side VARCHAR)",
        joins=[{"relation": "sides", "name": "s", "kind": "dimension", "on": {"k": "k"}}],
        columns={"s.side": {"public_keys": ["n"]}, "k": {}},
    )
    with pytest.raises(TableUnreadable, match="'k' has the collation NOCASE"):
        private.check_request(GroupedSums("s.side", ("n",), 1, 1))


@pytest.mark.parametrize(
    ("collation", "text", "views"),
    [
        ("NOCASE", 'lower("u")', True),
        ("NOACCENT.NOCASE", 'lower(strip_accents("u"))', False),
        ("NFC", 'nfc_normalize("u")', False),
    ],
)
def test_what_the_message_advises_works(
    make: Maker, collation: str, text: str, views: bool
) -> None:
    """A stored column and a view, and both count the units that DuckDB counts itself."""
    table = "CREATE TABLE {} (u VARCHAR COLLATE " + collation + ", v INT)"
    names = ("JOS\u00c9", "jos\u00e9", "jose\u0301", "jose", "ann")
    rows = "INSERT INTO {} VALUES " + ", ".join(f"('{name}', 1)" for name in names)
    with duckdb_file() as connection:
        connection.execute(table.format("data"))
        connection.execute(rows.format("data"))
        counted = connection.execute("SELECT count(DISTINCT u) FROM data").fetchall()
    private = make(table.format("data"), rows.format("data"))
    with pytest.raises(TableUnreadable) as refused:
        private.check_request(COUNT)
    assert f"store {text} in a column without a collation" in str(refused.value)
    assert (f"or read a view that selects {text} COLLATE C" in str(refused.value)) is views
    ways = [
        [
            table.format("data"),
            rows.format("data"),
            f"ALTER TABLE data ALTER u TYPE VARCHAR USING {text}",
        ]
    ]
    if views:
        view = f"CREATE VIEW data AS SELECT {text} COLLATE C AS u, v FROM stored"
        ways.append([table.format("stored"), rows.format("stored"), view])
    for statements in ways:
        private = make(*statements, columns={"v": {"lower": 0, "upper": 1}})
        assert [tuple(private.answer(COUNT, ()).units.tolist())] == counted


def test_a_view_can_only_take_a_collation_away(make: Maker) -> None:
    """Another one would be one that its column is compared by."""
    private = make(
        "CREATE TABLE stored (u VARCHAR, v INT)",
        "CREATE VIEW data AS SELECT u COLLATE NOCASE AS u, v FROM stored",
    )
    with pytest.raises(PlanRefused, match="COLLATE"):
        private.check_request(COUNT)


# --- Types ----------------------------------------------------------------------------------------

#: The least and the largest value of each of DuckDB's types that a column can have, and both as the
#: number that a release reads: None where the type has none.
DAY, FAR = 86_400 * 10**6, 2**63 - 1
ENDS: dict[str, tuple[str, str, tuple[Fraction | int | float, Fraction | int | float] | None]] = {
    **{
        name: (str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1), (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for name, bits in {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}.items()
    },
    **{
        name: ("0", str(2**bits - 1), (0, 2**bits - 1))
        for name, bits in {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64}.items()
    },
    "UHUGEINT": ("0", str(2**128 - 1), None),
    "BOOLEAN": ("false", "true", (0, 1)),
    "FLOAT": ("-3.5", "1e-45", (-3.5, 2.0**-149)),
    "DOUBLE": ("-1e308", "5e-324", (-1e308, 5e-324)),
    "DECIMAL(38,2)": (f"-{'9' * 36}.99", f"{'9' * 36}.99", (1 - 10**38, 10**38 - 1)),
    "DATE": ("1969-12-31", "2013-01-05", (-1, 15710)),
    "TIMESTAMP": ("1969-12-31 23:59:59", "1970-01-01 00:00:01.000001", (-(10**6), 1000001)),
    "TIMESTAMP_S": ("1969-12-31 23:59:59", "1970-01-01 00:00:01", (-(10**6), 10**6)),
    "TIMESTAMP_MS": ("1969-12-31 23:59:59", "1970-01-01 00:00:01.001", (-(10**6), 1001000)),
    "TIMESTAMP_NS": ("1969-12-31 23:59:59", "1970-01-01 00:00:01.000001999", (-(10**6), 1000001)),
    "TIMESTAMP WITH TIME ZONE": ("1969-12-31 23:59:59+00", "1970-01-01 01:00:01+01", (-(10**6), 10**6)),
    "TIMESTAMPTZ_NS": ("1969-12-31 23:59:59+00", "1970-01-01 00:00:01+00", None),
    "TIME": ("00:00:00", "24:00:00", None),
    "TIME WITH TIME ZONE": ("00:00:00+00", "23:59:59+00", None),
    "TIME_NS": ("00:00:00", "23:59:59", None),
    "INTERVAL": ("1 day", "24 hours", None),
    "UUID": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", None),
    "VARCHAR": ("", "z", None),
    "JSON": ("{}", "1", None),
    "BLOB": ("a", "b", None),
    "BIT": ("0", "1", None),
    "BIGNUM": ("-1", "1", None),
    "VARIANT": ("1", "2", None),
    "ENUM('a', 'b')": ("a", "b", None),
    "INTEGER[]": ("[1]", "[2]", None),
    "INTEGER[1]": ("[1]", "[2]", None),
    "MAP(INTEGER, INTEGER)": ("{1=1}", "{2=2}", None),
    "STRUCT(a INTEGER)": ("{'a': 1}", "{'a': 2}", None),
    "UNION(a VARCHAR)": ("1", "2", None),
}  # fmt: skip
#: Types that name units, groups and blocks: their values are equal exactly where their texts are.
KEYS = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "UHUGEINT", "BOOLEAN", "DECIMAL(38,2)", "DATE", "TIMESTAMP", "TIMESTAMP_S"),
    *("TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIME", "UUID", "VARCHAR"),
    *("JSON", "ENUM('a', 'b')"),
}


def test_every_type_is_judged() -> None:
    """All that DuckDB lists, but for those that no column has, and GEOMETRY, which needs an extension."""
    with duckdb_file() as connection:
        names = {
            name
            for (name,) in connection.execute("SELECT logical_type FROM duckdb_types()").fetchall()
        }
    families = {"INTEGER[]": "LIST", "INTEGER[1]": "ARRAY"}
    judged = {families.get(name, name.partition("(")[0]) for name in ENDS}
    assert names - judged == {"GEOMETRY", "NULL", "TUPLE", "TYPE"}


@pytest.mark.parametrize("kind", ENDS)
def test_the_ends_of_a_type_are_read_exactly_or_refused(make: Maker, kind: str) -> None:
    """A table of the least value, or of the largest, has an answer that is no other value: a clamped one
    would be right for no row, and called right.
    """
    *texts, ends = ENDS[kind]
    for place, text in enumerate(texts):
        private = make(
            f"CREATE TABLE data AS SELECT 1 AS u, $${text}$$::{kind} AS v", columns={"v": {}}
        )
        request = UnboundedValues("v")
        if ends is None:
            with pytest.raises(TableUnreadable, match="cannot be a value"):
                private.check_request(request)
            continue
        with private.open_answer(request, ()) as answer:
            assert answer.count_cells({0: CellGrid(None)})[0].keys.tolist() == [ends[place]]


@pytest.mark.parametrize("kind", ENDS)
def test_types_that_can_be_keys(make: Maker, kind: str) -> None:
    """Two values are two units, and every other type is refused as a unit."""
    first, second, _ = ENDS[kind]
    rows = f"(VALUES ($${first}$$::{kind}), ($${second}$$::{kind}), ($${first}$$::{kind})) t(u)"
    private = make(f"CREATE TABLE data AS SELECT u, 1 AS v FROM {rows}")
    if kind not in KEYS:
        with pytest.raises(TableUnreadable, match="cannot be a unit"):
            private.check_request(COUNT)
        return
    assert private.answer(COUNT, ()).units.tolist() == [2]


def test_a_uhugeint_is_no_number_in_conditions(make: Maker) -> None:
    """Its upper half has none that DuckDB's other integers hold."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 5::UHUGEINT AS v")
    with pytest.raises(PlanRefused, match="UHUGEINT, of which only IS NULL"):
        PrivateTable(private.declaration, where="v > 4").check_request(COUNT)


# --- Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "metadata"),
    [
        ("string collate UTF8_LCASE", {}),
        ("string collate UNICODE_CI_AI", {}),
        ("string", {"__COLLATIONS": {"u": "spark.UTF8_LCASE"}}),
        ("string", {"__CHAR_VARCHAR_TYPE_STRING": "char(10)"}),
    ],
)
def test_spark_compares_these_by_other_rules_than_bytes(
    kind: str, metadata: dict[str, Any]
) -> None:
    """A collated type has its own name; a padded one, and one that a reader does not know, are in the
    metadata.
    """
    column = SimpleNamespace(metadata=metadata, dataType=SimpleNamespace(simpleString=lambda: kind))
    with pytest.raises(TableUnreadable, match="cannot be a unit on Spark"):
        key_text(describe_field("u", name_type(column)), "unit")


def test_spark_strings_of_a_largest_length_are_plain() -> None:
    column = SimpleNamespace(
        metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(10)"},
        dataType=SimpleNamespace(simpleString=lambda: "string"),
    )
    assert key_text(describe_field("u", name_type(column)), "unit")


def test_the_advice_means_the_same_or_is_none() -> None:
    """Of a language's order nobody knows the function."""
    assert sql.advise_plain_text("u", "de").endswith("in a column without a collation")
    assert 'nfc_normalize("u")' in sql.advise_plain_text("u", "NFC")


def test_a_grant_says_which_equality_it_protects(make: Maker, tmp_path: Path) -> None:
    """When it is read again: of a plain column, and of one that is refused for its own equality."""
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    plain, nocase = (build(make, "table", unit, "") for unit in ("", "NOCASE"))
    ledger.grant("s", 1, 0, filter="basic", table=plain.declaration, principal="owner")
    ledger.grant("open", 1, 0, filter="basic", table=None, principal="owner")
    words = {scope.scope: scope.equality for scope in Ledger(tmp_path / "ledger.sqlite").scopes()}
    assert words == {"s": words["s"], "open": ""} and "'P7' and 'p7' are two" in words["s"]
    # What it says is what is counted: X and x are two units; where they would be one nothing is.
    assert plain.answer(COUNT, ()).units.tolist() == [2]
    with pytest.raises(TableUnreadable, match="has the collation NOCASE"):
        nocase.answer(COUNT, ())
