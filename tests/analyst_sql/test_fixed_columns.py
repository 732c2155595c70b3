"""Columns and types of frames, files and JSON follow from the query alone, whatever was drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from sql_world import EXACT

from dpflow.analyst_sql.answer.answers import GUARDED
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.engine import fail_closed
from dpflow.testing.harness import StreamSource

if TYPE_CHECKING:
    from sql_world import World

ENDS = ("noise_low", "noise_high", "low", "high", "raw_value")
BOUNDS = ("at_least", "at_most", "only_a_bound")
CITIES = "SELECT city, COUNT(*) AS n, AVG(age) AS a, SUM(age) AS s FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city"
#: Queries with the columns that have ends, and those that have bounds.
QUERIES = {
    CITIES: (("n", "a", "s"), ()),
    # Noise makes means NULL, so that their number is noise, or all of them have a value.
    f"SELECT COUNT(a) AS known, AVG(a) AS m, COUNT(*) AS cities FROM ({CITIES})": (("known", "m"), ()),
    f"SELECT city, COUNT(a) OVER (ORDER BY city) AS known FROM ({CITIES}) ORDER BY city": (("known",), ()),
    # It keeps all rows, or those that noise chose.
    f"SELECT COUNT(*) AS c, MAX(n) AS m FROM (SELECT * FROM ({CITIES}) ORDER BY n LIMIT 2)": (("c", "m"), ()),
    # No row, or all.
    f"SELECT city, n FROM ({CITIES}) WHERE n > 1000000": (("n",), ()),
    f"SELECT city, n FROM ({CITIES}) WHERE n > -1000000": (("n",), ()),
    # A divisor near 0, and what fails in DuckDB.
    f"SELECT city, 1 / (n - 3600) AS q, s // 3 AS whole, year(DATE '2020-01-31') AS d FROM ({CITIES})": (("q", "whole"), ()),
    f"SELECT city, n, ln(n - 3500) AS x FROM ({CITIES}) ORDER BY city": (("n", "x"), ()),
    "SELECT MEDIAN(age) AS m, MIN(cost) AS c FROM visits": (("m", "c"), ()),
    "SELECT MEDIAN(open) AS m, QUANTILE_CONT(open, 0.97) AS q, MEDIAN(open) + 1 AS p FROM visits": (("p",), ("m", "q")),
    "SELECT MEDIAN(day) AS m, MODE(city) AS c, HISTOGRAM(city) AS h FROM visits": ((), ("m",)),
    "SELECT clinic, COUNT(DISTINCT person) AS n FROM visits GROUP BY clinic": (("n",), ()),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[SqlAnswer]]:
    """Each query three times: with noise alone, with a little and with none."""
    from sql_world import World

    world = World(tmp_path_factory.mktemp("fixed"))
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute("ALTER TABLE visits ADD COLUMN open INTEGER")
        connection.execute("UPDATE visits SET open = age")
    columns = world.table.model_dump(mode="json", exclude_defaults=True)["columns"]
    world.table = world.declare(columns={**columns, "open": {}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
        # The exact ones last: they would serve all others.
        asked = [
            [world.ask(text, epsilon=epsilon, delta="1e-3") for text in QUERIES]
            for epsilon in ("1e-4", "0.05", EXACT)
        ]
    return dict(zip(QUERIES, map(list, zip(*asked))))


@pytest.mark.parametrize("text", QUERIES)
def test_columns_follow_from_the_query(answers: dict[str, list[SqlAnswer]], text: str) -> None:
    """With ends beside each number that noise may be in, and none elsewhere."""
    expected, with_ends, with_bounds = [], *QUERIES[text]
    for column in answers[text][0].columns:
        expected.append(column.name)
        expected += [f"{column.name}_{end}" for end in BOUNDS if column.name in with_bounds]
        is_ended = column.name in with_ends or (
            column.name in with_bounds and column.kind == "DOUBLE"
        )
        expected += [f"{column.name}_{end}" for end in ENDS if is_ended]
    listed = [[(n, k) for n, k, _ in one.list_columns(True)] for one in answers[text]]
    assert [name for name, _ in listed[0]] == expected
    assert listed[0] == listed[1] == listed[2]
    plain = [[(n, k) for n, k, _ in one.list_columns()] for one in answers[text]]
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.parametrize("text", QUERIES)
def test_every_form_has_these_columns(
    answers: dict[str, list[SqlAnswer]], text: str, tmp_path: Path
) -> None:
    """Frames, Arrow, JSON, files and published answers, over the wire, too."""
    kinds = set()
    for answer in answers[text]:
        names = [name for name, _, _ in answer.list_columns(True)]
        frame, arrow = answer.to_pandas(intervals=True), answer.to_arrow(intervals=True)
        assert [*frame.columns] == names == arrow.column_names
        kinds.add((tuple(map(str, frame.dtypes)), tuple(map(str, arrow.schema.types))))
        assert all([*row] == names for row in answer.to_json(intervals=True)["rows"])
        assert [name for name, _, _, _ in answer.list_published()] == names
        answer.write(tmp_path / "answer.parquet")
        assert duckdb.read_parquet(str(tmp_path / "answer.parquet")).columns == names
        assert SqlAnswer.from_wire(json.loads(json.dumps(answer.to_wire()))) == answer
    assert len(kinds) == 1


def test_the_queries_have_what_may_change(answers: dict[str, list[SqlAnswer]]) -> None:
    """The control: of these answers, columns are exact in one and noisy in another, and some are guarded."""
    changed = {
        column.name
        for listed in answers.values()
        for columns in zip(*(answer.columns for answer in listed))
        for column in columns
        if len({one.interval for one in columns}) > 1
    }
    assert "known" in changed
    assert any(GUARDED in answer.notes for listed in answers.values() for answer in listed)


def test_an_end_is_null_where_there_is_none(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quotient has no interval where its divisor may be 0, and its columns stay."""
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    text = "SELECT COUNT(*) / COUNT(DISTINCT person) AS q FROM visits WHERE age > 20"
    lost, known = (fresh.ask(text, epsilon=e).to_pandas(intervals=True) for e in ("1e-4", EXACT))
    assert [*lost.columns] == [*known.columns] == ["q", *(f"q_{end}" for end in ENDS)]
    assert lost["q_noise_low"].isna().all() and known["q_noise_low"].notna().all()
