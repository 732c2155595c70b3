"""Public tables of dpflow.yml: joined with what was released, and never with private rows."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import yaml
from question_tables import make_tables

import dpflow
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.catalogue import load_catalogue
from dpflow.errors import DpflowError, InvalidDeclaration, InvalidInput, SqlRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.public_tables import MAX_ROWS, load_public_table

PER_HEAD = (
    "WITH n AS (SELECT country, COUNT(*) AS orders FROM orders GROUP BY country) "
    "SELECT p.name, n.orders, n.orders / p.people AS per_head FROM n JOIN Population p USING (country)"
)
PRICE = {"scope": "shop", "epsilon": "1"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    make_tables(tmp_path)
    book = Ledger(tmp_path / "ledger.sqlite", create=True)
    book.grant("shop", 10, 0, table=load_table(tmp_path / "orders.yml"), principal="owner")
    return tmp_path


def answer(shop: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> dpflow.SqlAnswer:
    monkeypatch.chdir(shop)
    return dpflow.sql(query, ledger=shop / "ledger.sqlite", **PRICE)


def test_counts_are_joined_and_keep_intervals(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quotient by a public number has the count's interval divided by it; another name and alias is free."""
    first = answer(shop, PER_HEAD, monkeypatch)
    assert [row[0].value for row in first.values] == ["Italy", "Norway", "United States"]
    people = {"Norway": 5_600_000, "Italy": 58_900_000, "United States": 340_100_000}
    for name, orders, per_head in first.values:
        number = people[name.value]
        assert not name.noisy and per_head.value == orders.value / number
        assert per_head.low == pytest.approx(orders.low / number)
        assert per_head.high == pytest.approx(orders.high / number)
    again = answer(
        shop,
        "SELECT n.orders, population.people FROM population LEFT JOIN (SELECT country, COUNT(*) AS orders FROM orders "
        "GROUP BY country) n ON n.country = population.country",
        monkeypatch,
    )
    assert again.free and {row[0].value for row in again.values} == {
        row[1].value for row in first.values
    }


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT COUNT(*) FROM population", "declared-table"),
        ("SELECT COUNT(*) FROM orders JOIN population USING (country)", "joins"),
        ("SELECT COUNT(*) FROM population JOIN orders USING (country)", "joins"),
        ("SELECT COUNT(*) FROM orders WHERE country IN (SELECT country FROM population)", None),
        (PER_HEAD.replace("people", "persons"), "binding"),
        (PER_HEAD.replace("Population", "main.population"), "ok"),
        (PER_HEAD.replace("Population", "other.population"), "declared-table"),
    ],
)
def test_private_rows_meet_no_public_table(shop: Path, query: str, rule: str | None) -> None:
    """What it would decide about rows is refused before a charge."""
    if rule == "ok":
        plan_sql(query, PRICE, folder=shop)
        return
    with pytest.raises(SqlRefused) as caught:
        plan_sql(query, PRICE, folder=shop)
    assert rule in (None, caught.value.rule)


def test_a_cte_hides_a_public_table(shop: Path) -> None:
    """As it hides a declared one."""
    query = "WITH population AS (SELECT country, COUNT(*) AS n FROM orders GROUP BY country) SELECT n FROM population"
    assert plan_sql(query, PRICE, folder=shop).query.public == ()


def test_every_type_is_read_exactly(tmp_path: Path) -> None:
    """From Parquet, back to what DuckDB had; lists are texts."""
    file = tmp_path / "facts.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT CAST(2 AS HUGEINT) ** 100 AS h, 18446744073709551615::UBIGINT AS u, 0.1::DOUBLE AS d, "
            "1.10::DECIMAL(9, 2) AS m, DATE '2024-02-29' AS day, TIMESTAMP '2024-01-01 00:00:01.5' AS at, NULL::INTEGER AS z, "
            f"[1, 2] AS l, 'a''b' AS t, true AS b) TO '{file}' (FORMAT parquet)"
        )
        expected = connection.execute(
            f"SELECT * REPLACE (l::VARCHAR AS l) FROM '{file}'"
        ).fetchall()
        rows = load_public_table(file)
        casts = ", ".join(f'CAST(? AS {kind}) AS "{name}"' for name, kind in rows.columns)
        assert (
            connection.execute(f"SELECT {casts}", [one for (one,) in rows.values]).fetchall()
            == expected
        )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("facts.txt", "a\n1\n", "does not say by its name"),
        ("facts.parquet", "not parquet", "cannot be read"),
        ("facts.csv", None, "cannot be read"),
        ("facts.csv", "a #low\n1\n", "rename it"),
        ("facts.csv", "a\n" + "1\n" * (MAX_ROWS + 1), "more than 50,000 rows"),
    ],
)
def test_a_file_that_is_none_is_refused(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    """With what to do."""
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=words):
        load_public_table(tmp_path / name)


def test_no_name_is_private_and_public(shop: Path) -> None:
    """In any case of its letters."""
    catalogue = yaml.safe_load((shop / "dpflow.yml").read_text())
    catalogue["public"]["Orders"] = "population.csv"
    (shop / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    with pytest.raises(InvalidDeclaration, match="under tables and under public"):
        load_catalogue(shop / "dpflow.yml")


def test_a_private_file_is_no_public_table(shop: Path) -> None:
    """A DuckDB file has no reader here, whatever it is called."""
    (shop / "population.csv").write_bytes((shop / "shop.duckdb").read_bytes())
    with pytest.raises(DpflowError):
        plan_sql(PER_HEAD, PRICE, folder=shop)


def test_cells_that_enter_often_add_their_widths(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join that repeats each released row repeats its noise: the rule of independent noise is not taken."""
    counts = "(SELECT country, COUNT(*) AS orders FROM orders GROUP BY country) n"
    once = answer(shop, f"SELECT SUM(n.orders) FROM {counts}", monkeypatch).values[0][0]
    often = answer(
        shop, f"SELECT SUM(n.orders) FROM {counts} CROSS JOIN population p", monkeypatch
    ).values[0][0]
    assert once.value is not None and often.value == 3 * once.value
    assert once.raw_span is not None and often.raw_span is not None
    width, repeated = (high - low for low, high in (once.raw_span, often.raw_span))
    assert repeated > 3 * width


def test_who_names_the_tables_gets_no_others(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a service, whose clients reach nothing of its working directory."""
    monkeypatch.chdir(shop)
    with pytest.raises(SqlRefused, match="population"):
        plan_sql(PER_HEAD.replace("Population", "population"), PRICE, [shop / "orders.yml"])
