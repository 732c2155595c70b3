"""What a unit keeps on Spark is a function of rows and nonce, and is what DuckDB answers where nothing
is left out.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_servers import declare_source

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, KeySets, Records, SortedValues
from dpflow.core.contract.squares import Square
from dpflow.errors import PlanRefused
from dpflow.tables.backends.spark_backend import hash_bounding
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.usefixtures("steady_files")

KINDS = {"u": "INTEGER", "k": "VARCHAR", "v": "DOUBLE", "d": "DATE"}
KEYS = ("it's", "a;t1:b", "ü")
JANUARY = dt.date(2020, 1, 1)
FIELDS: dict[str, Any] = {
    "columns": {
        "k": {"public_keys": list(KEYS)},
        "v": {"lower": -3, "upper": 3, "step": "0.25"},
        "d": {"lower": JANUARY, "upper": JANUARY + dt.timedelta(30), "missing": JANUARY},
    },
}


def draw_rows(count: int, seed: int) -> list[tuple[str | None, ...]]:
    rng = random.Random(seed)
    return [
        (
            rng.choice([None, *"1234567"]),
            rng.choice([None, "other", *KEYS]),
            rng.choice([None, "nan", "inf", "-0.0", *(str(i / 8) for i in range(-30, 30))]),
            rng.choice([None, "2020-01-02", "2019-01-01", "2020-01-30"]),
        )
        for _ in range(count)
    ]


def requests(groups: int, rows: int) -> list[Any]:
    values = (("v", 3), ("d", 18270))
    return [
        GroupedSums("k", KEYS, groups, rows, values, (Square("v", 1, 2),)),
        GroupedSums("k", None, groups, rows, values),
        GroupedSums(None, None, 1, rows, values),
        SortedValues("v", rows, "k", KEYS, groups),
        SortedValues("d", rows),
        KeySets("k", groups),
        Records(("v", "k", "d"), rows),
    ]


def plain(answer: Any) -> Any:
    """An answer as comparable Python values; units have no names."""
    fields = {n: getattr(answer, n) for n in answer.__dataclass_fields__}
    if "codes" in fields and "units" in fields:
        sets = defaultdict(set)
        for unit, code in zip(answer.units.tolist(), answer.codes.tolist()):
            sets[unit].add(answer.keys[code])
        return sorted(sorted(one) for one in sets.values())
    if "columns" in fields:
        by_unit = defaultdict(list)
        for unit, *row in zip(
            answer.units.tolist(), *(c.tolist() for c in answer.columns.values())
        ):
            by_unit[unit].append(tuple(row))
        return sorted(sorted(rows) for rows in by_unit.values())
    listed = lambda one: (  # noqa: E731
        one.tolist() if isinstance(one, np.ndarray)
        else {k: listed(v) for k, v in one.items()} if isinstance(one, dict)
        else one
    )  # fmt: skip
    return {name: listed(one) for name, one in fields.items()}


@pytest.mark.parametrize("missing", ["drop", "one-unit"])
def test_exact_statistics_are_those_of_duckdb(
    missing: str, declare: Callable[..., PrivateTable], tmp_path: Path
) -> None:
    """Of the same rows, where no bound binds; also with a condition, and with blocks protected by
    themselves.
    """
    rows = draw_rows(200, 1)
    fields = FIELDS | {"privacy_unit": {"column": "u", "missing": missing}}
    fields |= {"block": "d", "protects": "unit-block"} if missing == "drop" else {}
    where = "v > -2 AND (k <> 'ü' OR d < '2020-01-10')"
    spark = declare(KINDS, rows, where=where, **fields)
    file = tmp_path / "same.duckdb"
    with duckdb.connect(str(file)) as connection:
        place = spark.declaration.source.table
        connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{place}/*.parquet'")
    declared = {"name": "visits", "database": file, "contribution_bounds": {"rows": 3}} | fields
    duck = PrivateTable(Table.model_validate(declared), where)
    # One session for all: opening one costs as much as a query of a small table.
    with spark.hold_open(), duck.hold_open():
        for request in requests(9, 1000):
            for blocks in [(), ("2020-01-02", "2020-01-30")] if missing == "drop" else [()]:
                spark.check_request(request, blocks)
                assert plain(spark.answer(request, blocks)) == plain(duck.answer(request, blocks))


def test_what_is_kept_depends_on_rows_and_nonce_alone(
    declare: Callable[..., PrivateTable], folders: Any
) -> None:
    """A stage that is computed again, over other partitions in another order, keeps the same rows;
    another nonce keeps others.
    """
    rows = draw_rows(300, 2)
    one = declare(KINDS, rows, **FIELDS)
    place = Path(one.declaration.source.table)
    many = declare(KINDS, rows[-30:], **FIELDS)
    split = Path(many.declaration.source.table)
    for number, start in enumerate(range(0, 270, 45)):
        part = rows[start : start + 45][::-1]
        folders.write(split / f"part-{number + 1}.parquet", KINDS, part)
    assert len(list(place.iterdir())) == 1 and len(list(split.iterdir())) == 7
    kept = {}
    for request in requests(2, 2):
        first, second = (plain(t._backend.answer(request, (), nonce=5)) for t in (one, many))
        assert first == second
        kept[request] = first
    others = [plain(one._backend.answer(request, (), nonce=6)) for request in kept]
    assert sum(a != b for a, b in zip(kept.values(), others)) >= 5


def test_a_unit_with_many_rows_moves_a_sum_by_its_bound(
    declare: Callable[..., PrivateTable],
) -> None:
    """Whatever its rows are, and for each nonce: 2 rows of at most 3, on a grid of a quarter. The same
    with the other rows alone gives the rest of the sum.
    """
    others = [(str(u), "ü", "1", None) for u in range(5, 9)]
    heavy = [("1", key, "1e308", None) for key in KEYS for _ in range(50)]
    request = GroupedSums("k", KEYS, 1, 2, (("v", 0),))
    with_unit, without = (declare(KINDS, rows, **FIELDS) for rows in (others + heavy, others))
    for nonce in (1, None):
        answers = [t._backend.answer(request, (), nonce) for t in (with_unit, without)]
        moved = answers[0].sums["v"] - answers[1].sums["v"]
        assert sorted(moved.tolist()) == [0, 0, 2 * 12]
        assert sorted((answers[0].units - answers[1].units).tolist()) == [0, 0, 1]
        assert sorted((answers[0].rows - answers[1].rows).tolist()) == [0, 0, 2]


def test_hash_inputs_are_told_apart() -> None:
    """NULL is no text, and no two lists of words are one text."""
    numbers = [
        hash_bounding.find_cell_fraction(1, [None, "n"], 0),
        hash_bounding.find_cell_fraction(1, ["n", None], 0),
        hash_bounding.find_cell_fraction(1, ["a;t1:b"], 0),
        hash_bounding.find_cell_fraction(1, ["a", "b"], 0),
        hash_bounding.find_cell_fraction(1, ["a"], 1, 0),
        hash_bounding.find_cell_fraction(11, ["a"], 0),
        hash_bounding.find_cell_fraction(1, ["a"], "0", 0),
    ]
    # Lengths are of bytes: of what is no UTF-8 servers count letters in several ways.
    assert hash_bounding.tag_text("ü") == "t2:ü"
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"lower": 0, "upper": 2**62}, "2\\^62"),
        ({"lower": 0, "upper": 2**63}, "2\\^62"),
        ({"lower": 0, "upper": 2, "step": "1e-18"}, "2\\^62"),
        ({"lower": 0, "upper": 3, "step": "0.7e-18"}, "does not fit"),
    ],
)
def test_what_64_bits_do_not_hold_is_refused(
    column: Any, words: str, declare: Callable[..., PrivateTable]
) -> None:
    """By declaration and request alone."""
    table = declare({"u": "INTEGER", "v": "BIGINT"}, [("1", "1")], columns={"v": column})
    with pytest.raises(PlanRefused, match=words):
        table.check_request(GroupedSums(values=(("v", 0),), rows_per_group=3), ())


@pytest.mark.parametrize("protected", ["unit", "part"])
@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("DATE", ["300000-01-01", "300000-01-02", "2020-01-01"]),
        ("TIMESTAMP", ["290000-01-01", "290000-01-02", "2020-01-01 00:00:00.000001"]),
    ],
)
def test_times_that_no_clock_shows_are_units_apart(
    kind: str, times: list[str], protected: str, declare: Callable[..., PrivateTable]
) -> None:
    """A server writes one text for all of them, and two units that are one move each other's rows."""
    fields: dict[str, Any] = {"privacy_unit": {"column": "t"}}
    if protected == "part":
        fields = {"block": "t", "protects": "unit-block", "columns": {"t": {}}}
    rows = [("1", moment) for moment in times]
    table = declare({"u": "INTEGER", "t": kind}, rows, **fields)
    assert table.answer(GroupedSums(), ()).units.tolist() == [3]


