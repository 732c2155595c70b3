# ruff: noqa: E501  queries are written as analysts write them
"""Published answers beside what was released: their numbers keep their intervals, and are never taken for facts, nor for
independent noise.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
import yaml
from question_tables import make_tables
from typer.testing import CliRunner

import dpflow
from dpflow.analyst_sql.answer.publish_answer import publish_answer
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.cli import app
from dpflow.errors import InvalidInput, PlanRefused, SqlRefused, TableUnreadable
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.named_tables import AnswerRun, publish_view
from dpflow.tables.public.published_rows import load_published_rows

PRICE = {"scope": "shop", "epsilon": "1", "delta": "1e-6"}
T = dt.datetime(2026, 1, 1)
COUNTS = "SELECT category, COUNT(*) AS n FROM orders GROUP BY category"
RELEASED = f"WITH r AS ({COUNTS})"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop with published answers: all groups, chosen ones, selected ones, and two computed columns."""
    folder = tmp_path_factory.mktemp("shop")
    make_tables(folder)
    catalogue = yaml.safe_load((folder / "dpflow.yml").read_text())
    (folder / "dpflow.yml").write_text(
        yaml.safe_dump(catalogue | {"output": {"database": "published.duckdb"}})
    )
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant(
        "shop",
        1000,
        "0.1",
        table=load_table(folder / "orders.yml"),
        principal="owner",
        confirm_large=True,
    )
    for name, query in {
        "by_category": COUNTS,
        "large": f"{COUNTS} HAVING n > 10",
        "products": "SELECT product, COUNT(*) AS n FROM orders GROUP BY product",
        "places": f"{RELEASED} SELECT category, RANK() OVER (ORDER BY n) AS place, n / 2 AS half FROM r",
    }.items():
        publish(folder, query, name, epsilon="20" if name == "products" else "1")
    return folder


def publish(shop: Path, query: str, name: str, **options: Any) -> dpflow.SqlAnswer:
    plan = plan_sql(query, PRICE | options | {"name": name}, folder=shop)
    answer = ask(shop, query, **options)
    publish_answer(plan, answer, shop)
    return answer


def ask(shop: Path, query: str, **options: Any) -> dpflow.SqlAnswer:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop)
        return dpflow.sql(query, ledger=shop / "ledger.sqlite", **PRICE | options)


def test_a_published_number_keeps_its_interval(shop: Path) -> None:
    """The same release, stored and published: the difference is 0, and its interval adds both widths and failures."""
    answer = ask(
        shop,
        f"{RELEASED} SELECT category, r.n - p.n AS change, p.n AS old, p.n_noise_high AS top FROM r JOIN by_category p USING (category)",
    )
    assert answer.free and {row[1] for row in answer.rows} == {0}
    assert [(c.interval, c.confidence) for c in answer.columns] == [
        ("exact", None),
        ("stated", 90),
        ("stated", 95),
        ("no interval", None),
    ]
    for _, change, old, top in answer.values:
        assert old.high == top.value and old.high > old.value
        assert change.high == pytest.approx(2 * (old.high - old.value))
    assert "change: at least 90 % noise interval" in answer.notes


def test_a_published_order_of_noise_chooses_nothing(shop: Path) -> None:
    """Its rows are read in the order of their keys, so the first of them are not the largest."""
    publish(shop, f"{COUNTS} ORDER BY n DESC", "sorted")
    rows = load_published_rows(shop / "published.duckdb", "sorted")
    assert rows is not None and list(rows.values[0]) == sorted(rows.values[0])


