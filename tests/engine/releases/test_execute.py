"""The life of a release: charged before it reads, drawn at most once visibly, silent about rows."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from duckdb_files import execute
from small_plans import planned

from dpflow import hookimpl, load_table, release
from dpflow.core.contract.result_fields import FIELDS
from dpflow.core.contract.results import NONE, Result, Synthetic
from dpflow.engine.releases.execute import release_all
from dpflow.engine.releases.republish import publish_missing
from dpflow.engine.releases.request import Publish
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    LedgerCorrupt,
    NotSealed,
    PlanRefused,
    PluginError,
    RetryConflict,
    TableBusy,
    TableUnreadable,
)
from dpflow.ledger import Ledger
from dpflow.mechanisms.count import Count
from dpflow.registry import BUILT_INS, Registry
from dpflow.tables import published_ids, read_published
from dpflow.tables.private import PrivateTable

if TYPE_CHECKING:
    from smallworld import Tiny

SECRET = 7_364_519
TAKEN = "CREATE VIEW per_city AS SELECT 1 AS mine"


def spent(tiny: Tiny) -> Fraction:
    return sum(
        (Fraction(row["epsilon_spent"]) for row in Ledger(tiny.ledger).remaining("visits").rows()),
        Fraction(0),
    )


def test_nothing_is_read_before_the_charge(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read after reserve returned, and not at all when the budget refuses."""
    order: list[str] = []
    read, reserve = PrivateTable.open_answer, Ledger.reserve_many
    monkeypatch.setattr(PrivateTable, "open_answer", lambda *a: order.append("read") or read(*a))
    monkeypatch.setattr(
        Ledger, "reserve_many", lambda *a, **k: (reserve(*a, **k), order.append("charged"))[0]
    )
    release(planned(tiny), Ledger(tiny.ledger))
    assert order == ["charged", "read"]
    with pytest.raises(BudgetExceeded, match="cannot pay"):
        release(planned(tiny, name="more", epsilon="0.9"), Ledger(tiny.ledger))
    assert order == ["charged", "read"]


