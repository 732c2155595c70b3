"""Suites that a table's owner registered: they run as they are, tell one bit, and nobody else chooses them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.engine import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.sessions.session import Session
from dpflow.errors import (
    ContractViolated,
    InvalidDeclaration,
    InvalidInput,
    PlanRefused,
    TableBusy,
    TableUnreadable,
    UnexpectedFailure,
)
from dpflow.ledger import Ledger
from dpflow.quality import (
    ContractOutcome,
    contract_run,
    parse_contract,
    run_contract,
    validation_result,
)
from dpflow.quality.registered_suite import register_suite
from dpflow.quality.validate import check
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

SECRET = "N5EKRET"
#: Not linear, SQL of its own, a row condition: what no check of a paid contract can be.
SUITE: list[dict[str, Any]] = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "note"}},
    {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}},
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "age", "min_value": 18, "row_condition": 'col("city")=="Oslo"',
                   "condition_parser": "great_expectations"},
    },
    {
        "type": "unexpected_rows_expectation",
        "kwargs": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE CAST(code AS INTEGER) < 0"},
    },
]  # fmt: skip


class World:
    """A table of two days, of which the second breaks what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "visits.duckdb"
        (folder / "visits.yml").write_text(
            "{name: visits, database: visits.duckdb, privacy_unit: {column: person}, block: day,"
            " contribution_bounds: {rows: 1}, columns: {age: {lower: 0, upper: 120}}}"
        )
        self.fill()
        self.write(SUITE)
        self.table = load_table(folder / "visits.yml")
        self.ledger = Ledger(folder / "ledger.sqlite", anchor=folder / "anchor", create=True)

    def fill(self, size: int = 3, **second: str) -> None:
        columns = {"id": "10 * d + i", "note": f"'{SECRET}'", "code": "'1'", "age": "20 + i", "city": "'Oslo'"}  # fmt: skip
        broken = {name: f"CASE WHEN d = 1 AND i = 1 THEN {second[name]} ELSE {text} END" if name in second else text
                  for name, text in columns.items()}  # fmt: skip
        self.database.unlink(missing_ok=True)
        with duckdb.connect(str(self.database)) as connection:
            outputs = ", ".join(f"{text} AS {name}" for name, text in broken.items())
            connection.execute(
                f"CREATE TABLE visits AS SELECT '{SECRET}' || i AS person, DATE '2026-01-01' + CAST(d AS INTEGER) AS day, "
                f"{outputs} FROM range({size}) a(i), range(2) b(d)"
            )

    def write(self, expectations: list[dict[str, Any]], name: str = "suite.json") -> None:
        (self.folder / name).write_text(json.dumps({"name": "n", "expectations": expectations}))

    def register(self, *options: str) -> None:
        told = CliRunner().invoke(
            app,
            ["contract", "register", str(self.folder / "suite.json"), "--table", str(self.folder / "visits.yml"),
             "--ledger", str(self.folder / "ledger.sqlite"), *options],
            env={"DPFLOW_LEDGER_ANCHOR": str(self.folder / "anchor")},
        )  # fmt: skip
        assert told.exit_code == 0, told.output

    def run(self, day: str = "2026-01-01", **more: Any) -> ContractOutcome:
        content = {"table": "visits.yml", "mode": "trusted", "suite": "suite.json"}
        return run_contract(parse_contract(content, self.folder), [day], ledger=self.ledger, **more)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [{}, {"note": "NULL"}, {"id": "10 * d + 2"}, {"age": "3"}, {"code": "'-1'"}, {"code": f"'{SECRET}'"}],
)  # fmt: skip
def test_a_registered_suite_tells_one_bit(
    world: World, broken: dict[str, str], caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """Each expectation counts, also by failing on a row; the two outcomes differ in that bit alone."""
    caplog.set_level(logging.DEBUG)
    world.fill(**broken)
    world.register()
    kept, second = world.run(), world.run("2026-01-02")
    assert kept.passed and second.passed == (not broken)
    told = json.dumps([kept.to_json(), second.to_json()]) + repr(second) + caplog.text
    told += "".join(capfd.readouterr())
    assert SECRET not in told and "CAST" not in told
    (check,) = second.to_json()["checks"]
    assert set(check) == {"name", "kind", "summary", "verdict"}
    if broken:
        with pytest.raises(ContractViolated, match="do not satisfy the suite") as error:
            second.require_passed()
        assert SECRET not in str(error.value) and error.value.__context__ is None
    noted = [entry for entry in world.ledger.history() if entry.kind == "contract"]
    assert [entry.body["passed"] for entry in noted] == [True, not broken]
    assert world.ledger.verify().ok


def test_rows_that_were_not_judged_are_no_verdict(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were recorded as not kept, though nobody had seen one. A gate hears of them all the same."""

    def fail(*_: Any) -> bool:
        raise TableBusy("written by another process")

    monkeypatch.setattr(contract_run, "check_suite", fail)
    with pytest.raises(TableBusy):
        world.run()
    (entry,) = [entry for entry in world.ledger.history() if entry.kind == "contract"]
    assert entry.body["passed"] is None and entry.body["data"]
    assert world.ledger.verify().ok


def test_actions_get_a_result_that_was_made_again(world: World) -> None:
    """Built from the bit: no observed value, no query."""
    from great_expectations.checkpoint import ValidationAction

    seen: list[Any] = []

    class Note(ValidationAction):
        type: str = "note"

        def run(self, checkpoint_result: Any, action_context: Any = None) -> dict[str, Any]:
            seen.append(json.dumps(checkpoint_result.describe_dict()))
            return {}

    world.fill(age="3")
    world.register()
    outcome = world.run("2026-01-02", actions=[Note(name="note")])
    assert not outcome.passed and len(seen) == 1
    for word in (SECRET, "CAST", "between", "unexpected_count"):
        assert word not in seen[0]
    assert '"success": false' in seen[0] and "suite.json" in seen[0]


def test_only_the_owners_suite_runs(world: World, tmp_path: Path) -> None:
    """Not before it is registered, not when its text changed, not over other rows or another selection of them, and
    not when it was taken back."""
    with pytest.raises(PlanRefused, match="is not registered for table 'visits'"):
        world.run()
    world.register()
    assert world.run().passed
    world.write([*SUITE, {"type": "expect_column_to_exist", "kwargs": {"column": "age"}}])
    with pytest.raises(PlanRefused, match="is not registered"):
        world.run()
    world.write(SUITE)
    declared = (tmp_path / "visits.yml").read_text()
    (tmp_path / "visits.yml").write_text(declared.replace("block: day", "block: person"))
    with pytest.raises(PlanRefused, match="is not registered"):
        world.run(f"{SECRET}1")
    copied = tmp_path / "copied.duckdb"
    copied.write_bytes(world.database.read_bytes())
    (tmp_path / "visits.yml").write_text(declared.replace("visits.duckdb", "copied.duckdb"))
    with pytest.raises(PlanRefused, match="is not registered"):
        world.run()
    # Another name and other bounds of the same rows are the same rows.
    (tmp_path / "visits.yml").write_text(declared.replace("upper: 120", "upper: 99"))
    assert world.run().passed
    # By a declaration without the block column, too.
    (tmp_path / "visits.yml").write_text(declared.replace("block: day,", ""))
    world.register("--withdraw")
    (tmp_path / "visits.yml").write_text(declared)
    with pytest.raises(PlanRefused, match="is not registered"):
        world.run()
    assert world.ledger.verify().ok


def test_no_suite_runs_on_a_server(world: World) -> None:
    """Its SQL would not be kept to the table; so said before a server is asked, to owners and in runs."""
    (world.folder / "lake.yml").write_text(
        "{name: lake, source: {spark: nowhere, table: /lake/visits}, privacy_unit: {column: person},"
        " contribution_bounds: {rows: 1}, columns: {}}"
    )
    content = {"table": "lake.yml", "mode": "trusted", "suite": "suite.json"}
    with pytest.raises(PlanRefused, match="a suite's SQL could read and write other tables"):
        run_contract(parse_contract(content, world.folder), ledger=world.ledger)
    with pytest.raises(PlanRefused, match="a suite's SQL could read and write other tables"):
        table = load_table(world.folder / "lake.yml")
        register_suite(world.folder / "suite.json", table, world.ledger, principal="owner")
    assert [entry.kind for entry in world.ledger.history()].count("suite") == 0


def test_a_note_registers_nothing(world: World) -> None:
    """Who writes notes into the history cannot write a decision."""
    with pytest.raises(InvalidInput, match="only the ledger writes"):
        world.ledger.record("suite", {"registered": True}, principal="airflow:d")


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        ({"type": "expect_nothing_like_it", "kwargs": {}}, "cannot make 'expect_nothing_like_it'"),
        ({"type": "expect_column_to_exist", "kwargs": {}}, "cannot make"),
        ({"type": "expect_column_max_to_be_between", "kwargs": {"column": "a", "max_value": {"$PARAMETER": "x"}}},
         "parameter of a run"),
        ({"type": "expect_column_to_exist", "kwargs": {"column": "age"}, "mostly": 0.5}, "a field 'mostly'"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_not_registered(
    world: World, expectation: dict[str, Any], words: str
) -> None:
    from dpflow.quality.registered_suite import register_suite

    world.write([expectation])
    with pytest.raises(InvalidInput, match=words):
        register_suite(world.folder / "suite.json", world.table, world.ledger, principal="owner")


def test_holdouts_and_other_modes_take_no_suite(world: World, tmp_path: Path) -> None:
    world.register()
    (tmp_path / "visits.duckdb").rename(tmp_path / "moved")
    with pytest.raises(TableUnreadable):
        world.run()
    declared = (tmp_path / "visits.yml").read_text()
    (tmp_path / "visits.yml").write_text(
        declared.replace("block: day", "block: day, holdout: true")
    )
    with pytest.raises(PlanRefused, match="holdout"):
        world.run()
    with pytest.raises(InvalidDeclaration, match="mode public takes no suite"):
        parse_contract({"table": "visits.yml", "mode": "public", "suite": "suite.json"}, tmp_path)


def open_gate(world: World) -> Session:
    """A gate without noise over rows that no other door may read."""
    text = (world.folder / "visits.yml").read_text()
    held = "holdout: true, generalisation_only: true, "
    text = text.replace("block: day,", f"block: day, {held}")
    world.fill(3000)
    (world.folder / "held.yml").write_text(text.replace("upper: 120", "upper: 120, missing: 0"))
    table = load_table(world.folder / "held.yml")
    world.ledger.grant("gate", 10, 0, table=table, principal="owner", filter="basic")
    metric = {"estimator": "column_mean"}
    params = {"metric": metric, "method": "description_length", "threshold": "0.1"}
    params |= {"queries": 20, "failures": 5}
    request = {"name": "g", "mechanism": "gate", "table": table, "scope": "gate", "params": params}
    registry, days = Registry.load(), ("2026-01-01", "2026-01-02")
    plan = make_plan(ReleaseRequest(**request, blocks=days), registry, world.ledger)
    return Session.open(plan, world.ledger, registry)


@pytest.mark.parametrize("suite", [{}, {"suite": "suite.json"}], ids=["declaration", "suite"])
def test_an_unpaid_bit_about_a_holdout_is_refused_or_ends_the_proof(
    world: World, suite: dict[str, str]
) -> None:
    """Of rows that became a holdout, and of a holdout by a declaration that does not say so."""
    world.register()
    contract = parse_contract({"table": "visits.yml", "mode": "trusted"} | suite, world.folder)
    run_contract(contract, ["2026-01-01"], ledger=world.ledger)
    session = open_gate(world)
    verdict = session.ask({"estimator": "column_mean", "columns": ["age"], "claim": "1/2"})
    assert verdict["guarantee"] == "unproven" and "told a bit" in verdict["because"]
    with pytest.raises(PlanRefused, match="gate's holdout"):
        run_contract(contract, ["2026-01-01"], ledger=world.ledger)


def test_a_hard_link_is_no_way_round(world: World) -> None:
    """Neither is a bit told of rows by another name of their file, nor does a gate prove anything beside one."""
    session, link = open_gate(world), world.folder / "link.duckdb"
    os.link(world.database, link)
    text = (world.folder / "visits.yml").read_text()
    text = text.replace("name: visits", "name: other, relation: visits")
    (world.folder / "other.yml").write_text(text.replace("visits.duckdb", "link.duckdb"))
    contract = parse_contract({"table": "other.yml", "mode": "trusted"}, world.folder)
    with pytest.raises(PlanRefused, match="hard link"):
        run_contract(contract, ["2026-01-01"], ledger=world.ledger)
    verdict = session.ask({"estimator": "column_mean", "columns": ["age"], "claim": "1/2"})
    assert verdict["guarantee"] == "unproven" and "hard link" in verdict["because"]


@pytest.mark.parametrize("error", [TableUnreadable, UnexpectedFailure, RuntimeError, MemoryError])
def test_that_rows_cannot_be_judged_is_a_bit_about_them(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whatever the failure."""

    def fail(*arguments: object) -> bool:
        raise error("its rows cannot be judged")

    monkeypatch.setattr(contract_run, "check", fail)
    contract = parse_contract({"table": "visits.yml", "mode": "trusted"}, world.folder)
    with pytest.raises((TableUnreadable, UnexpectedFailure)):
        run_contract(contract, ["2026-01-01"], ledger=world.ledger)
    session = open_gate(world)
    verdict = session.ask({"estimator": "column_mean", "columns": ["age"], "claim": "1/2"})
    assert verdict["guarantee"] == "unproven" and "told a bit" in verdict["because"]


def test_a_gate_that_opens_while_rows_are_checked_is_told_of_no_bit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the caller nor an action hears the outcome, and the gate's proof stays."""
    world.fill(3000)
    sessions, heard = [], list[object]()

    def check_slowly(*arguments: object) -> bool:
        sessions.append(open_gate(world))
        return check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(contract_run, "check", check_slowly)
    monkeypatch.setattr(validation_result, "validate_outcomes", lambda *told: heard.append(told))
    contract = parse_contract({"table": "visits.yml", "mode": "trusted"}, world.folder)
    with pytest.raises(PlanRefused, match="gate's holdout"):
        run_contract(contract, ["2026-01-01"], ledger=world.ledger)
    assert not heard
    verdict = sessions[0].ask({"estimator": "column_mean", "columns": ["age"], "claim": "1/2"})
    assert verdict["guarantee"] == "proven"


def test_a_holdout_that_no_contract_read_keeps_its_proof(world: World) -> None:
    """The control: a contract about other rows, and one that reads no row, are none about these."""
    for name, mode in (("other", "trusted"), ("visits", "public")):
        text = (world.folder / "visits.yml").read_text().replace("name: visits", f"name: {name}")
        if name == "other":
            text = text.replace("visits.duckdb", "other.duckdb") + "\n"
            (world.folder / "other.duckdb").write_bytes(world.database.read_bytes())
            text = text.replace("name: other", "name: other, relation: visits")
        (world.folder / f"{name}.yml").write_text(text)
        contract = parse_contract({"table": f"{name}.yml", "mode": mode}, world.folder)
        run_contract(contract, ["2026-01-01"], ledger=world.ledger)
    session = open_gate(world)
    verdict = session.ask({"estimator": "column_mean", "columns": ["age"], "claim": "1/2"})
    assert verdict["guarantee"] == "proven"
