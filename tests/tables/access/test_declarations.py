"""YAML is read by one reader: each file that is no declaration gets one sentence with its path and field."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dpflow.analyst_sql.releases.settings import make_finder
from dpflow.core.contract.columns import Column
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.server.served_tables import load_tables
from dpflow.tables.access.declarations import load_table
from dpflow.yaml_files import load_yaml

GOOD = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 4},
    "columns": {"age": {"lower": 0, "upper": 120}},
}


def test_a_mistake_names_the_file_and_the_field(tmp_path: Path) -> None:
    """`InvalidDeclaration`, whatever the model found."""
    path = tmp_path / "t.yml"
    path.write_text(yaml.safe_dump(GOOD | {"columns": {"age": {"lower": 5, "upper": 5}}}))
    with pytest.raises(
        InvalidDeclaration, match=r"t.yml does not declare a table: columns.age: .* must be below"
    ):
        load_table(path)


def test_the_database_is_relative_to_the_declaration(tmp_path: Path) -> None:
    """A declaration can be read from any working directory."""
    path = tmp_path / "t.yml"
    path.write_text(yaml.safe_dump(GOOD))
    assert load_table(path).database == (tmp_path / "visits.duckdb").resolve()


def test_files_that_are_no_declaration_get_one_sentence(tmp_path: Path) -> None:
    """A missing file, broken YAML and a bare list are told apart."""
    with pytest.raises(InvalidInput, match="there is no table declaration"):
        load_table(tmp_path / "none.yml")
    (tmp_path / "broken.yml").write_text("a: [1,\nb")
    with pytest.raises(InvalidInput, match="is not valid YAML near line"):
        load_yaml(tmp_path / "broken.yml", "x")
    (tmp_path / "list.yml").write_text("- 1")
    with pytest.raises(InvalidInput, match="holds no YAML mapping"):
        load_yaml(tmp_path / "list.yml", "x")


def test_on_needs_no_quotes(tmp_path: Path) -> None:
    """YAML 1.1 takes the bare word for true; a declaration means the field."""
    path = tmp_path / "t.yml"
    path.write_text(
        "{name: t, database: t.duckdb, privacy_unit: {column: u}, contribution_bounds: {rows: 1}, columns: {},\n"
        " joins: [{relation: d, name: d, kind: dimension, on: {k: id}}]}"
    )
    assert load_table(path).joins[0].on == {"k": "id"}


@pytest.mark.parametrize(
    ("source", "relation"),
    [
        ({"database": "stays.duckdb"}, "main.Stays"),
        ({"source": {"spark": "lake", "table": "/lake/stays"}}, "/lake/stays"),
    ],
)
def test_no_declaration_calls_public_what_another_protects(
    source: dict[str, Any], relation: str, tmp_path: Path
) -> None:
    """One row of the other table moved an answer, said to protect all rows of a person, by 300: by no door such
    a declaration is read, unless its owner says that everybody may see the rows.
    """
    own = {"source": {"spark": "lake", "table": "/lake/visits"}} if "source" in source else source
    visits = {name: value for name, value in GOOD.items() if name != "database"} | own
    join = {"relation": relation, "name": "s", "kind": "dimension", "on": {"user": "id"}}
    contents = {
        "dpflow": {"tables": {"visits": "visits.yml", "stays": "stays.yml"}},
        "stays": visits | source | {"name": "stays"},
        "visits": visits | {"joins": [join]},
    }
    files = {name: tmp_path / f"{name}.yml" for name in contents}
    for name, content in contents.items():
        files[name].write_text(yaml.safe_dump(content))
    with pytest.raises(InvalidDeclaration, match="join s: rule public-rows: .* table stays"):
        load_table("visits", tmp_path)
    with pytest.raises(InvalidDeclaration, match="join s: rule public-rows"):
        load_table(files["visits"])
    files["dpflow"].unlink()
    tables = [load_table(files[name]) for name in ("visits", "stays")]
    with pytest.raises(InvalidDeclaration, match="join s: rule public-rows"):
        make_finder(tables)
    service = SimpleNamespace(tables={name: files[name] for name in ("visits", "stays")})
    with pytest.raises(InvalidDeclaration, match="join s: rule public-rows"):
        load_tables(service)  # type: ignore[arg-type]
    files["dpflow"].write_text(yaml.safe_dump(contents["dpflow"]))
    files["visits"].write_text(yaml.safe_dump(visits | {"joins": [join | {"public": True}]}))
    make_finder([load_table("visits", tmp_path), load_table("stays", tmp_path)])


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ("2024-05-05", "2025-01-01"),
        ("2024-05-05 10:00", "2024-05-06 11:30:15"),
        ("2024-05-05T00:00Z", "2024-05-06T00:00Z"),
    ],
)
def test_a_quoted_date_is_a_date(lower: str, upper: str) -> None:
    """Bounds mean the same in quotes and without: dates, and a released value is one, too."""
    plain, quoted = (
        Column.model_validate(yaml.safe_load(f"{{lower: {q}{lower}{q}, upper: {q}{upper}{q}}}"))
        for q in ("", "'")
    )
    assert quoted == plain and quoted.bounds_are_times
    assert quoted.holds_dates == plain.holds_dates == (len(lower) == 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"lower": "2024-05-05", "upper": 20000},
        {"lower": "0", "upper": "2024-05-05"},
        {"lower": "2024-02-30", "upper": "2024-05-05"},
        {"lower": "2024-05-05 25:00", "upper": "2025-05-05"},
    ],
)
def test_half_a_date_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="one bound is a date|there is no date"):
        Column.model_validate(fields)