@pytest.mark.parametrize(
    ("query", "intervals"),
    [
        # Rows that noise chose, or that were selected: one by one their intervals do not hold.
        ("SELECT r.n, p.n AS x FROM r JOIN large p USING (category)", ["stated", "no interval"]),
        ("SELECT r.n, p.n AS x FROM r CROSS JOIN products p", ["stated", "no interval"]),
        ("SELECT r.n, COUNT(*) AS x FROM r CROSS JOIN products p GROUP BY r.n, r.category", ["no interval", "no interval"]),
        ("SELECT COUNT(*) AS x FROM large, r", ["no interval"]),
        ("SELECT COUNT(*) AS x FROM by_category, r", ["exact"]),
        # A rank is noise that has no interval, and no fact.
        ("SELECT category, place AS x FROM r JOIN places USING (category)", ["exact", "no interval"]),
        ("SELECT r.n, place + 1 AS x FROM r JOIN places USING (category)", ["stated", "no interval"]),
        ("SELECT category, half AS x FROM r JOIN places USING (category)", ["exact", "stated"]),
        # What the noise of one chose of the other.
        ("SELECT p.n AS x FROM r JOIN by_category p USING (category) WHERE r.n > 10", ["no interval"]),
        ("SELECT block, run, released_at FROM by_category, r", ["exact", "exact", "exact"]),
    ],
)  # fmt: skip
def test_what_has_no_sound_interval_has_none(shop: Path, query: str, intervals: list[str]) -> None:
    answer = ask(shop, f"{RELEASED} {query}")
    assert [column.interval for column in answer.columns] == intervals


def test_rows_that_published_noise_chose_widen_all(shop: Path) -> None:
    """As if all numbers had chosen: the published noise may be the very noise of the released one."""
    plain, *chosen = (
        ask(shop, f"{RELEASED} SELECT r.n FROM r JOIN {joined}")
        for joined in (
            "by_category p USING (category)",
            "by_category p USING (category) WHERE p.n > 0",
            # Published without what noise left out.
            "large USING (category)",
            "(SELECT category FROM large LIMIT 3) USING (category)",
        )
    )
    low, high = plain.values[0][0].raw_span
    for answer in chosen:
        assert answer.columns[0].interval == "stated"
        assert answer.values[0][0].raw_span[1] - answer.values[0][0].raw_span[0] > high - low


def test_all_runs_and_the_latest_are_read(shop: Path) -> None:
    """An answer of other draws stands beside the first one, and columns that differ hold with what the least holds."""
    first = publish(shop, COUNTS, "runs")
    second = publish(shop, COUNTS, "runs", revision=2)
    query = f"{RELEASED} SELECT p.category, p.n FROM runs p WHERE p.category = 'Toys' AND (SELECT COUNT(*) FROM r) > 0 ORDER BY ALL"
    toys = {dict(one.rows)["Toys"] for one in (first, second)}
    rows = ask(shop, query).rows
    assert {n for _, n in rows} == toys and len(rows) == 2
    rows = ask(shop, query.replace("runs p", "runs_latest p")).rows
    assert rows == [("Toys", dict(second.rows)["Toys"])]


def test_ends_beside_another_column_are_no_interval(tmp_path: Path) -> None:
    """A column that had no noise in an earlier answer has its ends behind all others: no other column is taken for one.
    An answer without values takes no interval from those of other runs.
    """
    file = tmp_path / "out.duckdb"
    ends = [(f"n_noise_{end}", "DOUBLE", [value]) for end, value in (("low", 0.5), ("high", 1.5))]
    number, other = ("n", "BIGINT", [1]), ("m", "DOUBLE", [7.0])
    publish_view(
        file, "kept", [number, *ends, other], AnswerRun("1", "", T, (95, 0, 0, 100), False)
    )
    empty = [(name, kind, [None]) for name, kind, _ in (number, *ends, other)]
    publish_view(file, "kept", empty, AnswerRun("2", "", T, (99, 0, 0, 100), False))
    publish_view(
        file,
        "moved",
        [number, other, ("k", "DOUBLE", [8.0])],
        AnswerRun("1", "", T, (100,) * 3, False),
    )
    publish_view(
        file, "moved", [number, *ends, other], AnswerRun("2", "", T, (95, 0, 0, 100), False)
    )
    kept, moved = (load_published_rows(file, name) for name in ("kept", "moved"))
    assert kept is not None and moved is not None
    assert kept.has_interval(0) and kept.confidences[0] == 95
    assert [name for name, _ in moved.columns[:3]] == ["n", "m", "k"] and moved.confidences[0] == 95
    assert not moved.has_interval(0)


