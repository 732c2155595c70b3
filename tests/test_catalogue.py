"""``dpflow.yml``: what it names, where it is found, and what wins over it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from page_runner import inside, run_in, run_main

from dpflow import plan, release
from dpflow.catalogue import find_catalogue, load_catalogue
from dpflow.engine import load_request
from dpflow.errors import InvalidDeclaration, InvalidInput, UnknownName
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

CATALOGUE = {
    "ledger": "ledger.sqlite",
    "scope": "visits",
    "tables": {"visits": "visits.yml"},
    "output": {"database": "published.duckdb"},
}


def name_everything(tiny: Tiny, **changes: Any) -> Path:
    """Write the catalogue of the small world."""
    file = tiny.folder / "dpflow.yml"
    content = {k: v for k, v in (CATALOGUE | changes).items() if v is not None}
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_release_file_needs_no_path_and_no_scope(tiny: Tiny) -> None:
    """Table, scope, ledger and output come from the catalogue, from any folder below it."""
    name_everything(tiny)
    tiny.file(table="visits", scope=None)
    below = tiny.folder / "team" / "jobs"
    below.mkdir(parents=True)
    (tiny.folder / "release.yml").rename(below / "release.yml")
    status, output, errors = run_in(below, "release", "release.yml", "--json")
    assert status == 0, errors
    receipt = json.loads(output)
    assert (receipt["scope"], receipt["published"]) == ("visits", "published.duckdb:releases")
    assert (tiny.folder / "published.duckdb").exists()
    # The same release with paths of its own is the same release: a name is no part of it.
    tiny.file()
    again = json.loads(run_in(tiny.folder, "release", "release.yml", "--json")[1])
    assert again["replayed"] and again["release_id"] == receipt["release_id"]


def test_python_needs_no_path(tiny: Tiny) -> None:
    """A plan by name, and a release without a ledger object."""
    name_everything(tiny)
    with inside(tiny.folder):
        os.environ.pop("DPFLOW_LEDGER", None)
        made = plan("count", "visits", name="n", blocks=["2020-01-01"], epsilon="0.5")
        receipt = release(made)
        assert load_table("visits") == load_table("visits.yml")
    assert (receipt.scope, receipt.published) == ("visits", "published.duckdb:releases")


def test_what_a_release_says_itself_wins(tiny: Tiny) -> None:
    """Scope and output of the file, and no output where it says null."""
    name_everything(tiny, scope="another")
    there = load_request(tiny.file(publish={"database": "mine.duckdb"}))
    assert there.publish is not None and there.publish.database == tiny.folder / "mine.duckdb"
    assert there.scope == "visits"
    file = tiny.file()
    file.write_text(file.read_text() + "publish: null\n")
    assert load_request(file).publish is None


def test_the_environment_wins_over_the_file(tiny: Tiny) -> None:
    """A ledger that somebody names is taken."""
    name_everything(tiny, ledger="nowhere.sqlite")
    tiny.file()
    with inside(tiny.folder):
        os.environ["DPFLOW_LEDGER"] = str(tiny.ledger)
        status, _, errors = run_main(["release", "release.yml"])
    assert status == 0, errors
    status, _, errors = run_in(tiny.folder, "release", "release.yml")
    assert status == 1 and "nowhere.sqlite" in errors


def test_files_of_two_projects_share_no_ledger(tiny: Tiny) -> None:
    """A ledger would be charged for a table that it does not know."""
    name_everything(tiny)
    other = tiny.folder / "other"
    other.mkdir()
    (other / "dpflow.yml").write_text("ledger: other.sqlite\n")
    (other / "release.yml").write_text(tiny.file(table="../visits.yml").read_text())
    status, _, errors = run_in(tiny.folder, "release", "release.yml", "other/release.yml")
    assert status == 1 and "different ledgers" in errors


def test_the_nearest_file_counts(tiny: Tiny) -> None:
    """As with git."""
    outer = name_everything(tiny)
    inner = tiny.folder / "inner"
    inner.mkdir()
    assert find_catalogue(inner).file == outer.resolve()
    (inner / "dpflow.yml").write_text("scope: inner\n")
    assert find_catalogue(inner).scope == "inner"


def test_a_name_that_nobody_declared_is_guessed(tiny: Tiny) -> None:
    """With and without a catalogue, the message says what to do."""
    with pytest.raises(InvalidInput, match="no dpflow.yml .* names one; .* dpflow init SOURCE"):
        load_request(tiny.file(table="visit"))
    name_everything(tiny)
    with pytest.raises(UnknownName, match="did you mean 'visits'"):
        load_request(tiny.file(table="visit"))


def test_one_table_has_one_name(tiny: Tiny) -> None:
    """The ledger and messages say the declaration's."""
    name_everything(tiny, tables={"other": "visits.yml"})
    with pytest.raises(InvalidDeclaration, match="declares 'visits', and dpflow.yml calls it"):
        load_table("other", tiny.folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ledger: postgresql+psycopg://me:secret@host/db", "take the password out"),
        ("ledgr: x", "did you mean 'ledger'"),
        ("tables: {'a b': x.yml}", "tables"),
        ("output: published.duckdb", "must be a mapping, such as {database: published.duckdb}"),
        ("[]", "holds no YAML mapping"),
    ],
)
def test_a_wrong_catalogue_says_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    """And quotes no password."""
    file = tmp_path / "dpflow.yml"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        load_catalogue(file)
    assert "secret" not in str(caught.value)


def test_tables_and_describe_read_no_row(tiny: Tiny) -> None:
    """The private file may even be away: everything they say is declared or granted."""
    name_everything(tiny)
    tiny.database.unlink()
    (row,) = json.loads(run_in(tiny.folder, "tables", "--json")[1])
    assert (row["table"], row["scopes"]) == ("visits", ["visits"])
    about = json.loads(run_in(tiny.folder, "describe", "visits", "--json")[1])
    assert about["protects"] == "all rows of one person in one day (add-remove)"
    assert [c["bounds"] for c in about["columns"] if c["column"] == "age"] == ["0 to 120"]
    assert [b["epsilon_left"] for b in about["budgets"]] == ["1"]
    for words in (("tables",), ("describe", "visits")):
        status, output, errors = run_in(tiny.folder, *words)
        assert status == 0 and "visits" in output, errors


def test_describe_says_how_to_grant(tiny: Tiny) -> None:
    """Where there is no ledger yet."""
    name_everything(tiny, ledger="new.sqlite")
    status, output, _ = run_in(tiny.folder, "describe", "visits")
    assert status == 0 and "dpflow ledger grant visits" in output
    assert not (tiny.folder / "new.sqlite").exists()


def test_tables_without_a_catalogue_says_what_to_do(tmp_path: Path) -> None:
    """One sentence."""
    status, _, errors = run_in(tmp_path, "tables")
    assert status == 1 and "dpflow init SOURCE" in errors
