"""Scopes that pay for certified mechanisms only: refused in every plan and charge, and sealed."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from small_plans import planned
from typer.testing import CliRunner

import dpflow
from dpflow import fault_points, release
from dpflow.cli.commands import app
from dpflow.core.accounting.events import Pure
from dpflow.core.accounting.privacy_filters import Filter, make_filter
from dpflow.engine.planning.precheck import PlanInRun, check_run, forecast
from dpflow.engine.planning.simulate import Job, PlannedRelease, Run, Task, forecast_schedule
from dpflow.engine.prediction.session import PredictionSession
from dpflow.engine.releases import certificates
from dpflow.engine.releases.certificates import (
    CERTIFICATES,
    MechanismCertificate,
    read_notes,
    write_audits,
    write_notes,
)
from dpflow.engine.releases.request import parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused
from dpflow.ledger import Ledger, ReleaseKey
from dpflow.ledger.books import charges
from dpflow.ledger.history.checkpoint import Signer
from dpflow.quality import parse_contract, run_contract
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from tests.smallworld import DECLARATION, PASSED_AUDIT

if TYPE_CHECKING:
    from smallworld import Tiny

REGISTRY = Registry.load()
STRANGER = Signer.create("stranger")
REFUSED = "scope 'visits' pays for certified mechanisms only"


@pytest.fixture(autouse=True)
def covers_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which plans a certificate covers is tested beside it."""
    monkeypatch.setattr(MechanismCertificate, "list_uncovered", lambda self, cells: [])


@pytest.fixture
def ledger(tiny: Tiny) -> Ledger:
    """One that asks for certificates by its owner."""
    ledger = Ledger(tiny.ledger)
    grant(tiny, ledger, certified_by=[ledger.signer.public_text])
    return ledger


def grant(tiny: Tiny, ledger: Ledger, **terms: Any) -> Any:
    table = load_table(tiny.folder / "visits.yml")
    given: dict[str, Any] = {"filter": "basic", "table": table, "principal": "owner"}
    return ledger.grant("visits", 1, "1e-6", **given | terms)


def describe(about: str, /, **changes: Any) -> MechanismCertificate:
    found = REGISTRY.find_mechanism(about)
    audit = PASSED_AUDIT | {"mechanism": about, "version": found.version}
    origin = REGISTRY.origin[about]
    return replace(MechanismCertificate.of_audit(found, origin, audit), **changes)


def certify(ledger: Ledger, *mechanisms: str, signer: Signer | None = None, **changes: Any) -> None:
    """Write certificates beside the ledger's keys, as `dpflow certify` does."""
    notes = [describe(one, **changes).sign(signer or ledger.signer) for one in mechanisms]
    (ledger.anchor_folder / CERTIFICATES).write_text(write_notes(notes))


def spent(ledger: Ledger) -> Any:
    return [cost for _, cost in ledger.remaining("visits").spent if cost.epsilon]


def run_contract_file(tiny: Tiny, ledger: Ledger) -> None:
    checks = [{"name": "many", "check": "rows", "at_least": 1}]
    content = {"name": "daily", "table": "visits.yml", "mode": "metered", "checks": checks}
    contract = parse_contract(content | {"scope": "visits", "epsilon": "0.5"}, tiny.folder)
    run_contract(contract, ["2020-01-01"], ledger=ledger, registry=REGISTRY)


def ask_sql(tiny: Tiny, ledger: Ledger, explain: bool = False) -> None:
    text = "SELECT count(*) FROM visits WHERE day = '2020-01-01'"
    table = load_table(tiny.declare(columns=DECLARATION["columns"] | {"day": {}}))
    options = {"tables": [table], "ledger": ledger, "scope": "visits", "epsilon": "0.25"}
    if explain:
        dpflow.plan_sql(text, **options).explain(ledger)
    else:
        dpflow.sql(text, **options)


def watch(tiny: Tiny, ledger: Ledger) -> Session:
    return Session.open(planned(tiny, "above_threshold", name="watch"), ledger, REGISTRY)


def predict(tiny: Tiny, ledger: Ledger) -> PredictionSession:
    params = {"features": ["age"], "label": "city", "predictions": 2, "shards": 4}
    made = planned(tiny, "predict_vote", delta="1e-7", learner="GaussianNB", **params)
    return PredictionSession.open(made, ledger)


def simulate(tiny: Tiny, ledger: Ledger) -> None:
    request = parse_request(yaml.safe_load(tiny.file().read_text()), tiny.folder)
    task = Task("release", lambda run: [PlannedRelease(request, request.blocks)])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    job = Job("daily", "daily", "daily", (task,), lambda: iter([Run(start, "run 0")]))
    forecast_schedule([job], REGISTRY, ledger)