def test_an_answer_without_values_leaves_intervals(shop: Path) -> None:
    answer = ask(shop, f"{COUNTS} HAVING n > 100000000")
    assert not answer.values
    assert [column[3] for column in answer.list_published()] == [
        100,
        99,
        0,
        0,
        0,
        0,
        0,
    ]


def test_columns_and_types_are_the_plans(shop: Path, tmp_path: Path) -> None:
    """With all rows, one or none, whole numbers or large ones: of one query what is published or written has one shape, also
    of an answer that came over a wire.
    """
    file = tmp_path / "answer.parquet"
    for item in (
        *(
            "n",
            "n / 2",
            "n / nullif(n - 10, 0)",
            "SUM(n) OVER ()",
            "n::HUGEINT * 10::HUGEINT ** 12",
        ),
        *(
            "n > 10",
            "CASE WHEN n > 10 THEN n / 2 END",
            "DATE '2020-01-01' + n::INTEGER",
            "rank() OVER (ORDER BY n)",
        ),
    ):
        shapes = []
        for condition in ("n > -1000000", "category = 'Toys'", "n > 1000000000"):
            query = f"{RELEASED} SELECT category, {item} AS x FROM r WHERE {condition}"
            answer = ask(shop, query)
            received = dpflow.SqlAnswer.from_wire(json.loads(json.dumps(answer.to_wire())))
            assert received == answer
            received.write(file)
            written = pyarrow.parquet.read_schema(file)
            names = [column[0] for column in answer.list_published()]
            assert names == written.names
            received.write(file.with_suffix(".csv"))
            assert file.with_suffix(".csv").read_text().splitlines()[0] == ",".join(names)
            shapes.append((names, written.types))
        assert shapes[0] == shapes[1] == shapes[2], item


def test_names_mean_one_table(shop: Path) -> None:
    """A declared table's or a public one's name is no answer's; a CTE's hides an answer; who gives tables reads none."""
    for taken in ("orders", "Population", "population"):
        with pytest.raises(InvalidInput, match="is a table of dpflow.yml"):
            publish(shop, COUNTS, taken)
    shadowed = ask(
        shop, "WITH by_category AS (SELECT COUNT(*) AS m FROM orders) SELECT m FROM by_category"
    )
    assert [column.name for column in shadowed.columns] == ["m"]
    with pytest.raises(SqlRefused, match="by_category"):
        plan_sql(f"{RELEASED} SELECT r.n FROM r, by_category", PRICE, [shop / "orders.yml"])
    # Somebody's own table in the file is no answer, and neither is ours beside it.
    with duckdb.connect(str(shop / "published.duckdb")) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS x")
    for name in ("mine", "dpflow_named_tables", "dpflow_answers.by_category", "releases"):
        with pytest.raises(SqlRefused) as refused:
            plan_sql(f"{RELEASED} SELECT r.n FROM r, {name}", PRICE, folder=shop)
        assert refused.value.rule == "declared-table"


def test_private_rows_meet_no_published_table(shop: Path) -> None:
    """Neither before the noise, nor from a file that holds private rows."""
    with pytest.raises(SqlRefused, match="is a published answer, whose numbers have noise"):
        plan_sql(
            "SELECT COUNT(*) FROM orders JOIN by_category USING (category)", PRICE, folder=shop
        )
    catalogue = yaml.safe_load((shop / "dpflow.yml").read_text())
    (shop / "other").mkdir()
    private = shop / "other" / "shop.duckdb"
    private.write_bytes((shop / "published.duckdb").read_bytes())
    declaration = yaml.safe_load((shop / "orders.yml").read_text())
    (shop / "other" / "orders.yml").write_text(
        yaml.safe_dump(declaration | {"database": str(private)})
    )
    changed = {
        "tables": {"orders": "orders.yml"},
        "output": {"database": "shop.duckdb"},
        "scope": "shop",
    }
    (shop / "other" / "dpflow.yml").write_text(
        yaml.safe_dump({k: v for k, v in catalogue.items() if k == "ledger"} | changed)
    )
    with pytest.raises(PlanRefused, match="private table's file"):
        plan_sql(f"{RELEASED} SELECT r.n FROM r, by_category", PRICE, folder=shop / "other")