@pytest.mark.own_session
def test_a_release_opens_its_table_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening DuckDB costs more than reading a small table: checks, identity and rows share one."""
    asked, ledger, opened = planned(tiny), Ledger(tiny.ledger), []
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *a, **k: opened.append(a) or connect(*a, **k))
    release(asked, ledger)
    assert len(opened) == 1


def test_a_replay_needs_no_table(tiny: Tiny) -> None:
    """A settled release is returned even when the private file is gone."""
    first = release(planned(tiny), Ledger(tiny.ledger))
    tiny.database.unlink()
    again = release(planned(tiny), Ledger(tiny.ledger))
    assert again.replayed and again.result == first.result and again.release_id == first.release_id
    assert spent(tiny) == Fraction(1, 4)


def test_what_may_depend_on_rows_is_settled_as_none(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that raises is charged, stored as "none" and never drawn again."""
    monkeypatch.setattr(Count, "draw", lambda *a: 1 // 0)
    assert release(planned(tiny), Ledger(tiny.ledger)).result == NONE
    monkeypatch.undo()
    again = release(planned(tiny), Ledger(tiny.ledger))
    assert again.replayed and again.result == NONE


def test_what_a_retry_can_help_keeps_its_reservation(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy file fails after the charge; the retry pays nothing more."""

    def busy(*_: object) -> None:
        raise TableBusy("busy")

    monkeypatch.setattr(PrivateTable, "open_answer", busy)
    with pytest.raises(TableBusy, match="busy"):
        release(planned(tiny), Ledger(tiny.ledger))
    monkeypatch.undo()
    assert not release(planned(tiny), Ledger(tiny.ledger)).replayed
    assert spent(tiny) == Fraction(1, 4)


def test_the_same_name_with_other_content_is_refused(tiny: Tiny) -> None:
    """Changed parameters under one name need a new revision."""
    release(planned(tiny), Ledger(tiny.ledger))
    with pytest.raises(RetryConflict, match="raise the revision, such as revision: 2") as refused:
        release(planned(tiny, epsilon="0.5"), Ledger(tiny.ledger))
    # There is no operator at this door.
    assert "spend_again" not in str(refused.value)
    release(planned(tiny, epsilon="0.5", revision=2), Ledger(tiny.ledger))
    assert spent(tiny) == Fraction(3, 4)


def test_results_are_not_published_beside_the_rows(tiny: Tiny) -> None:
    """Refused by the plan: whoever reads the results would have to open the private file, which no
    release writes.
    """
    (tiny.folder / "link.duckdb").symlink_to(tiny.database)
    for name in ("visits.duckdb", "link.duckdb"):
        with pytest.raises(PlanRefused, match="in the private table's file"):
            planned(tiny, publish=Publish(database=tiny.folder / name))


def test_publishing_is_repaired_from_the_ledger(tiny: Tiny) -> None:
    """What is settled can be copied again, once."""
    out = tiny.folder / "out.duckdb"
    paid = release(planned(tiny, publish=Publish(database=out)), Ledger(tiny.ledger))
    out.unlink()
    assert publish_missing(Ledger(tiny.ledger), out, "releases") == 1
    assert published_ids(out, "releases") == {paid.release_id}
    assert publish_missing(Ledger(tiny.ledger), out, "releases") == 0


def planned_in(tiny: Tiny, name: str, table: str, epsilon: str) -> tuple[Any, RunIdentity]:
    where = Publish(database=tiny.folder / "out.duckdb", table=table)
    made = planned(tiny, name=name, publish=where, epsilon=epsilon)
    return made, RunIdentity.of_request(made.request)


def test_a_taken_name_is_refused_before_the_charge(tiny: Tiny) -> None:
    """Another task's view had the name of the output table: all of the list was charged, and its second never drawn."""
    execute(tiny.folder / "out.duckdb", TAKEN)
    pair = [planned_in(tiny, "a", "free", "0.25"), planned_in(tiny, "b", "per_city", "0.125")]
    with pytest.raises(
        TableUnreadable, match="a view under the name 'per_city'.*nothing was charged now"
    ):
        list(release_all(pair, Ledger(tiny.ledger), Registry.load()))
    assert spent(tiny) == 0


def test_a_name_that_is_taken_after_the_charge_keeps_no_other_release(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is drawn, settled and published but for that one; asked again, it is free, and in another table published."""
    ledger, out = Ledger(tiny.ledger), tiny.folder / "out.duckdb"
    reserve = Ledger.reserve_many
    monkeypatch.setattr(
        Ledger, "reserve_many", lambda *a, **k: (reserve(*a, **k), execute(out, TAKEN))[0]
    )
    pair = [planned_in(tiny, "a", "per_city", "0.25"), planned_in(tiny, "b", "free", "0.125")]
    with pytest.raises(TableUnreadable, match="'a'.*is settled and paid, so asking again is free"):
        list(release_all(pair, ledger, Registry.load()))
    monkeypatch.undo()
    assert [record.settled for record in ledger.releases()] == [True, True]
    (other,) = published_ids(out, "free")
    pair[0] = planned_in(tiny, "a", "per_town", "0.25")
    receipts = list(release_all(pair, ledger, Registry.load()))
    assert [receipt.replayed for receipt in receipts] == [True, True] and receipts[
        1
    ].release_id == other
    assert published_ids(out, "per_town") == {receipts[0].release_id}
    assert spent(tiny) == Fraction("0.375")


def test_publishing_goes_past_what_cannot_be_written(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One release whose synthetic rows had no place kept every later one out of every file."""
    ledger, out = Ledger(tiny.ledger), tiny.folder / "out.duckdb"
    made = Result((), {}, Synthetic((("age", "whole"),), ((1,),)))
    with monkeypatch.context() as patch:
        patch.setattr(Count, "draw", lambda *_: made)
        first = release(planned(tiny, name="rows"), ledger)
    second = release(planned(tiny, epsilon="0.125"), ledger)
    execute(tiny.folder / "out.duckdb", TAKEN.replace("per_city", "rows_synthetic"))
    stopped = f"1 settled releases were copied, and 1 could not be: {first.release_id}; .*'rows_synthetic'"
    with pytest.raises(TableUnreadable, match=stopped):
        publish_missing(ledger, out, "releases")
    assert published_ids(out, "releases") == {second.release_id}
    with duckdb.connect(str(out)) as connection:
        connection.execute("DROP VIEW rows_synthetic")
    assert publish_missing(ledger, out, "releases") == 1


def test_a_retry_publishes_the_same_row(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever publishes, and whenever: the time is that of the ledger's entry, no clock's."""
    ledger, files = Ledger(tiny.ledger), [tiny.folder / f"{name}.duckdb" for name in "abc"]
    with monkeypatch.context() as patch:
        patch.setattr("dpflow.ledger.history.chain.time.time", lambda: 1_000_000_000.7)
        first = release(
            planned(tiny, publish=Publish(database=files[0]), mechanism="histogram", by="city"),
            ledger,
        )
    again = release(
        planned(tiny, publish=Publish(database=files[1]), mechanism="histogram", by="city"), ledger
    )
    assert not first.replayed and again.replayed
    assert publish_missing(ledger, files[2], "releases") == 1
    rows = read_published(files[0], "releases")
    assert rows == read_published(files[1], "releases") == read_published(files[2], "releases")
    settled = dt.datetime.fromtimestamp(1_000_000_000, dt.UTC)
    assert {row["released_at"] for row in rows} == {settled.replace(tzinfo=None)}
    assert (
        first.released_at == again.released_at == ledger.settlement(first.release_id).at == settled
    )
    assert {(row["scope"], row["run"], row["block"]) for row in rows} == {
        ("visits", "visits#1", "2020-01-01")
    }


def test_frames_and_files_have_the_published_fields(tiny: Tiny) -> None:
    """The same names in the same order, and the same values but for amounts, which are exact texts."""
    out = tiny.folder / "out.duckdb"
    receipt = release(planned(tiny, publish=Publish(database=out)), Ledger(tiny.ledger))
    (published,) = read_published(out, "releases")
    frame, arrow = receipt.to_pandas(), receipt.to_arrow()
    assert list(frame) == arrow.column_names == receipt.to_polars().columns == list(FIELDS)
    exact = {"epsilon": "0.25", "delta": "0"}
    assert arrow.to_pylist() == receipt.to_polars().to_dicts() == [published | exact]
    assert frame["released_at"][0] == published["released_at"] and frame["run"][0] == "visits#1"
    for suffix in ("csv", "json", "parquet"):
        receipt.write(tiny.folder / f"r.{suffix}")
        assert duckdb.sql(f"FROM '{tiny.folder}/r.{suffix}'").columns == list(FIELDS)
    (line,) = json.loads((tiny.folder / "r.json").read_text())
    assert line["released_at"] == published["released_at"].isoformat() + "Z"


def test_an_edited_time_is_not_published(tiny: Tiny) -> None:
    """A release's time is that of an entry whose seal holds."""
    paid = release(planned(tiny), Ledger(tiny.ledger))
    with contextlib.closing(sqlite3.connect(tiny.ledger)) as connection, connection:
        connection.execute("DROP TRIGGER dpflow_entry_no_update")
        connection.execute(
            "UPDATE dpflow_entry SET at = '2001-01-01T00:00:00+00:00' WHERE kind = 'settle'"
        )
    with pytest.raises(LedgerCorrupt):
        Ledger(tiny.ledger).settlement(paid.release_id)


def test_an_edited_row_is_not_published(tiny: Tiny) -> None:
    """A release whose row was edited was copied as one of another privacy cost."""
    release(planned(tiny), Ledger(tiny.ledger))
    with contextlib.closing(sqlite3.connect(tiny.ledger)) as connection, connection:
        connection.execute(
            "UPDATE dpflow_release SET request = json_set(request, '$.epsilon', '0.001')"
        )
    with pytest.raises(LedgerCorrupt, match="dpflow_release is not what"):
        publish_missing(Ledger(tiny.ledger), tiny.folder / "out.duckdb", "releases")


def test_a_result_without_rows_does_not_stay_missing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the one row that says so, as if it had been published at once; then nothing misses."""
    monkeypatch.setattr(Count, "draw", lambda *_: Result(()))
    release(planned(tiny), Ledger(tiny.ledger))
    out = tiny.folder / "out.duckdb"
    assert [publish_missing(Ledger(tiny.ledger), out, "releases") for _ in range(2)] == [1, 0]
    (row,) = read_published(out, "releases")
    assert (row["measure"], row["value"]) == ("no rows", None)


def registry_with(**hooks: Any) -> Registry:
    built_in = dict(Registry.load()._manager.list_name_plugin())
    plugin = SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})
    return Registry({**{name: built_in[name] for name in BUILT_INS}, "a plugin": plugin})


def test_hook_dpflow_veto_plan(tiny: Tiny) -> None:
    """A plugin can refuse a plan with a reason, and refuses when it fails."""

    def dpflow_veto_plan(plan: Any) -> str | None:
        return "not on Sundays"

    with pytest.raises(PlanRefused, match="not on Sundays"):
        planned(tiny, registry=registry_with(dpflow_veto_plan=dpflow_veto_plan))

    def broken(plan: Any) -> str | None:
        raise RuntimeError(SECRET)

    broken.__name__ = "dpflow_veto_plan"
    with pytest.raises(PlanRefused, match="a plugin failed while looking at the plan"):
        planned(tiny, registry=registry_with(dpflow_veto_plan=broken))


def test_hook_dpflow_after_release(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    """An observer gets the receipt; when it fails the release stands and the failure is logged by
    name.
    """
    seen: list[Any] = []

    def dpflow_after_release(receipt: Any) -> None:
        seen.append(receipt)
        raise RuntimeError("observer")

    registry = registry_with(dpflow_after_release=dpflow_after_release)
    paid = release(planned(tiny, registry=registry), Ledger(tiny.ledger), registry=registry)
    assert seen == [paid] and "observer a plugin failed" in caplog.text


def test_hook_dpflow_register_mechanisms() -> None:
    """A name that two plugins bring is an error that names both."""

    def dpflow_register_mechanisms() -> list[Any]:
        return [Count()]

    with pytest.raises(
        PluginError, match=r"'count' is registered by dpflow.mechanisms.count and by a plugin"
    ):
        registry_with(dpflow_register_mechanisms=dpflow_register_mechanisms)


def test_hook_dpflow_register_estimators() -> None:
    """Estimators come through the same door, and unknown hooks are refused."""
    from dpflow.core.contract.estimators import Estimator

    def dpflow_register_estimators() -> list[Estimator]:
        return [
            Estimator("half", "always one half", 0.0, lambda rows, predictor: 0.5, better="higher")
        ]

    registry = registry_with(dpflow_register_estimators=dpflow_register_estimators)
    assert registry.find_estimator("half").estimate_group({}, None) == 0.5

    def dpflow_regster_estimators() -> list[Estimator]:
        return []

    with pytest.raises(PluginError, match="a hook that dpflow does not have"):
        registry_with(dpflow_regster_estimators=dpflow_regster_estimators)


def test_kept_sums_stay_in_the_private_zone(tiny: Tiny) -> None:
    """A release over two days leaves its exact sums beside the database, for their owner only, and
    nowhere else.
    """
    tiny.declare(cached_partials="checked")
    both = {"blocks": ["2020-01-01", "2020-01-02"]}
    first = release(planned(tiny, **both), Ledger(tiny.ledger))
    kept = tiny.folder / "visits.duckdb.partials"
    assert (kept.stat().st_mode & 0o777, len(list(kept.iterdir()))) == (0o700, 2)
    again = release(planned(tiny, **both, name="again"), Ledger(tiny.ledger))
    assert not again.replayed and again.release_id != first.release_id
    seals = [file.read_bytes().split(b"\n")[0] for file in kept.iterdir()]
    others = [
        file
        for file in tiny.folder.rglob("*")
        if file.is_file() and file.parent != kept and file != tiny.database
    ]
    assert others and not [file for file in others for seal in seals if seal in file.read_bytes()]


def test_a_release_that_cannot_seal_keeps_its_reservation(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for a block's sealed sum: nothing is drawn or settled, and the retry costs nothing
    more. The history says which version was sealed.
    """
    tiny.declare(cached_partials="sealed", sealed_version=3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(NotSealed):
            release(planned(tiny), Ledger(tiny.ledger))
    assert not release(planned(tiny), Ledger(tiny.ledger)).replayed
    assert spent(tiny) == Fraction(1, 4)
    assert planned(tiny).ledger_entry()["sealed_version"] == 3
    tiny.declare()
    assert "sealed_version" not in planned(tiny).ledger_entry()


def test_no_value_of_the_table_shows_anywhere(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    """A planted value is in no message, chain, log, receipt, repr or history, whatever goes right
    or wrong.
    """
    tiny.fill(
        f"CREATE TABLE visits AS SELECT 'p' AS person, DATE '2020-01-01' AS day, '{SECRET}' AS city, "
        f"'{SECRET}' AS clinic, {SECRET} AS age, '{SECRET}' AS note"
    )
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    tries: list[tuple[str, dict[str, Any]]] = [
        ("count", {}),
        ("histogram", {"by": "city"}),
        ("private_histogram", {"by": "clinic", "delta": "1e-7"}),
        ("sum", {"column": "note"}),
        ("mean", {"column": "clinic"}),
        ("quantile", {"column": "age"}),
    ]
    for mechanism, params in tries:
        try:
            paid = release(
                planned(tiny, mechanism, name=mechanism, **(params | {"epsilon": "0.1"})),
                Ledger(tiny.ledger),
            )
            shown += [repr(paid), json.dumps(paid.to_json()), repr(paid.result)]
        except DpflowError as error:
            link: BaseException | None = error
            while link is not None:
                shown += [repr(link), str(link)]
                link = link.__cause__ or link.__context__
    shown += [
        repr(Ledger(tiny.ledger).history()),
        caplog.text,
        repr(PrivateTable(load_table(tiny.folder / "visits.yml"))),
    ]
    assert str(SECRET) not in "\n".join(shown)


def test_importing_dpflow_stays_light() -> None:
    """The package alone imports nothing of a third party."""
    code = "import sys, dpflow; print(sorted({m.split('.')[0] for m in sys.modules} & {'duckdb','numpy','airflow','pydantic'}))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_every_public_name_resolves() -> None:
    """`__all__` promises nothing that is not there."""
    import dpflow

    assert all(getattr(dpflow, name) is not None for name in dpflow.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dpflow.nothing  # noqa: B018


def test_the_drawn_tree_of_errors_is_complete() -> None:
    """Every class is in the drawing, and says whether a retry can help."""
    from dpflow import errors

    def below(kind: type[DpflowError]) -> list[type[DpflowError]]:
        return [
            kind,
            *(
                found
                for child in kind.__subclasses__()
                if child.__module__ == errors.__name__
                for found in below(child)
            ),
        ]

    for kind in below(DpflowError):
        line = next(
            line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line.split()
        )
        assert kind.retryable == ("(retryable)" in line)


def test_a_scope_protects_what_it_was_granted_for(tmp_path: Path) -> None:
    """A scope granted for one protection refuses a table that declares another."""
    from smallworld import Tiny as Make

    made = Make(tmp_path)
    made.fill()
    table = load_table(made.declare())
    Ledger(made.ledger, create=True).grant(
        "visits", 1, 0, filter="basic", table=table, principal="owner"
    )
    made.declare(privacy_unit={"column": "person", "missing": "one-unit"}, protects="unit")
    with pytest.raises(PlanRefused, match="was granted to protect"):
        release(planned(made, blocks=None), Ledger(made.ledger))
