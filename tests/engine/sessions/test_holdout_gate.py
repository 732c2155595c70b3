"""A gate's life: one partition, one gate at a time, fresh data when it is used up, and a record of
every verdict.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from holdout_gates import (
    HONEST,
    PARAMS,
    ROWS,
    MemoryRegistry,
    grant_holdout,
    open_gate,
    wrong,
)

from dpflow import Session, plan, release
from dpflow.engine.releases.execute import data_names
from dpflow.engine.sessions.holdout_gate import (
    join_outcomes,
    judge,
    judge_all,
    require_metrics,
)
from dpflow.errors import (
    DatasetLocked,
    InvalidInput,
    PlanRefused,
)
from dpflow.ledger import Ledger
from dpflow.mechanisms.reusable_holdout import ReusableHoldout
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable

if TYPE_CHECKING:
    from smallworld import Tiny

FREE = {
    "method": "description_length",
    "groups": 400,
    "queries": 20,
    "failures": 2,
    "rho": "0.24",
    "alpha": "0.2",
}


@pytest.fixture
def ledger(tiny: Tiny) -> Ledger:
    return grant_holdout(tiny)


def test_what_is_left_is_known_from_the_start(tiny: Tiny, ledger: Ledger) -> None:
    session = open_gate(tiny, ledger)
    assert session.remaining() == {
        "state": "open",
        "answered": 0,
        "queries_left": 20,
        "failures_left": 2,
    }
    judge(session, HONEST)
    assert judge(session, wrong(0))["verdict"] == "no"
    assert session.remaining() == {
        "state": "open",
        "answered": 2,
        "queries_left": 18,
        "failures_left": 1,
    }


def test_a_plan_says_what_its_verdicts_prove(tiny: Tiny, ledger: Ledger) -> None:
    """Before anything is spent: heuristic, with the groups that the method needs and the cheapest
    that would be proven.
    """
    planned = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="gate", scope="gate", **PARAMS
    )
    assert (
        "verdicts are unproven: 400 groups prove nothing with method sparse_vector"
        in planned.describe()["note"]
    )
    assert "cheapest proven method on this table is tight with" in planned.describe()["note"]


def test_one_gate_and_one_partition(tiny: Tiny, ledger: Ledger) -> None:
    """No second gate beside, above or below an open one, from whatever scope; no other cut of the
    same rows, not even later.
    """
    session = open_gate(tiny, ledger)
    with pytest.raises(DatasetLocked, match="gate session is open on scope 'gate'"):
        open_gate(tiny, ledger, scope="gate/a")
    with pytest.raises(
        PlanRefused,
        match="table 'visits' is partitioned into 400 groups by 'person' in scope 'gate'",
    ):
        open_gate(tiny, ledger, scope="more")  # another hash, so other groups
    with pytest.raises(PlanRefused, match="holdout, readable only through a gate"):
        release(
            plan("count", tiny.folder / "visits.yml", name="n", scope="gate", epsilon="1"), ledger
        )
    for number in range(2):
        judge(session, wrong(number))
    assert session.remaining()["state"] == "closed"
    with pytest.raises(
        PlanRefused,
        match="partitioned into 400 groups by 'person' in scope 'gate' .* never changed",
    ):
        open_gate(tiny, ledger, scope="gate/a", **(PARAMS | {"groups": 300, "epsilon": "2"}))
    with pytest.raises(
        PlanRefused,
        match="partitioned into 400 groups by 'person' in scope 'gate' .* never changed",
    ):
        open_gate(tiny, ledger, scope="more")
    again = open_gate(tiny, ledger, scope="gate/a", **(PARAMS | {"epsilon": "2"}))
    assert judge(again, HONEST)["verdict"] == "yes"
    assert ledger.remaining("more").rows()[0]["epsilon_spent"] == "0" and ledger.verify().ok


@pytest.mark.parametrize("relation", ["VISITS", "main.visits", "Main.Visits"])
def test_a_second_declaration_is_no_second_data_set(
    tiny: Tiny, ledger: Ledger, relation: str
) -> None:
    """The same relation under another name, as an ordinary table of another scope: closed while the
    gate is open, and not fresh for a gate that comes after.
    """
    text = (tiny.folder / "visits.yml").read_text().replace("holdout: true", "holdout: false")
    (tiny.folder / "alias.yml").write_text(
        text.replace("name: visits", f"name: alias\nrelation: {relation}")
    )
    count = plan("count", tiny.folder / "alias.yml", name="n", scope="more", epsilon="1")
    session = open_gate(tiny, ledger)
    with pytest.raises(DatasetLocked, match="this relation, by where it is stored"):
        release(count, ledger)
    assert ledger.remaining("more").rows()[0]["epsilon_spent"] == "0"
    for number in range(2):
        judge(session, wrong(number))
    assert release(count, ledger).result.rows[0].value > 3900


def test_joining_a_holdout_as_a_dimension_is_reading_it(tiny: Tiny, ledger: Ledger) -> None:
    """Its rows as somebody's public dimension: closed while a gate on them is open, and not fresh
    for a gate that comes after. A dimension that a gate joins itself stays open to all, and makes
    nobody's data stale.
    """
    tiny.fill(
        f"{ROWS}; CREATE TABLE other AS FROM visits; CREATE TABLE cities AS SELECT 'p1' AS person, 3 AS size"
    )
    text = (
        (tiny.folder / "visits.yml")
        .read_text()
        .replace("name: visits", "name: other")
        .replace("holdout: true", "holdout: false")
    )
    for name, relation in (("peeks", "Visits"), ("fair", "cities")):
        join = (
            f"joins: [{{relation: {relation}, name: d, kind: dimension, on: {{person: person}}}}]\n"
        )
        (tiny.folder / f"{name}.yml").write_text(text + join)
    peek, fair = (
        plan("count", tiny.folder / f"{n}.yml", name=n, scope="more", epsilon="1")
        for n in ("peeks", "fair")
    )
    mine = (tiny.folder / "visits.yml").read_text()
    (tiny.folder / "visits.yml").write_text(
        mine + "joins: [{relation: cities, name: c, kind: dimension, on: {person: person}}]\n"
    )
    assert (
        release(fair, ledger).result.rows[0].value > 3900
    )  # before the gate: its dimension was read, its rows were not
    session = open_gate(tiny, ledger)
    planned = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="gate", scope="gate", **PARAMS
    )
    assert ledger.is_fresh(
        session.id, "gate", data_names(planned, ledger, PrivateTable(planned.table))
    )
    with pytest.raises(DatasetLocked, match="this relation, by where it is stored"):
        release(peek, ledger)
    assert release(fair, ledger).replayed
    again = replace(fair, request=fair.request.model_copy(update={"name": "again"}))
    assert release(again, ledger).result.rows[0].value > 3900
    for number in range(2):
        judge(session, wrong(number))
    assert release(peek, ledger).result.rows[0].value > 3900 and ledger.verify().ok


def test_a_dimension_that_was_read_is_no_fresh_holdout(tiny: Tiny, ledger: Ledger) -> None:
    text = (
        (tiny.folder / "visits.yml")
        .read_text()
        .replace("name: visits", "name: other")
        .replace("holdout: true", "holdout: false")
    )
    join = "joins: [{relation: visits, name: d, kind: dimension, on: {person: person}}]\n"
    (tiny.folder / "peeks.yml").write_text(text + join)
    tiny.fill(f"{ROWS}; CREATE TABLE other AS FROM visits")
    release(plan("count", tiny.folder / "peeks.yml", name="n", scope="more", epsilon="1"), ledger)
    session = open_gate(tiny, ledger)
    table = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="gate", scope="gate", **PARAMS
    )
    assert not ledger.is_fresh(
        session.id, "gate", data_names(table, ledger, PrivateTable(table.table))
    )


@pytest.mark.parametrize(
    ("gated", "read"), [("visits", "seen"), ("seen", "visits"), ("seen", "deep")]
)
def test_a_view_is_the_rows_that_it_reads(
    tiny: Tiny, ledger: Ledger, gated: str, read: str
) -> None:
    """A release through a view of the gate's table, or of the table of its view, ends its proof; an open gate closes both."""
    views = "CREATE SCHEMA s; CREATE VIEW seen AS FROM visits; CREATE VIEW s.more AS FROM main.seen; CREATE VIEW deep AS FROM s.more"
    tiny.fill(f"{ROWS}; CREATE TABLE cities(person VARCHAR); {views}")
    text = (tiny.folder / "visits.yml").read_text()
    (tiny.folder / "visits.yml").write_text(f"{text}relation: {gated}\n")
    other = text.replace("name: visits", "name: other").replace("holdout: true", "holdout: false")
    (tiny.folder / "other.yml").write_text(f"{other}relation: {read}\n")
    (tiny.folder / "cities.yml").write_text(f"{other}relation: cities\n".replace("other", "cities"))
    first, second = (
        plan("count", tiny.folder / "other.yml", name=name, scope="more", epsilon="1")
        for name in ("first", "second")
    )
    release(first, ledger)
    session = open_gate(tiny, ledger)
    wanted = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="gate", scope="gate", **PARAMS
    )
    names = data_names(wanted, ledger, PrivateTable(wanted.table))
    assert not ledger.is_fresh(session.id, "gate", names)
    with pytest.raises(DatasetLocked, match="this relation, by where it is stored"):
        release(second, ledger)
    aside = plan("count", tiny.folder / "cities.yml", name="a", scope="more", epsilon="1")
    assert release(aside, ledger).result.rows


