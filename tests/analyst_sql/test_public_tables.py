"""Public tables of dpflow.yml: joined with what was released, and with private rows by a key that is unique."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from question_tables import make_tables

import dpflow
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.releases.settings import find_public_table
from dpflow.catalogue import load_catalogue
from dpflow.errors import DpflowError, InvalidDeclaration, InvalidInput, PlanRefused, SqlRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.loading.list_files import list_files
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


@pytest.mark.parametrize(("join", "is_free"), [("JOIN", True), ("LEFT JOIN", False)])
def test_groups_of_a_public_column_add_up_where_each_row_finds_one(
    shop: Path, monkeypatch: pytest.MonkeyPatch, join: str, is_free: bool
) -> None:
    """A row that finds no public row is in no group of its columns."""
    rows = f"FROM orders {join} population USING (country)"
    answer(shop, f"SELECT population.name, COUNT(*) {rows} GROUP BY 1", monkeypatch)
    options = PRICE | {"ledger": shop / "ledger.sqlite", "epsilon": "0.1"}
    assert (not dpflow.plan_sql(f"SELECT COUNT(*) {rows}", **options).to_pay) == is_free


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT COUNT(*) FROM population", "declared-table"),
        ("SELECT COUNT(*) FROM orders JOIN population USING (country)", "ok"),
        ("SELECT COUNT(*) FROM population JOIN orders USING (country)", "ok"),
        ("SELECT COUNT(*) FROM population LEFT JOIN orders USING (country)", "joins"),
        ("SELECT COUNT(*) FROM orders WHERE country IN (SELECT country FROM population)", None),
        (PER_HEAD.replace("people", "persons"), "binding"),
        (PER_HEAD.replace("Population", "main.population"), "ok"),
        (PER_HEAD.replace("Population", "other.population"), "declared-table"),
    ],
)
def test_what_private_rows_meet_of_a_public_table(shop: Path, query: str, rule: str | None) -> None:
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


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of private rows in a listed file, and links to it; a declaration of another table."""
    make_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "rows"
    folder.mkdir()
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT i AS person, 'Norway' AS country FROM range(9) r(i)) TO 'rows/part.parquet' (FORMAT parquet)"
        )
    list_files([folder / "part.parquet"], folder, "visits", tmp_path / "visits.files.json")
    declared = {"name": "visits", "privacy_unit": {"column": "person"}, "columns": {},
                "contribution_bounds": {"rows": 1}, "database": "visits.files.json"}  # fmt: skip
    Path("visits.yml").write_text(yaml.safe_dump(declared))
    Path("soft.parquet").symlink_to("rows/part.parquet")
    Path("hard.parquet").hardlink_to("rows/part.parquet")
    Path("folder").symlink_to("rows")
    Path("folder.parquet").symlink_to("rows")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("rows/part.parquet", "in the private table's file"),
        ("rows/../rows/part.parquet", "in the private table's file"),
        ("soft.parquet", "in the private table's file"),
        ("hard.parquet", "in the private table's file"),
        ("folder/part.parquet", "in the private table's file"),
        ("rows/*.parquet", "is no file"),
        ("folder.parquet", "is no file"),
    ],
)
def test_no_public_table_is_a_listed_private_file(listed: Path, file: str, words: str) -> None:
    """Of any table of the catalogue, or of a service, under any name; nothing of it is read."""
    catalogue = yaml.safe_load(Path("dpflow.yml").read_text())
    catalogue["tables"]["visits"] = "visits.yml"
    catalogue["public"]["population"] = file
    Path("dpflow.yml").write_text(yaml.safe_dump(catalogue))
    with pytest.raises(DpflowError, match=words):
        plan_sql(PER_HEAD, PRICE, folder=listed)
    with pytest.raises(DpflowError, match=words):
        find_public_table("population")
    served = partial(
        find_public_table, tables=["orders.yml", "visits.yml"], public={"population": Path(file)}
    )
    with pytest.raises(DpflowError, match=words):
        plan_sql(PER_HEAD, PRICE, ["orders.yml"], find_public=served)
    # Control: whose declaration nothing names, it is a file like others.
    del catalogue["tables"]["visits"]
    Path("dpflow.yml").write_text(yaml.safe_dump(catalogue))
    if "private" in words:
        assert find_public_table("population") is not None