def test_a_unit_with_a_new_key_moves_its_own_rows_only(
    declare: Callable[..., PrivateTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's plans show the nonce, so what others keep of private keys is a function of their own rows:
    by the keys' places it would not be, and it is what the numbers of the keys' texts say.
    """
    monkeypatch.setattr("secrets.randbits", lambda _: 5)
    kinds = {"u": "INTEGER", "k": "VARCHAR"}
    rows = [(str(i % 30), f"k{i * 7 % 23}") for i in range(200)]
    tables = [declare(kinds, given, columns={"k": {}}) for given in (rows, [*rows, ("99", "a0")])]

    def count_kept(table: PrivateTable, request: Any, nonce: int | None = None) -> Counter[str]:
        answer = table._backend.answer(request, (), nonce)
        if isinstance(request, KeySets):
            return Counter(answer.keys[code] for code in answer.codes.tolist())
        return Counter(dict(zip(answer.keys, answer.units.tolist())))

    want: Counter[str] = Counter()
    for unit in {unit for unit, _ in rows}:
        own = {key for one, key in rows if one == unit}
        number = {key: hash_bounding.find_cell_fraction(5, [unit], key) for key in own}
        want.update(sorted(own, key=number.__getitem__)[:2])
    for request in (GroupedSums("k", None, 2, 3), KeySets("k", 2)):
        without, with_unit = (count_kept(table, request) for table in tables)
        assert without == want and with_unit == want + Counter(["a0"])
        # By places, as the numbers of tests are.
        assert count_kept(tables[1], request, 5) != count_kept(tables[0], request, 5) + Counter(
            ["a0"]
        )


def test_tags_are_read_back() -> None:
    """Whatever texts are put together, signs of tags among them."""
    for texts in (["a"], ["", ";t1:b"], ["t1:é", "n", "12:"], ["\U0001f600", "a\x00b"]):
        assert hash_bounding.read_tags(";".join(map(hash_bounding.tag_text, texts))) == texts
    assert hash_bounding.read_tags("t1:a;n;t1:b") is None


def test_private_whole_numbers_are_keys_as_their_texts_are(
    declare: Callable[..., PrivateTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of integers is grouped as it is, and keys are in the order of their texts. Which a unit keeps
    follows from the numbers of what is grouped by.
    """
    monkeypatch.setattr("secrets.randbits", lambda _: 5)
    rows = [(str(i % 30), str(i * 7 % 23 - 11)) for i in range(200)]
    for kind in ("BIGINT", "TINYINT", "VARCHAR"):
        table = declare({"u": "INTEGER", "k": kind}, [*rows, ("3", None)], columns={"k": {}})
        answers = table.answer(GroupedSums("k", None, 2, 3), ()), table.answer(KeySets("k", 2), ())
        want: Counter[str] = Counter()
        whole = kind != "VARCHAR"
        for unit in {unit for unit, _ in rows}:
            number = {
                key: hash_bounding.find_cell_fraction(5, [unit], int(key) if whole else key)
                for one, key in rows
                if one == unit
            }
            want.update(sorted(number, key=number.__getitem__)[:2])
        for answer in answers:
            assert list(answer.keys) == sorted(want, key=str.encode)
        assert dict(zip(answers[0].keys, answers[0].units.tolist())) == want
        assert Counter(answers[1].keys[code] for code in answers[1].codes.tolist()) == want


def test_numbers_beyond_a_servers_type_decide_nothing(spark_server: str, tmp_path: Path) -> None:
    """Sail calls an unsigned column BIGINT, where one key or unit beyond 2^63 made the answer fail: such a
    column is refused by its type there. Apache Spark has a type that holds both.
    """
    is_cluster = os.environ.get("DPFLOW_TEST_SPARK") == "cluster"
    for name, units, keys in (
        ("keys", [1, 2, 3], [1, 2, 2**63]),
        ("units", [1, 2, 2**63], [1, 2, 7]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        numbers = {"u": pa.array(units, pa.uint64()), "k": pa.array(keys, pa.uint64())}
        pq.write_table(pa.table(numbers), folder / "part.parquet")
        declared = {
            "name": name,
            "source": declare_source(spark_server, folder),
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 2},
            "columns": {"k": {}},
        }
        table = PrivateTable(Table.model_validate(declared))
        for request in (GroupedSums("k", None, 2, 2), KeySets("k", 2)):
            if is_cluster:
                assert table.answer(request, ()).keys == ("1", "2", str(keys[2]))
                continue
            with pytest.raises(PlanRefused, match="has the type UNSIGNED BIGINT"):
                table.check_request(request)