def test_fresh_data_takes_over_by_itself(tiny: Tiny, ledger: Ledger) -> None:
    """A used-up gate hands on what it did not answer; a retry says the same and pays nothing;
    unneeded gates stay shut.
    """
    tried: list[str] = []
    tiny.fill(f"{ROWS}; CREATE TABLE more AS FROM visits")
    (tiny.folder / "more.yml").write_text(
        (tiny.folder / "visits.yml").read_text().replace("name: visits", "name: more")
    )

    def opening(scope: str) -> Any:
        def run() -> Session:
            tried.append(scope)
            return open_gate(
                tiny,
                ledger,
                scope,
                name=scope,
                table="more.yml" if scope == "more" else "visits.yml",
            )

        return run

    gates = [opening("gate"), opening("more")]
    assert [v["verdict"] for v in judge_all(gates, [HONEST])] == ["yes"] and tried == ["gate"]
    submissions = [HONEST, wrong(0), wrong(1), wrong(2), HONEST | {"claim": "17"}]
    found = judge_all(gates, submissions)
    assert [v["verdict"] for v in found] == ["yes", "no", "no", "no", "yes"]
    assert [v["session"] == found[0]["session"] for v in found] == [True, True, True, False, False]
    spent = [ledger.remaining(scope).rows() for scope in ("gate", "more")]
    assert judge_all(gates, submissions) == found
    assert [ledger.remaining(scope).rows() for scope in ("gate", "more")] == spent
    last = judge_all(gates, [wrong(5), wrong(6)])
    assert [v["verdict"] for v in last] == ["no", "exhausted"]


