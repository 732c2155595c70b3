"""Numbers of units and private keys have the range that rows give them: no row makes an answer fail, or
another one, whatever it does to that range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file
from in_turns import in_turns

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.tables.private import PrivateTable

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
#: Types whose values are numbered, with the ends of each.
ENDS = {
    **{kind: (str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)) for kind, bits in _BITS.items()},
    **{f"U{kind}": ("0", str(2**bits - 1)) for kind, bits in _BITS.items()},
    "DATE": ("-infinity", "infinity"),
}
NEAR = {"DATE": ("2020-01-01", "2020-01-02")}
REQUESTS = {
    "sums by private key": GroupedSums("p", None, 2, 2, (("v", 0),)),
    "sums by public key": GroupedSums("k", ("a", "b"), 1, 1, (("v", 0),)),
    "sums": GroupedSums(rows_per_group=2, values=(("v", 0),)),
    "values": SortedValues("v", 2),
}


@pytest.mark.parametrize(("kind", "role"), in_turns(list(ENDS), ["unit", "key"], every=2))
def test_a_row_at_an_end_is_one_row_more(kind: str, role: str, tmp_path: Path) -> None:
    """Tables of near values, with a row at either end of the type, and with both: each answer has the
    rows of its table.
    """
    near, ends = NEAR.get(kind, ("1", "2")), ENDS[kind]
    tables = ([], *([end] for end in ends), list(ends), [*ends, None])
    file = tmp_path / "t.duckdb"
    with duckdb_file(file) as connection:
        for i, more in enumerate(tables):
            rows = [
                f"(CAST({'NULL' if x is None else repr(x)} AS {kind}), {j}, 'a', 1)"
                for j, x in enumerate([*near, *more])
            ]
            connection.execute(
                f"CREATE TABLE t{i} AS FROM (VALUES {', '.join(rows)}) _(x, n, k, v)"
            )
    for i, more in enumerate(tables):
        declared: dict[str, Any] = {
            "name": "t",
            "database": file,
            "relation": f"t{i}",
            "privacy_unit": {"column": "x" if role == "unit" else "n"},
            "contribution_bounds": {"rows": 2},
            "columns": {
                "x": {},
                "n": {},
                "k": {"public_keys": ["a", "b"]},
                "v": {"lower": 0, "upper": 1},
            },
        }
        table = PrivateTable(Table.model_validate(declared))
        size = 2 + sum(text is not None for text in more)
        for name, request in REQUESTS.items():
            if isinstance(request, GroupedSums) and request.keys is None:
                request = GroupedSums("x" if role == "key" else "n", None, 2, 2, (("v", 0),))
            elif role == "key":
                continue
            answer = table.answer(request, ())
            if isinstance(request, SortedValues):
                assert int(answer.counts.sum()) == size, (name, more)
            else:
                assert int(sum(answer.rows)) == int(sum(answer.sums["v"])) == size, (name, more)