def test_a_file_that_says_nothing_of_noise_states_nothing(shop: Path) -> None:
    """Such as one whose notes are of other columns: all are noise then, and noise chose the rows."""
    with duckdb.connect(str(shop / "published.duckdb")) as connection:
        connection.execute(
            'UPDATE dpflow_answers."places runs" SET confidences = [100], chosen = NULL'
        )
    rows = load_published_rows(shop / "published.duckdb", "PLACES")
    assert rows is not None and rows.chosen and set(rows.confidences[:3]) == {0}
    answer = ask(shop, f"{RELEASED} SELECT p.category, half FROM r, places p")
    assert {column.interval for column in answer.columns} == {"no interval"}


def test_a_file_that_was_edited_reads_no_other(shop: Path, tmp_path: Path) -> None:
    """A view in the place of our notes could read any file, and a per cent may be none."""
    copy, schema = tmp_path / "published.duckdb", "dpflow_answers"
    copy.write_bytes((shop / "published.duckdb").read_bytes())
    with duckdb.connect(str(copy)) as connection:
        (columns,) = connection.execute(
            f'SELECT len(confidences) FROM {schema}."products runs"'
        ).fetchone() or (0,)
        for name, values in {
            "products": [None],
            "places": [100],
            "large": [200],
            "by_category": [-5],
        }.items():
            edited = (values * 20)[:columns]
            connection.execute(f'UPDATE {schema}."{name} runs" SET confidences = ?', [edited])
        connection.execute(f'ALTER TABLE {schema}."places runs" RENAME TO kept')
        connection.execute(
            f'CREATE VIEW {schema}."places runs" AS SELECT * FROM {schema}.kept WHERE block IN '
            f"(SELECT '' FROM read_text('/proc/version'))"
        )
    assert load_published_rows(copy, "places") is None
    for name in ("products", "large", "by_category"):
        rows = load_published_rows(copy, name)
        assert rows is not None and set(rows.confidences[:columns]) == {0}


def test_explain_says_what_is_read(shop: Path) -> None:
    view = plan_sql(
        f"{RELEASED} SELECT r.n - p.n AS x FROM r JOIN by_category p USING (category)",
        PRICE,
        folder=shop,
    ).explain()
    assert any(
        stage.startswith("read the published answer by_category, 4 rows of category, n")
        for stage in view["stages"]
    )
    assert "published numbers as they were published" in view["columns"][0]["noise"]
    assert "together at least 90 %" in view["columns"][0]["noise"]


def test_a_name_that_is_taken_costs_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command: a table of its users, and another answer's view, are found before the charge."""
    monkeypatch.chdir(shop)
    ledger = Ledger(shop / "ledger.sqlite")
    with duckdb.connect(str(shop / "published.duckdb")) as connection:
        connection.execute("CREATE TABLE own_table AS SELECT 1 AS x")
    before = ledger.remaining("shop").rows()
    price = [text for name, value in PRICE.items() for text in (f"--{name}", value)]
    query = "SELECT COUNT(*) AS never_asked_before FROM orders"
    for name in ("own_table", "by_category_latest"):
        done = CliRunner().invoke(app, ["sql", query, "--name", name, *price])
        assert isinstance(done.exception, TableUnreadable), done.output
    assert ledger.remaining("shop").rows() == before
    assert CliRunner().invoke(app, ["sql", query, "--name", "free", *price]).exit_code == 0
