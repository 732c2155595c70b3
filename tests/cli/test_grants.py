"""`dpflow ledger grant`, `quota`, `proposals` and `approve`."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ledger_verbs import Run, charge
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.core.accounting.events import DiscreteLaplace, Pure
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    GrantConflict,
    InvalidInput,
)
from dpflow.ledger import Ledger, ReleaseKey
from dpflow.ledger.audit.entry_text import explain_entry

if TYPE_CHECKING:
    from smallworld import Tiny


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
def test_a_grant_says_how_many_releases_each_filter_holds(tiny: Tiny, run: Run, name: str) -> None:
    """And the ledger pays for just so many: every count is spent to its end."""
    words = ["grant", name, "--epsilon", "1", "--delta", "1e-6", "--no-table", "--filter", name]
    shown = run(*words)
    assert "releases of epsilon 0.01 each (discrete Laplace) that it holds by filter" in shown
    count = run(*words, "--json")["typical_releases"][name]
    assert f"{name} {count:,}" in shown
    ledger = Ledger(tiny.ledger)
    noise = DiscreteLaplace(Fraction(100))
    assert ledger.check(name, [noise] * count, ()) is None
    assert ledger.check(name, [noise] * (count + 1), ()) is not None
    assert "renyi" not in run("grant", "pure", "--epsilon", "1", "--no-table", "--json")["typical_releases"]  # fmt: skip


@pytest.mark.parametrize(("delta", "name"), [("0", "basic"), ("1e-6", "hybrid")])
def test_both_doors_choose_one_filter(tiny: Tiny, run: Run, delta: str, name: str) -> None:
    """What a grant without a filter gets, here and in Python; a scope keeps its filter when it is
    granted again.
    """
    words = ["grant", "shell", "--epsilon", "1", "--delta", delta, "--no-table"]
    assert f"({name})" in run(*words)
    ledger = Ledger(tiny.ledger)
    ledger.grant("python", 1, delta, table=None, principal="owner")
    assert ledger.scope("shell").filter == ledger.scope("python").filter
    run("grant", "shell", "--epsilon", "2", "--delta", "1e-5", "--no-table")
    assert ledger.scope("shell").filter.name == name
    ledger.grant("nobody", 1, "1e-6", table=None, protects=NOBODY, principal="owner")
    assert ledger.scope("nobody").filter.name == "basic"


def test_grants_that_people_sign(tiny: Tiny, run: Run, tmp_path: Path) -> None:
    """Keys of two people, each in a file of its own; what nobody signed is named."""
    keys = [run("key", str(tmp_path / name), "--name", name).strip() for name in ("ann", "bob")]
    who = [word for key in keys for word in ("--signer", key)]
    words = ["grant", "signed", "--epsilon", "1", "--no-table", "--approvals", "2"]
    seq = run(*words, *who, "--sign", str(tmp_path / "ann"), "--json")["proposal"]
    with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
        run("approve", "signed", str(seq))
    run("approve", "signed", str(seq), "--sign", str(tmp_path / "bob"))
    report = run("verify", "--json")
    assert report["ok"] and report["self_declared"] == [1]
    assert "self-declared, not signed" in run("verify")


def test_an_approver_sees_every_change(tiny: Tiny, run: Run, tmp_path: Path) -> None:
    """Another key in the approver's place, under the approver's name too, and no witness any more: nothing else changed."""
    names = ("ann", "bob", "nightly")
    ann, bob, nightly = (run("key", str(tmp_path / n), "--name", n).strip() for n in names)
    other = run("key", str(tmp_path / "other"), "--name", "bob").strip()
    words = ["grant", "s", "--epsilon", "2", "--no-table", "--sign", str(tmp_path / "ann")]
    first = [*words, "--approvals", "2", "--signer", ann, "--signer", bob]
    run(*first, "--witness", nightly, "--witness-every", "10")
    run("approve", "s", "2", "--sign", str(tmp_path / "bob"))
    run(*words, "--signer", ann, "--signer", other, "--witness-every", "0")
    changes = [
        f"signer added: {other}",
        f"signer removed: {bob}",
        f"witness: {nightly} within 10 charges -> none",
    ]
    assert run("proposals", "--json")[0]["changes"] == changes
    shown = run("proposals")
    assert all(change in shown for change in changes)
    told = [explain_entry(e) for e in Ledger(tiny.ledger).history() if e.kind == "propose"]
    assert "bob+" + bob.split("+")[1] in told[0] and "witness nightly" in told[0]
    assert "bob+" + other.split("+")[1] in told[1] and "witness" not in told[1]
    shown = run("approve", "s", "4", "--sign", str(tmp_path / "bob"))
    assert all(change in shown for change in changes)


def test_a_scope_demands_a_witness(
    tiny: Tiny, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant names key and number, and show says how far the witness is."""
    key = run("key", str(tmp_path / "nightly"), "--name", "nightly").strip()
    words = ["grant", "w", "--epsilon", "1", "--no-table", "--witness"]
    with pytest.raises(InvalidInput, match="--witness-every N"):
        run(*words, key)
    run(*words, key, "--witness-every", "5")
    seq = Ledger(tiny.ledger).history()[-1].seq
    said = f"scope 'w': for witness nightly, charges count from entry {seq}, and 0 of 5 came behind it\n"
    assert said in run("show")
    (tmp_path / "outside").mkdir()
    place = str(tmp_path / "outside")
    added = run("checkpoint", "--key", str(tmp_path / "nightly"), "--into", place)
    assert "000000000001.txt was added" in added
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", place)
    assert said in run("show")  # it signed the entry of the grant
    run("grant", "v", "--epsilon", "1", "--no-table", "--reason", "for the trial")
    run("checkpoint", "--key", str(tmp_path / "nightly"), "--into", place)
    # What verify compares with.
    assert f"its newest checkpoint is of entry {seq + 1}, and" in run("show")
    assert f"compared with the checkpoint of entry {seq + 1} by nightly" in run("verify")
    assert "for the trial" in run("history", "--since", seq + 1)
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(tmp_path / "gone"))
    assert said in run("show")