def test_nothing_but_the_verdict_leaves(tiny: Tiny, ledger: Ledger) -> None:
    """No count, threshold or noise in an answer, the history or a representation; the corrected
    value is the session's own.
    """
    sure = PARAMS | {
        "epsilon": "8",
        "correct": {"kind": "grid", "lower": 0, "upper": 60, "step": 1},
    }
    session = open_gate(tiny, ledger, **sure)
    found = [judge(session, s) for s in (HONEST, wrong(0))]
    said = {
        "name",
        "claim",
        "candidate",
        "verdict",
        "guarantee",
        "queries_left",
        "failures_left",
        "snapshot",
    }
    said |= {"session", "commitment", "outcome"}
    assert set(found[0]) == said and set(found[1]) == said | {"corrected", "corrected_guarantee"}
    assert found[1]["verdict"] == "no" and abs(found[1]["corrected"] - 18) <= 3
    secret = ledger.session(session.id).state
    # "rows" is a keyed name of those of the first answer: a proof is about no others.
    assert set(secret) == {"asked", "failures", "noise", "rows"}
    assert secret["rows"] == found[0]["snapshot"]
    history = "".join(str(entry) for entry in ledger.history())
    assert '"noise"' not in history and "threshold" not in history and repr(session).startswith("<")


def test_many_verdicts_are_one_decision() -> None:
    said = lambda *words: join_outcomes([{"outcome": word} for word in words])  # noqa: E731
    assert said("no", "promoted", "exhausted") == "promoted"
    assert said("no", "plausible", "exhausted") == "plausible"
    assert (
        said("not_better", "exhausted") == "exhausted" and said("no", "not_better") == "not_better"
    )
    assert said("no") == said() == "no"


