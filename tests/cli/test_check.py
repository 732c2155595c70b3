"""`dpflow check`: every part that does not fit is named, with what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from page_runner import inside, run_main

from dpflow import Ledger, load_table
from dpflow.tables.public.public_file import write_file

if TYPE_CHECKING:
    from smallworld import Tiny


@pytest.fixture
def project(tiny: Tiny) -> Tiny:
    """The small world with a catalogue in which everything fits."""
    content = {
        "ledger": "ledger.sqlite",
        "scope": "visits",
        "tables": {"visits": "visits.yml"},
        "output": {"database": "published.duckdb"},
    }
    (tiny.folder / "dpflow.yml").write_text(yaml.safe_dump(content))
    tiny.database.chmod(0o600)
    return tiny


def rename(project: Tiny, **changes: Any) -> None:
    file = project.folder / "dpflow.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))


def check(folder: Path, **environment: str) -> tuple[int, dict[str, tuple[str, str]]]:
    with inside(folder):
        for name in ("DPFLOW_LEDGER", "AIRFLOW_HOME", "AIRFLOW_CONN_DPFLOW_LEDGER"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        status, output, errors = run_main(["check", "--json"])
    assert errors == ""
    return status, {f["subject"]: (f["state"], f["text"]) for f in json.loads(output)}


def test_what_fits_is_said(project: Tiny) -> None:
    """And nothing is charged."""
    status, findings = check(project.folder)
    wrong = {name: text for name, (state, text) in findings.items() if state == "wrong"}
    assert (status, wrong) == (0, {})
    assert {
        "catalogue",
        "table visits",
        "ledger",
        "anchor",
        "budget of visits",
        "output",
        "extras",
    } <= set(findings)
    assert Ledger(project.ledger).releases() == []


def test_a_closed_scope_is_said(project: Tiny) -> None:
    """Of a budget that a recovery closed, check said that it pays, and show that it is used up."""
    project.lose_entries()
    status, findings = check(project.folder)
    assert status == 1 and findings["scope visits"][0] == "wrong"
    assert "dpflow ledger grant visits" in findings["scope visits"][1]
    with inside(project.folder):
        assert "visits is closed until its owner grants it again" in run_main(["ledger", "show"])[1]


def test_without_a_catalogue(tmp_path: Path) -> None:
    """The first thing to do."""
    status, findings = check(tmp_path)
    assert status == 1 and "dpflow init SOURCE" in findings["catalogue"][1]
    assert "no ledger was named" in findings["ledger"][1]


@pytest.mark.parametrize(
    ("changes", "subject", "message"),
    [
        ({"ledger": "other.sqlite"}, "ledger", "there is no ledger at"),
        ({"scope": "other"}, "scope", "has no budget; dpflow ledger grant other"),
        ({"tables": {"visits": "gone.yml"}}, "table visits", "there is no table declaration at"),
        ({"tables": {"other": "visits.yml"}}, "table other", "dpflow.yml calls it 'other'"),
        ({"output": {"database": "visits.duckdb"}}, "output", "is a private file"),
        ({"ledgr": "x"}, "catalogue", "did you mean 'ledger'"),
    ],
)
def test_what_does_not_fit_is_named(
    project: Tiny, changes: dict[str, Any], subject: str, message: str
) -> None:
    """With what to do; exit 1."""
    rename(project, **changes)
    status, findings = check(project.folder)
    state, text = findings[subject]
    assert (status, state) == (1, "wrong") and message in text


def test_which_duckdb_opens_the_published_file_is_said(project: Tiny) -> None:
    """Of a file that dpflow makes, and of one that a newer DuckDB made; without a file nothing is said."""
    file = project.folder / "published.duckdb"
    assert "readable" not in check(project.folder)[1]["output"][1]
    write_file(file, 5, lambda connection: bool(connection.execute("CREATE TABLE t (a INT)")))
    state, text = check(project.folder)[1]["output"]
    assert state == "ok" and text.endswith("; readable by DuckDB 1.2 and later")
    file.unlink()
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t (a INT)")
    state, text = check(project.folder)[1]["output"]
    assert (
        state == "note"
        and "readable by DuckDB 2.0 and later" in text
        and "move this one away" in text
    )


def test_a_declaration_that_its_source_does_not_fit(project: Tiny) -> None:
    """A column that is not there; a budget that protects something else."""
    project.declare(columns={"nowhere": {}})
    assert "nowhere" in check(project.folder)[1]["table visits"][1]
    project.declare(protects="unit")
    status, findings = check(project.folder)
    assert (
        status == 1
        and "no scope protects all rows of one person (add-remove)"
        in findings["budget of visits"][1]
    )
    assert "protects all rows of one person in one day" in findings["scope"][1]


def test_a_dimension_that_another_declaration_protects(project: Tiny) -> None:
    """Its persons' rows moved answers that said they protect them; the owner may call the rows public."""
    with duckdb.connect(str(project.database)) as connection:
        connection.execute("CREATE TABLE stays AS SELECT 'p1' AS id, 'p2' AS person")
    protected = {
        "name": "guests",
        "relation": "stays",
        "database": project.database.name,
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 1},
        "columns": {"id": {}},
    }
    (project.folder / "guests.yml").write_text(yaml.safe_dump(protected))
    rename(project, tables={"visits": "visits.yml", "guests": "guests.yml"})
    join = {"relation": "main.stays", "name": "s", "kind": "dimension", "on": {"person": "id"}}
    assert check(project.folder)[1]["table visits"][0] == "ok"
    project.declare(joins=[join])
    status, findings = check(project.folder)
    state, text = findings["table visits"]
    assert (status, state) == (1, "wrong") and "join s:" in text and "table guests" in text
    project.declare(joins=[join | {"public": True}])
    assert check(project.folder)[1]["table visits"][0] == "ok"