#: How each door is knocked at, and which mechanism draws behind it.
DOORS: dict[str, tuple[str, Callable[[Tiny, Ledger], object]]] = {
    "release": ("count", lambda tiny, ledger: release(planned(tiny), ledger)),
    "forecast": ("count", lambda tiny, ledger: forecast(planned(tiny), ledger)),
    "budget check": (
        "count",
        lambda tiny, ledger: check_run(
            [PlanInRun(planned(tiny))], ledger, RunIdentity.of_request(planned(tiny).request)
        ),
    ),
    "schedule": ("count", simulate),
    "session": ("above_threshold", watch),
    "prediction": ("predict_vote", predict),
    "sql": ("aggregates", ask_sql),
    "explain": ("aggregates", lambda tiny, ledger: ask_sql(tiny, ledger, explain=True)),
    "contract": ("check_rows", run_contract_file),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_nobody_certified(tiny: Tiny, ledger: Ledger, door: str) -> None:
    """Nothing is charged, and the refusal says what to run; certified, the same door opens."""
    mechanism, knock = DOORS[door]
    with pytest.raises(PlanRefused, match=REFUSED) as refusal:
        knock(tiny, ledger)
    assert f"dpflow certify {mechanism}" in str(refusal.value) and spent(ledger) == []
    certify(ledger, mechanism)
    knock(tiny, ledger)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 99}, "the mechanism's version changed"),
        ({"code": "0" * 64}, "the code of its distribution changed"),
        ({"contract": "0" * 64}, "dpflow's core or tables changed"),
        ({"verdict": "no power"}, "its verdict changed"),
        ({"mechanism": "sum"}, "no key that it names has signed a certificate of count"),
        ({"signer": STRANGER}, "no key that it names has signed a certificate of count"),
    ],
)
def test_a_certificate_of_something_else_is_none(
    tiny: Tiny, ledger: Ledger, changes: dict[str, Any], says: str
) -> None:
    certify(ledger, "count", **changes)
    with pytest.raises(PlanRefused, match=says):
        release(planned(tiny), ledger)
    assert spent(ledger) == []