@pytest.mark.parametrize("place", ["{}/rows", "file://{}/rows", "{}/folder/"])
def test_no_public_table_is_in_a_folder_that_spark_reads(listed: Path, place: str) -> None:
    """By its path, through a link, or as a link to one of its files."""
    declared = yaml.safe_load(Path("visits.yml").read_text())
    del declared["database"]
    declared["source"] = {"spark": "lake", "table": place.format(listed)}
    Path("visits.yml").write_text(yaml.safe_dump(declared))
    for file in ("rows/part.parquet", "soft.parquet", "hard.parquet", "folder/part.parquet"):
        with pytest.raises(PlanRefused, match="in the private table's file"):
            find_public_table("facts", ["visits.yml"], public={"facts": Path(file)})
    other = {"facts": Path("population.csv")}
    assert find_public_table("facts", ["visits.yml"], public=other) is not None


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


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """4,000 private rows with keys that are missing on either side, and so much to spend that noise is negligible."""
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("rows.duckdb") as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 2000 AS unit, ['a', 'b', 'B', 'c', NULL, 'x''y'][1 + i % 6] AS code, "
            "(i % 7)::INTEGER AS number, DATE '2024-01-01' + (i % 3)::INTEGER AS day, i % 5 = 0 AS late, "
            "(i % 11)::DOUBLE AS amount FROM range(4000) r(i)"
        )
    declared = {
        "name": "visits",
        "database": "rows.duckdb",
        "privacy_unit": {"column": "unit"},
        "contribution_bounds": {"rows": 2, "groups": 2},
        "columns": {
            **{name: {} for name in ("number", "day", "late")},
            "code": {"public_keys": ["a", "b", "B", "c", "x'y"]},
            "amount": {"lower": 0, "upper": 10, "step": 1},
            "upper_code": {"expression": "upper(code)"},
        },
    }
    Path("visits.yml").write_text(yaml.safe_dump(declared))
    Path("codes.csv").write_text(
        "code,region,weight,rate,open\na,North,2,0.5,true\nb,South,-3,1.25,false\nB,North,5,,true\nx'y,it's,7,2,\n"
        "zz,Nowhere,9,3,true\n,Missing,1,1,true\n"
    )
    Path("numbers.csv").write_text("number,name,code\n1,one,q\n2,two,q\n3,one,q\n")
    Path("days.csv").write_text("day,label\n2024-01-01,first\n2024-01-03,third\n")
    Path("flags.csv").write_text("late,word\ntrue,late\nfalse,early\n")
    Path("twice.csv").write_text("code,region\na,North\na,South\n")
    Path("texts.csv").write_text("number,name\none,one\n2,two\n")
    Path("many.csv").write_text("code\n" + "".join(f"code {n}\n" for n in range(2000)))
    public = ["codes", "numbers", "days", "flags", "twice", "texts", "many"]
    catalogue = {"tables": {"visits": "visits.yml"}, "scope": "s",
                 "public": {name: f"{name}.csv" for name in public}}  # fmt: skip
    Path("dpflow.yml").write_text(yaml.safe_dump(catalogue))
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    terms = {"table": load_table("visits"), "principal": "o", "filter": "basic"}
    ledger.grant("s", 10**6, "0.9", **terms, confirm_large=True)
    return tmp_path