AGES = PARAMS | {"metric": "column_mean"}


def test_a_promotion_is_recorded(tiny: Tiny, ledger: Ledger) -> None:
    """With the session, the guarantee, the data's keyed id, and a commitment that only this ledger
    can make.
    """
    models = MemoryRegistry()
    session = open_gate(tiny, ledger, **AGES)
    verdict = judge(session, HONEST, models)
    assert (
        verdict["outcome"] == "promoted"
        and judge(session, wrong(0), models)["outcome"] != "promoted"
    )
    (record,) = models.records
    assert (
        set(record) == {"session", "guarantee", "snapshot", "commitment"}
        and record["session"] == session.id
    )
    extra = ("outcome", "promotion", "session", "commitment")
    said = {k: v for k, v in verdict.items() if k not in extra}
    assert record["commitment"] == session.commitment(said)
    assert record["commitment"] != session.commitment(said | {"verdict": "no"})
    tiny.fill(ROWS.replace("range(4000)", "range(4001)"))
    again = {k: v for k, v in verdict.items() if k != "promotion"}
    assert judge(session, HONEST) == again | {
        "outcome": "plausible"
    }  # stored: its snapshot is the one it was drawn from
    assert judge(session, HONEST | {"claim": "17"})["snapshot"] != verdict["snapshot"]


def test_nothing_is_promoted_without_a_metric(tiny: Tiny, ledger: Ledger) -> None:
    """Claims about different numbers say nothing about each other: refused before anything is
    asked.
    """
    session = open_gate(tiny, ledger)
    with pytest.raises(PlanRefused, match="fixes no metric"):
        judge(session, HONEST, MemoryRegistry())
    with pytest.raises(PlanRefused, match="fixes no metric"):
        require_metrics([session.plan])
    assert session.remaining()["answered"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": {"sql": "least(1, 1 + 0 * avg(age))", "range": [0, 1], "default": 1}},
        {"estimator": "column_quantile"},
        {"default": "120"},
        {"options": {"p": "0.9"}},
    ],
    ids=["own SQL", "another estimator", "own default", "own options"],
)
def test_the_owner_fixes_the_metric(tiny: Tiny, ledger: Ledger, changes: dict[str, Any]) -> None:
    """A candidate brings no estimator, option or default of its own; the same ones may be named."""
    session = open_gate(tiny, ledger, **AGES)
    with pytest.raises(InvalidInput, match="compares candidates by column_mean alone"):
        judge(session, HONEST | {"claim": "0.99"} | changes, MemoryRegistry())
    assert session.remaining()["answered"] == 0
    unnamed = {name: value for name, value in HONEST.items() if name != "estimator"}
    assert judge(session, unnamed)["candidate"] == judge(session, HONEST)["candidate"]


def test_scores_beyond_the_metrics_range_are_clamped_row_by_row(tiny: Tiny, ledger: Ledger) -> None:
    """Half of the rows are 30 and more, half 3 in the mean: within [0, 10] the mean is 6.5, and not
    10, which a clamped mean of 18 would be.
    """
    metric = {"estimator": "column_mean", "range": [0, 10], "default": 0}
    session = open_gate(tiny, ledger, **(PARAMS | {"metric": metric}))
    assert judge(session, HONEST | {"claim": "6.5"})["verdict"] == "yes"
    assert judge(session, HONEST | {"claim": "9.5"})["verdict"] == "no"