def test_a_paid_result_needs_no_certificate_and_a_new_draw_does(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay draws nothing. Whoever takes over what crashed before it settled draws again."""
    certify(ledger, "count")
    receipt = release(planned(tiny), ledger)

    def crash(name: str) -> None:
        if name == "reserve.after-commit":
            raise KeyboardInterrupt

    monkeypatch.setattr(fault_points, "pass_point", crash)
    with pytest.raises(KeyboardInterrupt):
        release(planned(tiny, name="crashed"), ledger)
    monkeypatch.undo()
    (ledger.anchor_folder / CERTIFICATES).unlink()
    assert release(planned(tiny), ledger).result == receipt.result
    with pytest.raises(PlanRefused, match=REFUSED):
        release(planned(tiny, name="crashed"), ledger)


def test_a_session_that_is_resumed_needs_its_certificate_again(tiny: Tiny, ledger: Ledger) -> None:
    certify(ledger, "above_threshold")
    watch(tiny, ledger)
    certify(ledger, "above_threshold", code="0" * 64)
    with pytest.raises(PlanRefused, match="the code of its distribution changed since"):
        watch(tiny, ledger)


def test_a_release_inside_a_gate_needs_its_own(tiny: Tiny) -> None:
    """The gate's certificate is about the gate."""
    tiny.fill("CREATE TABLE visits AS SELECT 'p' || i AS person, i % 7 AS age FROM range(400) t(i)")
    age = {"lower": 0, "upper": 120, "missing": 0}
    declared = {"protects": "unit", "block": None, "holdout": True, "columns": {"age": age}}
    table = load_table(tiny.declare(contribution_bounds={"rows": 1}, **declared))
    ledger = Ledger(tiny.ledger)
    keys = [ledger.signer.public_text]
    ledger.grant("gate", 5, 0, table=table, filter="basic", certified_by=keys, principal="owner")
    certify(ledger, "reusable_holdout")
    params = {"groups": 400, "queries": 20, "failures": 2, "rho": "0.24", "alpha": "0.2"}
    gate = planned(
        tiny, "reusable_holdout", name="gate", scope="gate", blocks=None, epsilon="5",
        reserve={"epsilon": "1"}, **params,
    )  # fmt: skip
    session = Session.open(gate, ledger, REGISTRY)
    asked = {"release": {"mechanism": "count", "params": {"epsilon": "0.4"}}}
    with pytest.raises(PlanRefused, match="signed a certificate of count"):
        session.ask(asked)
    certify(ledger, "reusable_holdout", "count")
    assert session.ask(asked)["verdict"] == "released"


def charge(ledger: Ledger, **terms: Any) -> Any:
    """Charge without a plan, as nothing in dpflow does."""
    given: dict[str, Any] = {"family": "f", "slot": None, "principal": "job", "request": {}}
    key = ReleaseKey("visits", "", "", "run", "digest")
    return ledger.reserve(key, event=Pure(Fraction(1, 4)), blocks=["2020-01-01"], **given | terms)


def test_the_ledger_itself_refuses_a_charge_that_names_nobody(tiny: Tiny, ledger: Ledger) -> None:
    """Whatever door was forgotten ends here."""
    for keys in ([], [STRANGER.public_text]):
        with pytest.raises(PlanRefused, match="names no key that it trusts"):
            charge(ledger, certified_by=keys)
    charge(ledger, certified_by=[STRANGER.public_text, ledger.signer.public_text])
    assert ledger.verify().ok


def test_an_auditor_finds_a_charge_without_a_certificate(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant is sealed with its keys, and so is what each charge names."""
    monkeypatch.setattr(charges, "require_certified", lambda *_: None)
    charge(ledger)
    problems = ledger.verify().problems
    assert any("trusts no certificate of" in problem for problem in problems), problems


def test_a_grant_keeps_or_ends_the_rule(tiny: Tiny, ledger: Ledger) -> None:
    """As approvals do: what is not said stays. Quotas obey what is above them, and history and
    export hold the rule.
    """
    keys = (ledger.signer.public_text,)
    assert grant(tiny, ledger).filter.certified_by == keys
    ledger.quota("visits/team", 1, 0, principal="owner")
    with pytest.raises(PlanRefused, match=REFUSED):
        release(planned(tiny, scope="visits/team"), ledger)
    certify(ledger, "count")
    release(planned(tiny, scope="visits/team"), ledger)
    # Once something is spent, the rule still stays with new amounts.
    assert ledger.grant(
        "visits", 2, "1e-6", filter="basic", table=load_table(tiny.folder / "visits.yml"),
        principal="owner",
    ).filter.certified_by == keys  # fmt: skip
    exported = io.StringIO()
    ledger.export(exported)
    assert keys[0] in exported.getvalue() and ledger.verify().ok
    assert grant(tiny, ledger, certified_by=[]).filter.certified_by == ()
    (ledger.anchor_folder / CERTIFICATES).unlink()
    release(planned(tiny, name="other"), ledger)
    with pytest.raises(InvalidInput, match="a verifier key reads"):
        grant(tiny, ledger, certified_by=["nobody"])


def test_a_rule_says_its_certifiers_only_where_there_are_any() -> None:
    """And is read back as it was; any other form is refused: it must not charge."""
    plain = make_filter("hybrid", Fraction(1), Fraction(1, 10**6))
    strict = replace(plain, certified_by=("a", "b"))
    assert "certified_by" not in plain.to_json()
    assert strict.to_json()["certified_by"] == ["a", "b"]
    assert (
        Filter.from_json(strict.to_json()) == strict and Filter.from_json(plain.to_json()) == plain
    )
    for wrong in ({"version": 2}, {"certified_by": []}, {"certified_by": "ab"}, {"more": 1}):
        with pytest.raises(InvalidDeclaration, match="not a filter of version"):
            Filter.from_json(strict.to_json() | wrong)


# --- what distributions ship ----------------------------------------------------------------------


def run(tiny: Tiny, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--ledger", str(tiny.ledger)])


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the distribution of `count` ships its audits; in a checkout there are none."""
    file = tmp_path / certificates.AUDITS
    monkeypatch.setattr(certificates, "shipped_audits_file", lambda mechanism: file)
    return file


def test_an_owner_signs_what_a_distribution_ships(
    tiny: Tiny, ledger: Ledger, shipped: Path
) -> None:
    """Whole way by commands: accept, grant, release. Nothing is audited, and no key is shipped."""
    shipped.write_text(write_audits([describe("count"), describe("sum", code="0" * 64)]))
    done = run(tiny, "certify", "--accept")
    assert done.exit_code == 0 and "count: exact, 100% of epsilon measured" in done.stdout
    assert "not accepted: the audit that came with sum is about something else" in done.stderr
    words = [
        "ledger",
        "grant",
        "visits",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--table",
        str(tiny.folder / "visits.yml"),
    ]
    told = run(tiny, *words, "--require-certified")
    assert told.exit_code == 0 and "for certified mechanisms only" in told.stdout
    assert not release(planned(tiny), ledger).replayed
    with pytest.raises(PlanRefused, match="signed a certificate of sum"):
        release(planned(tiny, "sum", column="age"), ledger)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arithmetic": "own arithmetic"}, "own arithmetic, covers"),
        (
            {"arithmetic": "own state", "own_state": ["a clock in Sum"]},
            "own state (a clock in Sum)",
        ),
    ],
)
def test_arithmetic_or_state_of_its_own_is_accepted_by_name_alone(
    tiny: Tiny, ledger: Ledger, shipped: Path, changes: dict[str, Any], says: str
) -> None:
    own = describe("sum", **changes)
    shipped.write_text(write_audits([describe("count"), own]))
    done = run(tiny, "certify", "--accept")
    assert done.exit_code == 0 and "1 signed" in done.stdout
    assert "accepted only by name: dpflow certify sum --accept" in done.stderr
    assert f"sensitivities: {says}" in run(tiny, "certify", "sum", "--accept").stdout


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"code": "0" * 64}, "the code of its distribution changed"),
        ({"contract": "0" * 64}, "dpflow's core or tables changed"),
        ({"version": 99}, "the mechanism's version changed"),
        ({"distribution": "acme 1.0 (count)"}, "its distribution changed"),
        ({"verdict": "refuted"}, "its verdict changed"),
        ({"mechanism": "sum"}, "ships no audit of count"),
    ],
)
def test_a_shipped_audit_of_something_else_is_not_accepted(
    tiny: Tiny, ledger: Ledger, shipped: Path, changes: dict[str, Any], says: str
) -> None:
    shipped.write_text(write_audits([describe("count", **changes)]))
    done = run(tiny, "certify", "count", "--accept")
    assert isinstance(done.exception, InvalidInput) and says in str(done.exception)
    assert "dpflow certify count" in str(done.exception)
    assert not (ledger.anchor_folder / CERTIFICATES).exists()


