"""What the checks of query backends are made on: relations of every type, conditions with their meaning,
and tables over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, CellGrid, DataRequest, UnboundedValues
from dpflow.tables.backends import QueryBackend, find_backend
from dpflow.tables.private import PrivateTable

#: Columns with their types, as DuckDB names them, and rows as texts; None is NULL.
Content = tuple[Mapping[str, str], Sequence[Sequence[str | None]]]
#: Makes relations by name, and gives the declaration's fields that say where: ``database``.
MakeRelations = Callable[[Mapping[str, Content]], Mapping[str, Any]]

#: Texts of each type of a value, and the numbers that they are; None is no number.
VALUE_TYPES: dict[str, dict[str, Fraction | float | None]] = {
    "TINYINT": {"-128": Fraction(-128), "0": Fraction(0), "127": Fraction(127)},
    "SMALLINT": {"-32768": Fraction(-32768), "7": Fraction(7), "32767": Fraction(32767)},
    "INTEGER": {"-2147483648": Fraction(-(2**31)), "3": Fraction(3)},
    "BIGINT": {str(-(2**63)): Fraction(-(2**63)), str(2**63 - 1): Fraction(2**63 - 1)},
    "UTINYINT": {"0": Fraction(0), "255": Fraction(255)},
    "USMALLINT": {"0": Fraction(0), "65535": Fraction(65535)},
    "UINTEGER": {"1": Fraction(1), "4294967295": Fraction(2**32 - 1)},
    "UBIGINT": {"0": Fraction(0), str(2**64 - 1): Fraction(2**64 - 1), "4": Fraction(4)},
    "HUGEINT": {str(-(2**127)): Fraction(-(2**127)), "5": Fraction(5)},
    "DECIMAL(4,2)": {
        "99.99": Fraction(9999, 100),
        "-0.25": Fraction(-1, 4),
        "0.75": Fraction(3, 4),
    },
    "DECIMAL(18,4)": {
        "1.2500": Fraction(5, 4),
        "-99999999999999.9999": Fraction(-(10**18) + 1, 10**4),
    },
    "DECIMAL(38,2)": {"9" * 36 + ".99": Fraction(10**38 - 1, 100), "1.26": Fraction(126, 100)},
    "DOUBLE": {
        "nan": None,
        "inf": float("inf"),
        "-inf": float("-inf"),
        "-0.0": Fraction(0),
        "1e308": Fraction(1e308),
        "0.75": Fraction(3, 4),
        "5e-324": Fraction(5e-324),
    },
    "FLOAT": {
        "nan": None,
        "-inf": float("-inf"),
        "0.25": Fraction(1, 4),
        "1e-45": Fraction(2) ** -149,
    },
    "DATE": {"1970-01-03": Fraction(2), "0001-01-01": Fraction(-719162)},
    "TIMESTAMP": {"1970-01-02 12:00:00": Fraction(3, 2), "2020-02-29 00:00:00": Fraction(18321)},
    "TIMESTAMP WITH TIME ZONE": {"1969-12-31 12:00:00+00": Fraction(-1, 2)},
    "TIMESTAMP_S": {"1970-01-01 18:00:00": Fraction(3, 4), "1969-12-31 00:00:00": Fraction(-1)},
    "TIMESTAMP_MS": {"1970-01-01 18:00:00": Fraction(3, 4), "1969-12-31 00:00:00": Fraction(-1)},
    "TIMESTAMP_NS": {"1970-01-01 18:00:00": Fraction(3, 4), "1969-12-31 00:00:00": Fraction(-1)},
    "BOOLEAN": {"true": Fraction(1), "false": Fraction(0)},
}
#: Texts of each type of a key or unit, as they are written in answers.
KEY_TYPES: dict[str, list[str]] = {
    "TINYINT": ["-128", "7"],
    "SMALLINT": ["-32768", "7"],
    "UTINYINT": ["255", "0"],
    "USMALLINT": ["65535", "9"],
    "UINTEGER": ["4294967295", "10"],
    "INTEGER": [str(-(2**31)), "0", "2147483647"],
    "BIGINT": [str(-(2**63)), str(2**63 - 1), "12"],
    "UBIGINT": [str(2**64 - 1), "0"],
    "HUGEINT": [str(-(2**127)), "1"],
    "UHUGEINT": [str(2**128 - 1), "1"],
    "DECIMAL(5,2)": ["-999.99", "0.50"],
    "DATE": ["0001-01-01", "2020-02-29"],
    "TIMESTAMP": ["1969-12-31 23:59:59.999999", "2020-02-29 12:00:00"],
    "TIMESTAMP_S": ["1969-12-31 23:59:59", "2020-02-29 12:00:00"],
    "TIMESTAMP_MS": ["1969-12-31 23:59:59.999", "2020-02-29 12:00:00"],
    "TIMESTAMP_NS": ["1969-12-31 23:59:59.999999999", "2020-02-29 12:00:00"],
    "TIMESTAMP WITH TIME ZONE": ["1969-12-31 23:59:59+00", "2020-02-29 12:00:00+00"],
    "TIME": ["00:00:00", "23:59:59.999999"],
    "ENUM('b', 'a', 'é')": ["b", "a", "é"],
    "BOOLEAN": ["true", "false"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "5fbf1a3c-3b1e-4b1c-8f7e-0123456789ab"],
    "VARCHAR": ["", " ", "a", "A", "á", "a\u0301", "日本", "😀", "it's", '"', "%_\\", "x" * 500],
}


@dataclass(frozen=True)
class Values:
    """A row of the table of conditions: a whole number, a DOUBLE (NaN is None), a text, a time."""

    n: int | None
    f: float | None
    t: str | None
    d: datetime | None


CONDITION_TYPES = {"u": "INTEGER", "n": "INTEGER", "f": "DOUBLE", "t": "VARCHAR", "d": "TIMESTAMP"}
CONDITION_ROWS = (
    Values(3, 0.5, "a", datetime(2020, 2, 29, 13, 30)),
    Values(None, None, None, None),
    Values(7, 0.75, "b", datetime(1969, 12, 31, 23, 59, 59)),
    Values(0, -1.0, "B", datetime(1, 1, 1)),
    Values(1, None, "é", datetime(2020, 3, 1)),
    Values(-5, 1e300, "", datetime(9999, 12, 31)),
)
#: Conditions over these columns, and what they mean of a row; None, like False, leaves it out.
CONDITIONS: dict[str, Callable[[Values], Any]] = {
    "n = 3": lambda row: row.n == 3,
    "n <> 3": lambda row: row.n is not None and row.n != 3,
    "NOT n = 3": lambda row: row.n is not None and row.n != 3,
    "n IN (1, 3, 99)": lambda row: row.n in (1, 3, 99),
    "n BETWEEN 1 AND 3 OR t = 'b'": lambda row: (
        (row.n is not None and 1 <= row.n <= 3) or row.t == "b"
    ),
    "f > 0.5": lambda row: row.f is not None and row.f > 0.5,
    "f IS NULL": lambda row: row.f is None,
    "n / 0 = 1": lambda row: False,
    "n / 2 = 1.5": lambda row: row.n == 3,
    "n % 4 = 3": lambda row: row.n in (3, 7),
    "ln(n) < 0": lambda row: row.n == 0,
    "sqrt(n) >= 0": lambda row: row.n is not None and row.n >= 0,
    "exp(f) > 1": lambda row: row.f is not None and row.f > 0,
    "abs(n) = 5": lambda row: row.n == -5,
    "coalesce(n, 7) = 7": lambda row: row.n in (None, 7),
    "greatest(n, 2) = 2": lambda row: row.n is None or row.n <= 2,
    "t < 'a'": lambda row: row.t is not None and row.t.encode() < b"a",
    "t LIKE 'b%'": lambda row: row.t is not None and row.t.startswith("b"),
    "upper(t) = 'B'": lambda row: row.t in ("b", "B"),
    "length(t) = 1": lambda row: row.t is not None and len(row.t) == 1,
    "CASE WHEN n = 3 THEN t ELSE 'z' END = 'z'": lambda row: row.n != 3 or row.t == "z",
    "bucket(n, 5) = 0": lambda row: row.n is not None and 0 <= row.n < 5,
    "bucket(n, 5) = -5": lambda row: row.n is not None and -5 <= row.n < 0,
    "date_trunc('month', d) = '2020-02-01'": lambda row: (
        row.d is not None and (row.d.year, row.d.month) == (2020, 2)
    ),
    "hour(d) = 13": lambda row: row.d is not None and row.d.hour == 13,
    "minute(d) = 59": lambda row: row.d is not None and row.d.minute == 59,
    "dayofweek(d) = 0": lambda row: row.d is not None and row.d.isoweekday() == 7,
    "isodow(d) = 7": lambda row: row.d is not None and row.d.isoweekday() == 7,
    "year(d) < 1970": lambda row: row.d is not None and row.d.year < 1970,
    "CAST(d AS DATE) = '2020-03-01'": lambda row: row.d == datetime(2020, 3, 1),
    "CAST(n AS VARCHAR) = '-5'": lambda row: row.n == -5,
    "n::DOUBLE > f": lambda row: row.n is not None and row.f is not None and row.n > row.f,
}


@dataclass(frozen=True)
class Bench:
    """A backend under test.

    Attributes:
        backend: its name.
        make: makes relations.
    """

    backend: str
    make: MakeRelations

    def table(
        self,
        types: Mapping[str, str],
        rows: Sequence[Sequence[str | None]],
        where: str | None = None,
        others: Mapping[str, Content] | None = None,
        **declared: Any,
    ) -> PrivateTable:
        """A table ``data`` with a unit ``u``, whose bounds nobody reaches unless they are declared."""
        source = self.make({"data": (types, rows), **(others or {})})
        fields: dict[str, Any] = {
            "name": "data",
            "backend": self.backend,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 10_000},
            "columns": {},
        }
        return PrivateTable(Table.model_validate(fields | dict(source) | declared), where)

    def open_backend(self, table: PrivateTable) -> QueryBackend:
        """The backend of a table, for what only tests ask: answers by a nonce."""
        return find_backend(self.backend)(table.declaration, None)

    def answer(self, table: PrivateTable, request: DataRequest, nonce: int | None) -> Answer:
        """The answer by a nonce, or by fresh draws; of an open column its only group's cells."""
        backend = self.open_backend(table)
        if not isinstance(request, UnboundedValues):
            return backend.answer(request, (), nonce)
        with backend.hold_open(), backend.open_answer(request, (), nonce) as column:
            return column.count_cells(dict.fromkeys(range(len(request.keys)), CellGrid(None)))
