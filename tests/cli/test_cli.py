"""The command line: what works, and one sentence for everything that does not."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_runner import inside, run_main

from dpflow import Ledger, release
from dpflow.cli.console import explain_entry, show_table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.strict_models import leave_out_empty, require_values
from dpflow.engine import RunIdentity, load_request, make_plan
from dpflow.registry import Registry
from dpflow.tables.access import isolated_database
from dpflow.testing.examples import examples_for, read_examples

if TYPE_CHECKING:
    from smallworld import Tiny

DPFLOW = Path(sys.executable).with_name("dpflow")


def environment(tiny: Tiny, ledger: bool = True) -> dict[str, str]:
    """No setting of whoever runs the tests, and a wide terminal."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DPFLOW")}
    return clean | {"COLUMNS": "200"} | ({"DPFLOW_LEDGER": str(tiny.ledger)} if ledger else {})


def dpflow(tiny: Tiny, *words: object, ledger: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, through the console script's own entry point."""
    clean = environment(tiny, ledger)
    with inside(tiny.folder):
        clean = environment(tiny, ledger)
        os.environ.clear()
        os.environ.update(clean)
        return subprocess.CompletedProcess(words, *run_main([*map(str, words)]))


def test_the_installed_command_does_the_same(tiny: Tiny) -> None:
    """One release and one refusal through the script in a process of its own."""
    command = [str(DPFLOW), "release", str(tiny.file()), "--json"]
    options = {"env": environment(tiny), "cwd": tiny.folder, "capture_output": True, "text": True}
    first = subprocess.run(command, **options)
    assert first.returncode == 0 and not json.loads(first.stdout)["replayed"], first.stderr
    here = json.loads(dpflow(tiny, *command[1:]).stdout)
    assert here["replayed"] and here["rows"] == json.loads(first.stdout)["rows"]
    refused = [str(DPFLOW), "release", "missing.yml"]
    there = subprocess.run(refused, **options)
    here = dpflow(tiny, *refused[1:])
    assert (there.returncode, there.stdout, there.stderr) == (1, here.stdout, here.stderr)


def test_a_release_file_is_paid_once(tiny: Tiny) -> None:
    """The same file again prints the stored result and charges nothing; a new revision pays."""
    first = json.loads(dpflow(tiny, "release", tiny.file(), "--json").stdout)
    again = json.loads(dpflow(tiny, "release", tiny.file(), "--json").stdout)
    assert again["replayed"] and not first["replayed"]
    assert (again["rows"], again["release_id"]) == (first["rows"], first["release_id"])
    second = json.loads(dpflow(tiny, "release", tiny.file(revision=2), "--json").stdout)
    assert second["release_id"] != first["release_id"]
    rows = json.loads(dpflow(tiny, "ledger", "show", "--json").stdout)
    assert [(row["block"], row["epsilon_left"]) for row in rows] == [("2020-01-01", "0")]


def test_plan_says_cost_error_and_forecast_and_spends_nothing(tiny: Tiny) -> None:
    """Everything a person wants to know before paying."""
    seen = json.loads(dpflow(tiny, "plan", tiny.file(), "--json").stdout)
    assert (seen["epsilon"], seen["delta"], seen["half_width_95"]) == ("0.5", "0", {"count": 12})
    assert seen["forecast"] == "the ledger would accept it now"
    greedy = json.loads(dpflow(tiny, "plan", tiny.file(params={"epsilon": 3}), "--json").stdout)
    assert "cannot pay" in greedy["forecast"]
    assert json.loads(dpflow(tiny, "release", "--list", "--json").stdout) == []


def test_bounds_are_taken_from_a_release(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the search, then what clamps to it; before the search the name is unknown, without a
    ledger nothing is known.
    """
    tiny.declare(columns={"age": {}})
    tiny.fill(
        "CREATE TABLE visits AS SELECT i AS person, DATE '2020-01-01' AS day, 20 + i % 50 AS age FROM range(999) t(i)"
    )
    total = {
        "name": "total",
        "mechanism": "sum",
        "bounds": "look",
        "params": {"column": "age", "epsilon": "0.2"},
    }
    for words, ledger, message in (
        (["plan"], False, "name the ledger"),
        (["plan"], True, "there is no release of bounds"),
        (["release"], True, "there is no release of bounds"),
    ):
        ran = dpflow(tiny, *words, tiny.file(**total), ledger=ledger)
        assert ran.returncode != 0 and message in " ".join(ran.stderr.split())
    monkeypatch.setattr("dpflow.mechanisms.bounds.FAILURE", 1e-12)  # the search takes no empty bin
    search = load_request(
        tiny.file(name="look", mechanism="bounds", params={"column": "age", "epsilon": "0.5"})
    )
    release(make_plan(search, Registry.load()), Ledger(tiny.ledger))
    assert "'look'" in dpflow(tiny, "plan", tiny.file(**total)).stdout
    assert "epsilon 0.2" in " ".join(dpflow(tiny, "release", tiny.file(**total)).stdout.split())


def test_past_releases_are_listed_and_reprinted(tiny: Tiny) -> None:
    """`--list` and `--show` need neither the table nor budget."""
    paid = json.loads(dpflow(tiny, "release", tiny.file(), "--json").stdout)
    tiny.database.unlink()
    (listed,) = json.loads(dpflow(tiny, "release", "--list", "--json").stdout)
    for column, field in (("id", "release_id"), ("epsilon", "epsilon"), ("delta", "delta")):
        assert listed[column] == paid[field]
    assert "epsilon" in dpflow(tiny, "release", "--list").stdout
    shown = json.loads(dpflow(tiny, "release", "--show", paid["release_id"], "--json").stdout)
    assert shown["rows"] == paid["rows"]
    again = dpflow(tiny, "release", "--show", paid["release_id"]).stdout
    assert (
        paid["release_id"] in again and "charged to visits by " in again and ": epsilon " in again
    )


def test_a_printed_request_is_a_release_file(tiny: Tiny) -> None:
    """What `--show --json` prints of a request is read again, and is the same question."""
    paid = json.loads(dpflow(tiny, "release", tiny.file(where="age > 3"), "--json").stdout)
    shown = json.loads(dpflow(tiny, "release", "--show", paid["release_id"], "--json").stdout)
    (tiny.folder / "dpflow.yml").write_text("tables: {visits: visits.yml}")
    copied = tiny.folder / "copied.yml"
    copied.write_text(json.dumps(shown["request"]))
    ran = dpflow(tiny, "release", copied, "--json")
    again = json.loads(ran.stdout)
    assert again["replayed"] and again["release_id"] == paid["release_id"]
    assert shown["about"]["epsilon"] == paid["epsilon"]


def test_printed_parameters_of_every_mechanism_are_read() -> None:
    """Without the fields that a file may not have, parameters are the same."""
    registry = Registry.load()
    for name, mechanism in registry.mechanisms.items():
        for example in read_examples(registry.collect_examples(name)) or examples_for(mechanism):
            params = mechanism.Params.model_validate(dict(example.params))
            printed = leave_out_empty(params.model_dump(mode="json"))
            require_values({"params": printed}, name, may_be_empty=("params",))
            assert mechanism.Params.model_validate(printed) == params, name
    hollow = {"options": {}, "rest": [{"none": None, "text": " "}, None], "zero": 0}
    assert leave_out_empty(hollow) == {"rest": [{}, None], "zero": 0}


def test_what_a_service_was_sent_is_not_reprinted(tiny: Tiny) -> None:
    """It is encrypted, and says nothing to a reader."""
    plan = make_plan(load_request(tiny.file()), Registry.load())
    run = replace(RunIdentity.of_request(plan.request), sealed_request="c2VhbGVk")
    receipt = release(plan, ledger=str(tiny.ledger), run_identity=run)
    shown = dpflow(tiny, "release", "--show", receipt.release_id, "--json").stdout
    assert "c2VhbGVk" not in shown and json.loads(shown)["request"]["mechanism"] == "count"


def test_history_and_verification(tiny: Tiny) -> None:
    """The chain verifies, and exit code 1 tells when it does not."""
    dpflow(tiny, "release", tiny.file())
    kinds = [
        entry["kind"] for entry in json.loads(dpflow(tiny, "ledger", "history", "--json").stdout)
    ]
    assert kinds == ["grant", "reserve", "settle"]
    assert dpflow(tiny, "ledger", "verify").returncode == 0
    with closing(sqlite3.connect(tiny.ledger)) as connection:
        connection.execute("UPDATE dpflow_account SET epsilon = 0")
        connection.commit()
    done = dpflow(tiny, "ledger", "verify")
    assert done.returncode == 1 and "NOT verified" in done.stdout


def test_publish_repairs_an_output_file(tiny: Tiny) -> None:
    """What is settled and missing is copied once."""
    dpflow(tiny, "release", tiny.file(publish={"database": "out.duckdb"}))
    (tiny.folder / "out.duckdb").unlink()
    assert "1 settled releases copied" in dpflow(tiny, "publish", "out.duckdb").stdout
    assert "0 settled releases copied" in dpflow(tiny, "publish", "out.duckdb").stdout
    assert "copied to out.parquet" in dpflow(tiny, "publish", "out.parquet").stdout


def test_results_are_written_with_named_columns(tiny: Tiny) -> None:
    """When they are released, and when they are reprinted."""
    done = dpflow(tiny, "release", tiny.file(), "--output", "out.json", "--json")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tiny.folder / "out.json").read_text())
    release_id = json.loads(done.stdout)["release_id"]
    assert (record["release_id"], record["measure"], record["epsilon"]) == (
        release_id,
        "count",
        "0.5",
    )
    again = dpflow(tiny, "release", "--show", release_id, "--output", "again.csv")
    assert again.returncode == 0, again.stderr
    head, line = (tiny.folder / "again.csv").read_text().splitlines()
    assert head.split(",") == list(record)  # as when it was released, and as published
    assert line.startswith(f"{release_id},visits,2020-01-01,count,,count,")
    assert record["released_at"] in line.split(",")
    (tiny.folder / "alias.csv").symlink_to(tiny.database)
    messages = {"x.xlsx": ".parquet", "nowhere/x.csv": "cannot be", "alias.csv": "private table's"}
    for name, message in messages.items():
        file = tiny.file(params={"epsilon": "0.4"})
        wrong = dpflow(tiny, "release", file, "--output", name)
        assert wrong.returncode == 1 and message in wrong.stderr
    assert len(json.loads(dpflow(tiny, "release", "--list", "--json").stdout)) == 1


def test_estimators_are_listed_with_direction_and_range(tiny: Tiny) -> None:
    rows = {
        row["name"]: row
        for row in json.loads(dpflow(tiny, "reference", "estimators", "--json").stdout)
    }
    assert rows["accuracy"]["better"] == "higher" and rows["accuracy"]["range"] == "0 to 1"
    assert {rows[n]["better"] for n in ("log_loss", "squared_loss", "calibration_error")} == {
        "lower"
    }
    assert all(row["better"] in ("higher", "lower") for row in rows.values()) and len(rows) == 16
    one = json.loads(dpflow(tiny, "reference", "column_mean", "--json").stdout)
    assert one == rows["column_mean"] and one["range"] == "the first column's bounds"


def test_mechanisms_are_listed_with_their_origin(tiny: Tiny) -> None:
    """Every built-in appears, with parameters and citation."""
    rows = {row["name"]: row for row in json.loads(dpflow(tiny, "reference", "--json").stdout)}
    assert {
        "count",
        "sum",
        "mean",
        "histogram",
        "private_histogram",
        "quantile",
        "above_threshold",
    } <= rows.keys()
    assert (
        rows["quantile"]["params"] == ["by", "column", "delta", "epsilon", "p", "size"]
        and rows["quantile"]["origin"]
    )


def test_one_entry_is_explained_with_all_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """Mechanisms, sessions and calculators: every field and what it is if left out, and the words
    of the bases once.
    """
    registry = Registry.load()
    for entry in [*registry.mechanisms.values(), *registry.calculators.values()]:
        explain_entry(entry, as_json=True)
        told = json.loads(capsys.readouterr().out)
        assert set(told["fields"]) == set(entry.Params.model_fields), entry.name
        assert told["meaning"] and "``" not in told["meaning"], entry.name
        assert all(name in told["meaning"] for name in told["fields"]), entry.name
        assert not any(
            "Undefined" in default or default == "{}" for default in told["fields"].values()
        ), entry.name
        assert ("query_fields" in told) == isinstance(entry, InteractiveMechanism), entry.name
        assert all(name in told["query_meaning"] for name in told.get("query_fields", ())), (
            entry.name
        )


def test_a_table_keeps_brackets_and_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key such as [red] is no markup, and :b: in a name no emoji; what is piped has one line a row however long; a
    column of nothing is not shown.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    show_table("of [all] a:b:", ("key", "value", "error"), [("[red]x[/]", "long " * 60, None)])
    shown = capsys.readouterr().out
    assert (
        "of [all] a:b:" in shown
        and "[red]x[/]" in shown
        and "long " * 60 in shown
        and "error" not in shown
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": "cuont"}, "did you mean 'count'"),
        ({"table": "vists.yml"}, "there is no table declaration"),
        (
            {"mechanism": "quantile", "params": {"column": "agee", "epsilon": 1}},
            "did you mean 'age'",
        ),
        ({"mechanism": "sum", "params": {"column": "note", "epsilon": 1}}, "declares no bounds"),
        (
            {"mechanism": "histogram", "params": {"by": "clinic", "epsilon": 1}},
            "declares no public keys",
        ),
        ({"params": {"epsilon": 0}}, "epsilon is 0"),
        ({"params": {"epsilon": -1}}, "epsilon is -1"),
        ({"params": {"epsilon": "nan"}}, "epsilon is 'nan'"),
        ({"params": {"epsilon": "1e-400"}}, "epsilon is '1e-400'"),
        ({"params": {}}, "is missing; add it"),
        (
            {"params": {"epsilon": 1, "dleta": 1}},
            "there is no field 'dleta'; did you mean 'delta'?",
        ),
        (
            {
                "mechanism": "private_histogram",
                "params": {"by": "clinic", "epsilon": 1, "delta": 1},
            },
            "delta is 1",
        ),
        (
            {
                "mechanism": "private_histogram",
                "params": {"by": "clinic", "epsilon": 1, "delta": 0},
            },
            "delta above 0",
        ),
        ({"scope": "visit"}, "did you mean 'visits'"),
        ({"blocks": None}, "must name the blocks"),
        ({"blocks": ["2020-01-01", "2020-01-01"]}, "names a block twice"),
        ({"blocks": ["1 January"]}, "1 January"),
        ({"params": {"epsilon": 3}}, "cannot pay: epsilon 3 is asked, 1 of 1 is left"),
        ({"colour": "red"}, "there is no field 'colour'; known: "),
        ({"name": None}, "is missing; add it"),
    ],
)
def test_bad_requests_get_one_sentence(tiny: Tiny, changes: dict[str, Any], message: str) -> None:
    """Exit 1, one line that says what is wrong, nothing charged, no traceback."""
    done = dpflow(tiny, "release", tiny.file(**changes))
    assert done.returncode == 1, done.stderr
    assert (
        message in done.stderr
        and done.stderr.startswith("dpflow: ")
        and done.stderr.count("\n") == 1
    )
    assert json.loads(dpflow(tiny, "release", "--list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"columns": {"age": {"lower": 9, "upper": 1}}}, "must be below upper"),
        ({"contribution_bounds": {"rows": 0}}, "contribution_bounds.rows"),
        ({"protects": "unit"}, "was granted to protect"),
        ({"holdout": True}, "readable only through a gate"),
        ({"privacy_unit": {"column": "persno"}}, "persno"),
        ({"relation": "vistis"}, "vistis"),
    ],
)
def test_bad_declarations_get_one_sentence(
    tiny: Tiny, declared: dict[str, Any], message: str
) -> None:
    """What the owner wrote wrongly is named; nothing is charged."""
    tiny.declare(**declared)
    done = dpflow(tiny, "release", tiny.file())
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert json.loads(dpflow(tiny, "release", "--list", "--json").stdout) == []


def test_odd_files_get_one_sentence(tiny: Tiny) -> None:
    """No table file, a text file, no ledger named, no ledger there, another schema version."""
    assert "no ledger was named" in dpflow(tiny, "release", tiny.file(), ledger=False).stderr
    tiny.database.write_text("not DuckDB")
    assert "cannot be read" in dpflow(tiny, "release", tiny.file()).stderr
    tiny.database.unlink()
    assert "there is no file" in dpflow(tiny, "release", tiny.file()).stderr
    with closing(sqlite3.connect(tiny.ledger)) as connection:
        connection.execute("UPDATE dpflow_meta SET value = '0'")
        connection.commit()
    assert "schema version 0" in dpflow(tiny, "release", tiny.file()).stderr
    tiny.ledger.unlink()
    assert "there is no ledger" in dpflow(tiny, "ledger", "show").stderr


def test_a_file_another_process_writes_is_worth_a_retry(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 75, and after the writer has finished the same command works."""
    monkeypatch.setattr(isolated_database, "MAX_WAIT", 0.2)
    hold = "import duckdb, sys, time; c = duckdb.connect(sys.argv[1]); print('held', flush=True); time.sleep(3600)"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tiny.database)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        done = dpflow(tiny, "release", tiny.file())
        writer.kill()
    assert done.returncode == 75 and "being written by another process" in done.stderr
    assert dpflow(tiny, "release", tiny.file()).returncode == 0


def test_an_empty_day_and_a_lone_unit_are_answered(tiny: Tiny) -> None:
    """Neither is an error: both give a number, as neighbouring tables must."""
    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' AS person, DATE '2020-01-01' AS day, 'Oslo' AS city, 'c' AS clinic, "
        "30 AS age, 'n' AS note"
    )
    for day in ("2020-01-01", "2021-05-05"):
        for mechanism, params in (
            ("count", {}),
            ("mean", {"column": "age"}),
            ("quantile", {"column": "age"}),
        ):
            file = tiny.file(
                name=f"{mechanism} {day}",
                mechanism=mechanism,
                blocks=[day],
                params=params | {"epsilon": "0.3"},
            )
            done = json.loads(dpflow(tiny, "release", file, "--json").stdout)
            assert done["rows"] and not done["replayed"]


def test_several_files_are_charged_together(tiny: Tiny) -> None:
    """All of them or none; each keeps its own result, and the same command again is free."""
    files = []
    for name, epsilon in (("one", "0.4"), ("two", "0.5"), ("three", "0.3")):
        files.append(tiny.folder / f"{name}.yml")
        tiny.file(name=name, params={"epsilon": epsilon}).rename(files[-1])
    assert "cannot pay" in dpflow(tiny, "release", *files).stderr
    assert json.loads(dpflow(tiny, "release", "--list", "--json").stdout) == []
    for replayed in (False, True):
        done = json.loads(dpflow(tiny, "release", *files[:2], "--json").stdout)
        assert [(r["name"], r["replayed"]) for r in done] == [("one", replayed), ("two", replayed)]