def test_two_owners_agree_to_a_grant(tiny: Tiny, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is told what the second one runs; the table shows what waits."""
    raised = ["grant", "visits", "--epsilon", "7", "--delta", "1e-5", "--table", "visits.yml"]
    raised += ["--approvals", "2"]
    assert "another owner runs dpflow ledger approve visits 2" in run(*raised)
    waiting = run("proposals", "--json")
    assert [(w["scope"], w["proposed_by"], w["proposal"]) for w in waiting] == [
        ("visits", "tester", 2)
    ]
    table = run("proposals")
    assert "visits" in table and "tester" in table and " 7 " in table
    with pytest.raises(InvalidInput, match="somebody else approves it"):
        run("approve", "visits", "2")
    assert Ledger(tiny.ledger).scope("visits").epsilon == 1
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "second")
    with pytest.raises(InvalidInput, match="no grant with these terms, proposed by entry 2"):
        run("approve", "visits", "2", "--terms", "0" * 40)
    assert f"--terms {waiting[0]['terms']}" in table
    assert run("approve", "visits", "2", "--terms", waiting[0]["terms"], "--json")["approvals"] == 2
    assert Ledger(tiny.ledger).scope("visits").epsilon == 7 and run("proposals", "--json") == []
    told = run("quota", "visits/a", "--epsilon", "1", "--approvals", "2", "--json")
    assert (told["proposal"], told["proposed_by"]) == (4, "second")


def test_a_quota_is_inside_its_scope(tiny: Tiny, run: Run) -> None:
    """It protects what the scope above protects, by the same blocks and filter; both pay; either
    refuses.
    """
    made = run("quota", "visits/a", "--epsilon", "0.4", "--json")
    assert made["protects"] == "all rows of one person in one day (add-remove)" and made["blocks"]
    assert made["filter"]["name"] == "basic"
    charge(tiny, "one", "visits/a", "0.3")
    rows = {row["scope"]: row for row in run("show", "--json")}
    assert (rows["visits"]["epsilon_left"], rows["visits/a"]["epsilon_left"]) == ("0.7", "0.1")
    assert (rows["visits"]["used"], rows["visits/a"]["used"]) == (0.3, 0.75)
    with pytest.raises(
        DpflowError,
        match="scope 'visits/a', block '2020-01-01' cannot pay.*dpflow ledger quota visits/a",
    ):
        charge(tiny, "two", "visits/a", "0.2")
    assert "epsilon 0.5" in run("quota", "visits/a", "--epsilon", "0.5")
    with pytest.raises(GrantConflict, match="already spent more"):
        run("quota", "visits/a", "--epsilon", "0.2")


def test_the_division_of_delta_is_fixed_once_something_is_spent(tiny: Tiny, run: Run) -> None:
    """A tail_share below 1 leaves the rest to mechanisms; a raise keeps it; another one is refused
    after a charge.
    """
    words = [
        "grant",
        "s",
        "--delta",
        "1e-6",
        "--filter",
        "hybrid",
        "--table",
        tiny.folder / "visits.yml",
    ]
    made = run(*words, "--epsilon", "1", "--tail-share", "0.25", "--json")["filter"]
    assert made["tail_delta"] == "2.5e-7"
    (row,) = run("show", "s", "--json")
    assert (row["delta_granted"], row["delta_left"]) == ("0.000001", "7.5e-7")
    assert run(*words, "--epsilon", "2", "--json")["filter"]["tail_delta"] == "2.5e-7"
    charge(tiny, "n", "s")
    with pytest.raises(GrantConflict, match="tail_share 0.25, which stays"):
        run(*words, "--epsilon", "3", "--tail-share", "1/2")
    assert (
        run(*words, "--epsilon", "3", "--tail-share", "1/4", "--json")["filter"]["order"]
        is not None
    )


def test_a_grant_says_when_it_makes_a_ledger_and_when_another_scope_protects_the_same(
    tiny: Tiny, run: Run
) -> None:
    """In a wrong folder a grant would make a second ledger, and a second scope spends beside the
    first: neither in silence.
    """
    said: list[str] = []
    for words in (
        ("other", "--ledger", tiny.ledger),
        ("visits", "--ledger", "new.sqlite"),
        ("visits", "--ledger", "new.sqlite"),
    ):
        grant = ["ledger", "grant", *map(str, words), "--epsilon", "1", "--table", "visits.yml"]
        said.append(CliRunner().invoke(app, grant).stderr)
    assert (
        said[0].startswith("note: visits protects the same") and "made a new ledger" not in said[0]
    )
    made = f"made a new ledger at {tiny.folder / 'new.sqlite'}; its keys and mark are in "
    assert said[1].startswith(made + os.environ["XDG_STATE_HOME"]) and said[2] == ""


def test_a_first_grant_without_a_table_is_no_trap(tiny: Tiny, run: Run) -> None:
    """It must be said, and the table may be named later, until something is charged."""
    assert "protecting" not in run("grant", "s", "--epsilon", "1", "--no-table")
    with pytest.raises(InvalidInput, match="has no blocks, so name none"):
        charge(tiny, "one", "s")
    terms = ["grant", "s", "--epsilon", "1"]
    assert "in every block" in run(*terms, "--table", "visits.yml")
    charge(tiny, "one", "s")
    with pytest.raises(GrantConflict, match="granted to protect"):
        run(*terms, "--no-table")
    assert [entry["kind"] for entry in run("history", "--scope", "s", "--json")] == [
        "grant",
        "grant",
        "reserve",
    ]


@pytest.mark.parametrize(
    ("grant", "scope", "changed"),
    [
        (("grant", "plain", "--epsilon", 1, "--delta", "1e-7", "--no-table"), "plain", {}),
        (("quota", "visits/team", "--epsilon", "0.3"), "visits/team", {}),
        ((), "visits", {"DECLARATION": "visits.yml"}),
    ],
)
def test_a_refusal_names_the_grant_that_would_pay(
    run: Run, tiny: Tiny, grant: tuple[object, ...], scope: str, changed: dict[str, str]
) -> None:
    """Its command said no epsilon, and would have set delta to 0. Run as it stands, the same charge
    passes and nothing else of the scope changes.
    """
    if grant:
        run(*grant)
    book, block = Ledger(tiny.ledger), "" if scope == "plain" else "2020-01-01"
    before = book.scope(scope)

    def spend() -> None:
        book.reserve(
            ReleaseKey(scope, "", "", "r", "big"), event=Pure(Fraction(5, 4) * before.epsilon), slot=None,
            blocks=[block] if block else [], family="f", principal="ann", request={"name": "big"},
        )  # fmt: skip

    with pytest.raises(BudgetExceeded) as refused:
        spend()
    words = str(refused.value).partition("dpflow ledger ")[2].split()
    if scope == "visits/team":  # the scope above pays it, too
        run("grant", "visits", "--epsilon", 2, "--delta", "1e-6", "--table", "visits.yml")
    run(*[changed.get(word, word) for word in words])
    spend()
    after = book.scope(scope)
    assert after.epsilon == Fraction(5, 4) * before.epsilon
    assert (after.filter.delta, after.filter.name, after.protects) == (
        before.filter.delta, before.filter.name, before.protects,
    )  # fmt: skip


def test_a_large_grant_needs_its_flag(tiny: Tiny, run: Run) -> None:
    """Neither `ledger grant` nor `init` gives one by a slip, and no ledger is left behind."""
    words = ["grant", "new", "--epsilon", "21", "--no-table", "--ledger", "other.sqlite"]
    with pytest.raises(InvalidInput, match="--confirm-large"):
        run(*words)
    assert not Path("other.sqlite").exists()
    assert "21" in run(*words, "--confirm-large")