def test_a_plugin_without_files_stands_in_nobodys_way(
    tiny: Tiny, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace package has no file of its own: all others are accepted, and it is named. A file of that name
    where the command runs is none of its.
    """
    (tmp_path / "acme_bare").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / certificates.AUDITS).write_text(write_audits([describe("sum")]))
    real, shipped = certificates.package_of, certificates.shipped_audits_file
    bare = type(REGISTRY.find_mechanism("sum"))
    monkeypatch.setattr(
        certificates, "package_of", lambda kind: "acme_bare" if kind is bare else real(kind)
    )
    (tmp_path / "count.json").write_text(write_audits([describe("count")]))
    monkeypatch.setattr(
        certificates,
        "shipped_audits_file",
        lambda one: tmp_path / "count.json" if one.name == "count" else shipped(one),
    )
    done = run(tiny, "certify", "--accept")
    assert done.exit_code == 0 and "count: exact" in done.stdout and "sum:" not in done.stdout
    assert "package 'acme_bare' has no files" in done.stderr
    assert isinstance(run(tiny, "certify", "sum", "--accept").exception, PlanRefused)


def test_a_certificate_says_what_it_covers(tiny: Tiny, ledger: Ledger, shipped: Path) -> None:
    shipped.write_text(write_audits([describe("count")]))
    assert run(tiny, "certify", "count", "--accept").exit_code == 0
    (note,) = read_notes(ledger.anchor_folder / CERTIFICATES)
    assert "not of dpflow.engine" in note and "nor estimators of plugins" in note


@pytest.mark.parametrize("text", [None, "", "[]", '{"audits": [{}]}', '{"audits": 1}'])
def test_a_file_that_is_no_list_of_audits_is_not_accepted(
    tiny: Tiny, ledger: Ledger, shipped: Path, text: str | None
) -> None:
    if text is not None:
        shipped.write_text(text)
    done = run(tiny, "certify", "count", "--accept")
    assert isinstance(done.exception, InvalidInput) and "dpflow certify count" in str(
        done.exception
    )
    assert isinstance(run(tiny, "certify", "--accept").exception, InvalidInput)


def test_one_edited_line_is_another_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distribution's own .py file, edited after it was audited."""
    folder = tmp_path / "acme_shipped"
    folder.mkdir()
    (folder / "__init__.py").write_text("class Noise:\n    name, version = 'noise', 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    noise = import_module("acme_shipped").Noise()
    audit = PASSED_AUDIT | {"mechanism": "noise", "version": 1}
    found = MechanismCertificate.of_audit(noise, "acme 1", audit)
    certificates.shipped_audits_file(noise).write_text(write_audits([found]))
    assert certificates.read_shipped_audit(noise, "acme 1") == found
    (folder / "__init__.py").write_text("class Noise:\n    name, version = 'noise', 1  # edited\n")
    certificates.digest_package.cache_clear()
    with pytest.raises(InvalidInput, match="the code of its distribution changed"):
        certificates.read_shipped_audit(noise, "acme 1")
    certificates.digest_package.cache_clear()