def test_an_anchor_of_another_ledger(project: Tiny) -> None:
    """Is no anchor of this one."""
    other = Ledger(project.folder / "other.sqlite", create=True, anchor=project.folder / "anchor")
    assert other.anchor_folder.exists()
    rename(project, anchor="anchor")
    status, findings = check(project.folder)
    assert status == 1 and "is not the anchor of" in findings["ledger"][1]


def test_private_rows_that_others_may_read(project: Tiny) -> None:
    """Is worth a word."""
    project.database.chmod(0o644)
    status, findings = check(project.folder)
    assert status == 0 and "chmod go-rwx" in findings["table visits"][1]


def test_airflow_names_the_same_ledger(project: Tiny, tmp_path: Path) -> None:
    """Two ledgers would spend one budget twice."""
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow")}
    for host, state in ((project.ledger, "ok"), (tmp_path / "other.sqlite", "wrong")):
        connection = json.dumps({"conn_type": "dpflow_ledger", "host": str(host)})
        findings = check(project.folder, **home, AIRFLOW_CONN_DPFLOW_LEDGER=connection)[1]
        assert findings["Airflow"][0] == state


def test_airflows_connections_are_asked_too(project: Tiny, tmp_path: Path) -> None:
    """Each that is of our type is opened; where nothing else names a ledger, its scopes are looked at."""

    def describe(host: Path, kind: str = "dpflow_ledger") -> str:
        return json.dumps({"conn_type": kind, "host": str(host)})

    rename(project, ledger=None)
    status, findings = check(
        project.folder,
        AIRFLOW_HOME=str(tmp_path / "airflow"),
        AIRFLOW_CONN_DPFLOW_LEDGER=describe(project.ledger),
        AIRFLOW_CONN_TEAM_LEDGER=describe(tmp_path / "none.sqlite"),
        AIRFLOW_CONN_WAREHOUSE=describe(tmp_path, "postgres"),
    )
    assert findings["ledger"][0] == "ok" and "AIRFLOW_CONN_DPFLOW_LEDGER" in findings["ledger"][1]
    assert findings["budget of visits"][0] == "ok"
    assert findings["Airflow"][0] == "note" and "set DPFLOW_LEDGER" in findings["Airflow"][1]
    state, text = findings["Airflow's team_ledger"]
    assert state == "wrong" and "there is no ledger" in text and status == 1
    assert not [subject for subject in findings if "warehouse" in subject]


def test_a_person_reads_a_table(project: Tiny) -> None:
    """By line."""
    assert load_table(project.folder / "visits.yml").name == "visits"
    with inside(project.folder):
        os.environ.pop("DPFLOW_LEDGER", None)
        status, output, _ = run_main(["check"])
    assert status == 0 and "what is true, what to do" in output