def test_two_teams_at_once_get_one_answer_each(tiny: Tiny, ledger: Ledger) -> None:
    """The same candidate is answered once, whoever is first; two candidates are two answers."""
    sessions = [open_gate(tiny, ledger, **AGES) for _ in range(4)]
    asked = [HONEST, HONEST, HONEST | {"claim": "17"}, HONEST | {"claim": "17"}]
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(judge, sessions, asked))
    assert said[0] == said[1] and said[2] == said[3]
    assert {verdict["verdict"] for verdict in said} == {"yes"}
    assert sessions[0].remaining()["answered"] == 2 and ledger.verify().ok


def test_a_gate_of_the_version_before_goes_on(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is resumed, its answers are the stored ones, and nothing is charged again."""
    monkeypatch.setattr(ReusableHoldout, "version", 2)
    before = open_gate(tiny, ledger)
    said = judge(before, HONEST)
    monkeypatch.setattr(ReusableHoldout, "version", 3)
    after = open_gate(tiny, ledger)
    assert after.id == before.id and judge(after, HONEST) == said
    assert judge(after, wrong(0))["verdict"] == "no"
    assert len(ledger.releases()) == 1 and ledger.verify().ok


# --- tables that protect nobody ---------------------------------------------------------------------------------------


def test_methods_without_a_claim_need_a_table_that_protects_nobody(
    tiny: Tiny, ledger: Ledger
) -> None:
    with pytest.raises(PlanRefused, match="makes no privacy guarantee"):
        open_gate(tiny, ledger, **FREE)
    with pytest.raises(PlanRefused, match="makes no privacy guarantee"):
        rounds = {"groups": 400, "rounds": 3, "round_groups": 50}
        plan("effective_rounds", tiny.folder / "visits.yml", name="r", scope="gate", **rounds)


def test_a_noise_free_gate_is_proven_with_few_groups(tiny: Tiny, ledger: Ledger) -> None:
    """On a table declared generalisation_only; what was released before makes the next gate's proof
    void.
    """
    tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, block=None, holdout=True, generalisation_only=True,
        columns={"age": {"lower": 0, "upper": 120}},
    )  # fmt: skip
    with pytest.raises(PlanRefused, match="granted to protect all rows"):
        open_gate(tiny, ledger, **FREE)
    table = load_table(tiny.folder / "visits.yml")
    ledger.grant("open", 1, 0, filter="basic", table=table, principal="owner")
    session = open_gate(tiny, ledger, "open", **FREE)
    found = [judge(session, s) for s in (HONEST, wrong(0), wrong(1))]
    assert [(v["verdict"], v["guarantee"]) for v in found] == [
        ("yes", "proven"),
        ("no", "proven"),
        ("no", "proven"),
    ]
    assert ledger.remaining("open").rows()[0]["epsilon_spent"] == "0"
    assert all(0 < v["tolerance"] < 60 for v in found)
    later = judge(open_gate(tiny, ledger, "open", name="later", **FREE), HONEST)
    assert (later["guarantee"], later["because"]) == (
        "unproven",
        "something was released from this data before the session was opened",
    )
    tiny.fill(f"{ROWS}; CREATE TABLE more AS FROM visits")
    text = (tiny.folder / "visits.yml").read_text().replace("holdout: true", "holdout: false")
    (tiny.folder / "more.yml").write_text(text.replace("name: visits", "name: more"))
    other = tiny.folder / "other.yml"
    other.write_text(
        (tiny.folder / "visits.yml").read_text().replace("column: person", "column: age")
    )
    with pytest.raises(
        PlanRefused, match="400 groups by 'person' in scope 'open' since its first session"
    ):
        open_gate(tiny, ledger, "open", name="by age", table="other.yml", **FREE)
    ledger.grant("rows", 1, 0, filter="basic", table=table, principal="owner")
    handed = judge(open_gate(tiny, ledger, "rows", table="more.yml", **FREE), HONEST)
    assert handed["guarantee"] == "unproven" and "declare holdout" in handed["because"]
    with pytest.raises(
        PlanRefused,
        match="prove nothing .* cheapest proven method on this table is description_length",
    ):
        open_gate(
            tiny, ledger, "open", name="few", **(FREE | {"queries": 10**6, "require": "proven"})
        )