@pytest.mark.parametrize(
    "query",
    [
        "SELECT r.region, COUNT(*) AS n FROM visits v JOIN codes r ON v.code = r.code GROUP BY r.region",
        "SELECT region, COUNT(*), SUM(v.amount) FROM codes r JOIN visits v ON v.code = r.code GROUP BY region",
        "SELECT COUNT(*) FROM visits JOIN codes USING (code)",
        "SELECT COUNT(*) FROM visits LEFT JOIN codes USING (code)",
        "SELECT COUNT(*) FROM visits v LEFT JOIN codes r USING (code) WHERE r.region IS NULL",
        "SELECT COUNT(*) FROM visits v LEFT JOIN codes r ON (r.code = v.code) WHERE r.code IS NULL OR weight < 0",
        "SELECT SUM(r.weight), SUM(r.rate), COUNT(r.rate), COUNT(*) FILTER (WHERE NOT r.open) FROM visits v JOIN Codes r "
        "ON v.code = r.code WHERE weight BETWEEN -3 AND 6",
        "SELECT code, COUNT(*) / MAX(r.weight) AS x, MIN(r.region), ANY_VALUE(r.rate), MAX(r.open) FROM visits JOIN codes r "
        "USING (code) WHERE code <> 'c' GROUP BY code",
        "SELECT v.code, COUNT(*) AS n, MAX(r.region) FROM visits v LEFT JOIN codes r ON v.code = r.code GROUP BY 1",
        "SELECT s.name, COUNT(*) FROM visits v JOIN numbers s ON v.number = s.number GROUP BY s.name",
        "SELECT d.label, f.word, COUNT(*) FROM visits v JOIN days d USING (day) LEFT JOIN flags f ON v.late = f.late "
        "GROUP BY ALL",
        "WITH w AS (SELECT unit, r.region || '!' AS place, amount FROM visits v JOIN codes r ON v.code = r.code) "
        "SELECT place, SUM(amount) FROM w GROUP BY place",
        "WITH w AS (SELECT code, amount AS a FROM visits WHERE late) SELECT region, SUM(a) FROM w JOIN codes c ON w.code = "
        "c.code GROUP BY region",
        "WITH w AS (SELECT unit, SUM(r.weight) AS s FROM visits v JOIN codes r ON v.code = r.code WHERE r.open GROUP BY unit) "
        "SELECT COUNT(*) FROM w WHERE s > 2",
    ],
)
def test_private_rows_find_public_ones_as_duckdb_joins_them(rows: Path, query: str) -> None:
    """Keys that either side lacks, NULL among them, texts that differ in case, and columns that are NULL."""
    answered = dpflow.sql(query, ledger=rows / "ledger.sqlite", epsilon="9000", delta="1e-3")
    with duckdb.connect(str(rows / "rows.duckdb"), read_only=True) as connection:
        for file in rows.glob("*.csv"):
            connection.execute(f"CREATE TEMP VIEW {file.stem} AS FROM '{file}'")
        truth = connection.execute(query).fetchall()

    def show(listed: list[tuple[Any, ...]]) -> set[tuple[str, ...]]:
        # Declared keys without rows are groups, too, and rows without a key are in none.
        kept = [row for row in listed if row[0] is not None and 0 not in row]
        return {
            tuple(f"{v:.3g}" if type(v) in (int, float) else str(v) for v in row) for row in kept
        }

    assert show(answered.rows) == show(truth) != set()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("visits v JOIN twice r ON v.code = r.code", "several rows of 'twice' have one code"),
        (
            "visits v JOIN texts r ON v.number = r.number",
            "the key is INTEGER in 'visits' and VARCHAR in 'texts'",
        ),
        (
            "visits v JOIN numbers r ON v.amount = r.number",
            "the key is DOUBLE in 'visits' and BIGINT",
        ),
        ("visits v RIGHT JOIN codes r ON v.code = r.code", "RIGHT JOIN of private rows"),
        ("visits v JOIN codes r ON v.code > r.code", "one equality of columns"),
        ("visits v, codes r", "one equality of columns"),
        ("visits v JOIN codes r ON v.code = r.code AND r.weight > 1", "one equality of columns"),
        ("visits v JOIN codes r ON upper(v.code) = r.code", "one equality of columns"),
        ("visits v JOIN codes r ON code = r.code", "one equality of columns"),
        ("visits v JOIN codes r ON v.upper_code = r.code", "'joins' .* as it is stored"),
        ("visits v JOIN codes v ON v.code = v.code", "two relations are called 'v'"),
        ("visits v JOIN many r ON v.code = r.code", "2000 public rows are too many"),
        (
            "visits v JOIN codes r ON v.code = r.code JOIN twice t ON r.region = t.region",
            "as it is stored",
        ),
        (
            "visits v JOIN codes r ON v.code = r.code WHERE code = 'a'",
            "two relations have a column 'code'",
        ),
        ("visits v JOIN days r USING (day) WHERE r.day > '2024-01-02' AND label > 0", None),
        ("(SELECT * FROM visits v JOIN codes r USING (code)) t", "name the columns"),
        ("visits WHERE code IN (SELECT code FROM codes)", "public table are written as literals"),
    ],
)
def test_a_join_that_could_repeat_a_row_or_compare_otherwise_is_refused(
    rows: Path, source: str, words: str | None
) -> None:
    """Before a charge; the private types are the catalogue's."""
    with pytest.raises(DpflowError, match=words):
        plan_sql(f"SELECT COUNT(*) FROM {source}", {"epsilon": "1", "delta": "1e-6"}, folder=rows)


