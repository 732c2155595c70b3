"""A column of every type that DuckDB has, in each role: answered whatever values of the type are there, or
refused before the charge, by the column's name.

A store makes two tables of a type, with the same ordinary values; the second has the type's far values
and a missing one, too. Both must show the same, up to how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, KeySets, SortedValues, UnboundedValues
from dpflow.errors import DpflowError
from dpflow.tables.access.file_list import SUFFIX
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.private import PrivateTable

_SIGNED = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_TIMES = ("2020-01-01 00:00:00", "2020-01-02 12:00:00")
_FAR_TIMES = ("infinity", "-infinity")
#: By a type as SQL writes it: ordinary texts, and far ones. One for each logical type that a column can have.
TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{t: (("1", "2"), (str(-(2 ** (b - 1))), str(2 ** (b - 1) - 1))) for t, b in _SIGNED.items()},
    **{f"U{t}": (("1", "2"), ("0", str(2**b - 1))) for t, b in _SIGNED.items()},
    "DECIMAL(38,10)": (("1", "2.5"), ("9" * 28 + ".9999999999", "-" + "9" * 28)),
    "FLOAT": (("1", "2.5"), ("nan", "inf", "-inf", "3e38")),
    "DOUBLE": (("1", "2.5"), ("nan", "inf", "-inf", "1e308")),
    "BOOLEAN": (("true", "false"), ()),
    "VARCHAR": (("a", "b"), ("", "é" * 300)),
    "JSON": (('"a"', "1"), ("null", "[1, {}]")),
    "UUID": (("00000000-0000-0000-0000-000000000001",), ("ffffffff-ffff-ffff-ffff-ffffffffffff",)),
    "BLOB": (("a", "b"), ("", r"\xFF\x00")),
    "BIT": (("1", "10"), ("0" * 200,)),
    "BIGNUM": (("1", "2"), ("9" * 90, "-" + "9" * 90)),
    "ENUM('a', 'b', 'c')": (("a", "b"), ("c",)),
    "DATE": (("2020-01-01", "2020-01-02"), ("infinity", "-infinity", "5881580-07-10")),
    "TIME": (("00:00:00", "12:00:00"), ("24:00:00",)),
    "TIME_NS": (("00:00:00", "12:00:00"), ("23:59:59.999999999",)),
    "TIME WITH TIME ZONE": (("00:00:00+00", "12:00:00+00"), ("24:00:00-15:59",)),
    "TIMESTAMP": (_TIMES, (*_FAR_TIMES, "294247-01-10 04:00:54.775806")),
    "TIMESTAMP_S": (_TIMES, (*_FAR_TIMES, "290309-12-22 (BC) 00:00:00")),
    "TIMESTAMP_MS": (_TIMES, (*_FAR_TIMES, "294247-01-10 04:00:54.775")),
    "TIMESTAMP_NS": (_TIMES, (*_FAR_TIMES, "2262-04-11 23:47:16.854775806")),
    "TIMESTAMP WITH TIME ZONE": (tuple(f"{t}+00" for t in _TIMES), _FAR_TIMES),
    "TIMESTAMPTZ_NS": (tuple(f"{t}+00" for t in _TIMES), _FAR_TIMES),
    "INTERVAL": (("1 day", "2 days"), ("1000 years", "-1 month")),
    "INTEGER[]": (("[1]", "[2]"), ("[]", "[NULL]")),
    "INTEGER[2]": (("[1, 2]", "[2, 3]"), ("[NULL, 1]",)),
    "STRUCT(a INTEGER)": (("{'a': 1}", "{'a': 2}"), ("{'a': NULL}",)),
    "MAP(VARCHAR, INTEGER)": (("{a=1}", "{b=2}"), ("{}",)),
    "UNION(a INTEGER, b VARCHAR)": (("1", "2"), ("z",)),
    "VARIANT": (("1", "2"), ("z",)),
    "GEOMETRY": (("POINT (1 1)", "POINT (2 2)"), ("POINT EMPTY",)),
}  # fmt: skip
#: Logical types that no column has.
NO_COLUMNS = {"NULL", "TYPE", "TUPLE"}
SUMS = GroupedSums()
Check = tuple[dict[str, Any], str | None, Any]
#: By role: fields of the declaration, the condition and the request.
ROLES: dict[str, Check] = {
    "unread": ({}, None, SUMS),
    "value": ({"columns": {"x": {"lower": 0, "upper": 9}}}, None, GroupedSums(values=(("x", 0),))),
    "values": ({"columns": {"x": {"lower": 0, "upper": 9}}}, None, SortedValues("x", 1)),
    "number": ({"columns": {"x": {}}}, None, UnboundedValues("x")),
    "public key": ({"columns": {"x": {"public_keys": ["1", "a"]}}}, None, GroupedSums("x", ("1", "a"))),
    "private key": ({"columns": {"x": {}}}, None, KeySets("x")),
    "unit": ({"privacy_unit": {"column": "x"}}, None, SUMS),
    "block": ({"block": "x"}, None, SUMS),
    "missing": ({"columns": {"x": {}}}, "x IS NULL", SUMS),
    "equal": ({"columns": {"x": {}}}, "x = x", SUMS),
    "text": ({"columns": {"x": {}}}, "lower(x) = 'a'", SUMS),
    "above": ({"columns": {"x": {}}}, "x > 1", SUMS),
}  # fmt: skip
#: What a refusal says of the column, of the rule by which its type does not fit, or of a table whose types the
#: server does not have.
NAMED = ("'x'", '"x"', "'types'", "the server lacks the type of a column")
#: What a backend makes of a type's two tables: fields of their declarations, or why there is none.
Place = Mapping[str, Any]
Store = Callable[[str, Path], tuple[Place, Place] | str]


def fill_tables(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    """Tables ``few`` and ``more`` of a type."""
    connection.execute("SET TimeZone = 'UTC'")
    near, far = TYPES[kind]
    for name, texts in (("few", near), ("more", (*near, *far, None))):
        connection.execute(f"CREATE TABLE {name} (u INTEGER, b VARCHAR, x {kind})")
        for i, text in enumerate(texts):
            insert = f"INSERT INTO {name} SELECT ?, 'a', CAST(CAST(? AS VARCHAR) AS {kind})"
            connection.execute(insert, [i, text])


def store_in_database(kind: str, folder: Path) -> tuple[Place, Place]:
    """Two tables of a DuckDB file."""
    file = folder / "t.duckdb"
    with duckdb_file(file) as connection:
        fill_tables(connection, kind)
    first, second = ({"database": file, "relation": name} for name in ("few", "more"))
    return first, second


def write_parquet(kind: str, folder: Path) -> bool:
    """Folders ``few`` and ``more`` with a Parquet file each; False if DuckDB writes none of the type."""
    with duckdb_file() as connection:
        fill_tables(connection, kind)
        for name in ("few", "more"):
            (folder / name).mkdir()
            try:
                connection.execute(
                    f"COPY {name} TO '{folder / name}/part.parquet' (FORMAT parquet)"
                )
            except duckdb.Error:
                return False
    return True


def store_in_lists(kind: str, folder: Path) -> tuple[Place, Place] | str:
    """Two lists of Parquet files. What cannot be listed tells its owner alone."""
    if not write_parquet(kind, folder):
        return "not written"
    places = []
    for name in ("few", "more"):
        target = folder / f"{name}{SUFFIX}"
        try:
            list_files([folder / name / "part.parquet"], folder / name, name, target)
        except DpflowError as error:
            return type(error).__name__
        places.append({"database": target, "relation": name})
    return places[0], places[1]


def check_type(kind: str, store: Store, folder: Path, roles: list[str]) -> None:
    """Fail where a role of a type has a problem."""
    places = store(kind, folder)
    if isinstance(places, str):
        return
    problems = []
    for role in roles:
        shown = [_ask(place, *ROLES[role]) for place in places]
        words, (refusal, text) = f"{kind} as {role}", shown[0]
        if shown[0] != shown[1]:
            problems.append(f"{words}: {shown[0]}, and with far values {shown[1]}")
        elif refusal == "failed":
            problems.append(f"{words}: {text}")
        elif refusal and not any(word in text for word in NAMED):
            problems.append(f"{words}: the refusal names no column: {text}")
    assert problems == []


def _ask(place: Place, fields: dict[str, Any], where: str | None, request: Any) -> tuple[str, str]:
    """The class and words of a refusal, or of a failure behind it; nothing of an answer."""
    declared = {
        "name": "t",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 2},
        "columns": {},
        **place,
        **fields,
    }
    try:
        private = PrivateTable(Table.model_validate(declared), where)
        private.check_request(request)
    except DpflowError as refusal:
        return type(refusal).__name__, str(refusal)
    try:
        with private.hold_open(), private.open_answer(request, ()) as answer:
            repr(answer)
    except DpflowError as failure:
        return "failed", f"{type(failure).__name__}: {failure}"
    return "", ""