def test_a_public_join_costs_and_counts_as_what_it_is_written_out(rows: Path) -> None:
    """Bounds, keys and noise are those of the CASE; another table is another question."""
    of_join = "SELECT region, COUNT(*) AS n, SUM(amount) FROM visits JOIN codes USING (code) GROUP BY region"
    of_case = (
        "SELECT CASE WHEN code IN ('a', 'B') THEN 'North' WHEN code = 'b' THEN 'South' WHEN code = 'x''y' THEN 'it''s' WHEN "
        "code = 'zz' THEN 'Nowhere' END AS region, COUNT(*) AS n, SUM(amount) FROM visits WHERE code IN ('a', 'B', 'b', 'x''y', "
        "'zz') GROUP BY 1"
    )
    plans = [
        plan_sql(query, {"epsilon": "1"}, folder=rows).parts[0].plan for query in (of_join, of_case)
    ]
    bounds = [plan.table.bounds_for(str(plan.request.params["by"])) for plan in plans]
    assert bounds[0] == bounds[1] and plans[0].event == plans[1].event
    assert plans[0].error_bound.half_width.keys() == plans[1].error_bound.half_width.keys()  # type: ignore[union-attr]
    assert plans[0].table.public_keys(plans[0].request.params["by"]) == (
        "North",
        "Nowhere",
        "South",
        "it's",
    )
    first = dpflow.sql(of_join, ledger=rows / "ledger.sqlite", epsilon="1")
    assert dpflow.sql(of_join, ledger=rows / "ledger.sqlite", epsilon="1").free and not first.free
    (rows / "codes.csv").write_text("code,region\na,North\nb,North\n")
    assert not dpflow.sql(of_join, ledger=rows / "ledger.sqlite", epsilon="1").free


def test_a_published_answer_is_joined_after_the_aggregation(rows: Path) -> None:
    """Its numbers have noise, which a condition on rows would hide."""
    catalogue = yaml.safe_load((rows / "dpflow.yml").read_text())
    catalogue["output"] = {"database": "published.duckdb"}
    (rows / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    query = "-- dp: name=by_code\nSELECT code, COUNT(*) AS n FROM visits GROUP BY code"
    dpflow.sql(query, ledger=rows / "ledger.sqlite", epsilon="1")
    with pytest.raises(SqlRefused, match="published answer, whose numbers have noise"):
        plan_sql(
            "SELECT COUNT(*) FROM visits v JOIN by_code b ON v.code = b.code",
            {"epsilon": "1"},
            folder=rows,
        )


def test_what_the_declaration_joins_comes_before_a_public_table(rows: Path) -> None:
    """Of one name: the declared relation's region is told, and not that of codes.csv."""
    with duckdb.connect(str(rows / "rows.duckdb")) as connection:
        connection.execute("CREATE TABLE codes AS SELECT 'a' AS code, 'Own' AS region")
    declared = yaml.safe_load((rows / "visits.yml").read_text())
    on = {"relation": "codes", "name": "codes", "kind": "dimension", "on": {"code": "code"}}
    columns = {"codes.region": {"public_keys": ["Own"]}, "codes.code": {}}
    declared |= {"joins": [on], "columns": declared["columns"] | columns}
    (rows / "visits.yml").write_text(yaml.safe_dump(declared))
    query = "SELECT codes.region, COUNT(*) FROM visits JOIN codes ON visits.code = codes.code GROUP BY 1"
    answer = dpflow.sql(query, ledger=rows / "ledger.sqlite", epsilon="9000")
    assert answer.rows == [("Own", 667)]


def test_public_numbers_are_those_of_their_columns(rows: Path) -> None:
    """A FLOAT is another number in a DOUBLE, and one of more than 64 bits is whole all the same."""
    with duckdb.connect() as connection:
        columns = "0.1::FLOAT AS rate, 18446744073709551615::UBIGINT AS id"
        connection.execute(
            f"COPY (SELECT unnest(['a', 'B', 'b']) AS code, {columns}) TO '{rows / 'numbers.parquet'}'"
        )
    catalogue = yaml.safe_load((rows / "dpflow.yml").read_text())
    catalogue["public"] = catalogue.get("public", {}) | {"numbers": "numbers.parquet"}
    (rows / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    join = "FROM visits JOIN numbers USING (code)"
    with pytest.raises(SqlRefused, match="numbers but FLOAT"):
        plan_sql(f"SELECT COUNT(*) {join} WHERE rate = 0.1", {"epsilon": "1"}, folder=rows)
    query = f"SELECT code, COUNT(*) AS n, MAX(id) AS id {join} GROUP BY code ORDER BY code"
    answer = dpflow.sql(query, ledger=rows / "ledger.sqlite", epsilon="1")
    assert {row[2] for row in answer.rows} == {18446744073709551615}
