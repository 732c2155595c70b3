"""Owners decide at a running service, by commands that are processes: what a person's key signed is recorded once, and
nothing else is.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml
from audit_program import export_text, run_audit
from forked_programs import ForkedProgram
from service_world import TOKENS, TRUST, Server, ServiceWorld, headers_of

from dpflow.cli.console import confirm_decision
from dpflow.client.owner import RemoteLedger
from dpflow.client.remote import RemoteClient
from dpflow.core.accounting.events import Pure
from dpflow.errors import DpflowError, InvalidInput, ServiceUnavailable, SignatureRequired
from dpflow.ledger import Ledger, ReleaseKey
from dpflow.ledger.history.checkpoint import SentSignature, Signer

ANN, BOB, EVE = (Signer(name, name.encode() * 10 + b"xx") for name in ("ann", "bob", "eve"))
#: Large, as the world's: that is confirmed each time.
LARGE = {"delta": "0.1", "confirm_large": True}
COMMAND = "import os, sys; os.chdir(sys.argv.pop(1)); from dpflow.cli import main; main()"
#: The process of the service ends with a trace where it opens a file of this folder.
WATCHED = """
import sys
def watch(event, details, folder={folder!r}):
    if event == "open" and str(details[0]).startswith(folder):
        sys.stderr.write("Traceback: a person's key was opened")
        sys.stderr.flush()
sys.addaudithook(watch)
"""


class Owners:
    """A service whose scope ``visits`` ann and bob may grant, and ``other`` eve; each person's key is in a folder of
    their own.
    """

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "persons"
        self.keys.mkdir(parents=True)
        for signer in (ANN, BOB, EVE):
            (self.keys / signer.name).write_text(signer.private_text)
        folder = folder / "owner"
        folder.mkdir()
        self.world = ServiceWorld(folder)
        self.ledger = self.world.ledger
        people = [ANN.public_text, BOB.public_text]
        terms: dict[str, Any] = {"principal": "owner", "confirm_large": True, "filter": "basic"}
        table = self.world.table
        self.ledger.grant("visits", 10**6, "0.1", table=table, signers=people, signer=ANN, **terms)
        terms |= {"table": None}
        self.ledger.grant("other", 1, 0, signers=[EVE.public_text], signer=EVE, **terms)
        self.ledger.grant("free", 1, 0, **terms)
        self.orphans = [self._reserve(str(number)) for number in range(2)]
        tables = {"visits": "visits.yml"}
        (self.world.folder / "dpflow.yml").write_text(
            yaml.safe_dump({"ledger": "ledger.sqlite", "tables": tables})
        )

    def _reserve(self, name: str) -> str:
        return self.ledger.reserve(
            ReleaseKey("visits/ann", "", "", name, "d"), event=Pure(Fraction(1, 10)), blocks=(), family="f", slot=None,
            principal="spender", request={"name": name},
        ).release_id  # fmt: skip

    def serve(self, prelude: str = "", port: int = 0) -> Server:
        """The service's process, which says so where it opens a person's key."""
        watched = WATCHED.format(folder=str(self.keys))
        return Server(self.world.file, port=port, prelude=watched + prelude)


def remote(server: Server) -> RemoteLedger:
    return RemoteLedger(RemoteClient(server.url, TOKENS["own"][0]))


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Owners:
    return Owners(tmp_path_factory.mktemp("decisions"))


@pytest.fixture(scope="module")
def server(owners: Owners) -> Iterator[Server]:
    running = owners.serve()
    yield running
    running.stop()
    assert "Traceback" not in running.log


@pytest.fixture
def send(server: Server) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(base_url=server.url, verify=TRUST) as client:

        def post(decision: Mapping[str, Any], who: str = "own") -> httpx.Response:
            headers = headers_of(who) if who else {}
            return client.post("/v1/decisions", json=decision, headers=headers)

        yield post


def decide(signer: Signer, epsilon: str = "2", **changes: Any) -> dict[str, Any]:
    """A quota that ann and bob may give."""
    terms = {"verb": "quota", "scope": "visits/team", "epsilon": epsilon}
    return terms | {"key": signer.public_text} | changes


def sign(
    send: Callable[..., httpx.Response], signer: Signer, decision: dict[str, Any]
) -> dict[str, Any]:
    """A decision with the signature that the service asks for."""
    required = send(decision)
    assert (required.status_code, required.json()["error"]) == (409, "unsigned_decision")
    return decision | {"signature": signer.sign_line(required.json()["details"]["text"])}


def test_commands_decide_there_as_beside_the_ledger(tmp_path: Path) -> None:
    """The same words print the same and record the same entries, at a service and at a copy of its ledger; all of them
    are signed, to verification and to the audit program.
    """
    owners = Owners(tmp_path / "here")
    copy = tmp_path / "copy"
    shutil.copytree(owners.world.folder, copy)
    anchor = str(tmp_path / "anchor")
    shutil.copytree(owners.ledger.anchor_folder, anchor)
    server = owners.serve()
    client = tmp_path / "client"
    client.mkdir()
    (client / "dpflow.yml").write_text(f"server: {server.url}\n")
    base = {name: text for name, text in os.environ.items() if not name.startswith("DPFLOW")}
    base |= {"XDG_CONFIG_HOME": str(tmp_path), "DPFLOW_PRINCIPAL": "login"}
    there = base | {"DPFLOW_SERVER": server.url, "DPFLOW_TOKEN": TOKENS["own"][0]}
    here = base | {"DPFLOW_LEDGER_ANCHOR": anchor}
    large = ("--epsilon", "900000", "--delta", "0.1", "--confirm-large")
    commands: list[tuple[str, ...]] = [
        ("grant", "visits", *large, "--table", "visits", "--approvals", "2", "--sign", "ann"),
        ("grant", "visits", *large, "--table", "visits", "--approvals", "2", "--sign", "ann", "--json"),
        ("proposals",),
        ("proposals", "--json"),
        ("approve", "visits", "PROPOSAL", "--terms", "DIGEST", "--sign", "bob"),
        ("quota", "visits/team", "--epsilon", "0.5", "--period", "day", "--sign", "bob", "--json"),
        ("grant", "other", "--epsilon", "2", "--no-table", "--tail-share", "1", "--sign", "eve"),
        ("resolve", owners.orphans[0], "--reason", "host lost", "--sign", "ann"),
        ("resolve", owners.orphans[1], "--reason", "again", "--decision", "retry", "--sign", "bob", "--json"),
        ("show",),
    ]  # fmt: skip
    first = owners.ledger.newest_entry()[0]
    for words in commands:
        if "PROPOSAL" in words:
            (waiting,) = owners.ledger.proposals()
            named = {"PROPOSAL": str(waiting.seq), "DIGEST": waiting.digest}
            words = tuple(named.get(word, word) for word in words)
            unseen = [word for word in words if word not in ("--terms", waiting.digest)][:-1]
            program = ForkedProgram(
                COMMAND, str(client), "ledger", *unseen, str(owners.keys / "bob"), environment=there
            )
            refused, (_, why) = program.wait()
            assert refused == 1 and "--terms DIGEST" in why and owners.ledger.proposals()
        if "--sign" in words:
            at = words.index("--sign") + 1
            words = (*words[:at], str(owners.keys / words[at]), *words[at + 1 :])
        programs = [
            ForkedProgram(COMMAND, str(folder), "ledger", *words, environment=environment)
            for folder, environment in ((client, there), (copy, here))
        ]
        (code, (out, err)), (code_here, (out_here, err_here)) = (p.wait() for p in programs)
        assert code == code_here == 0, (words, err, err_here)
        assert out == out_here, words
    server.stop()
    assert "Traceback" not in server.log
    ledgers = owners.ledger, Ledger(copy / "ledger.sqlite", anchor=anchor)
    entries = [
        [(e.kind, e.scope, e.release_id, e.principal) for e in ledger.history(since=first + 1)]
        for ledger in ledgers
    ]
    assert entries[0] == entries[1]
    assert [(kind, principal) for kind, _, _, principal in entries[0]] == [
        *(("propose", "ann"), ("grant", "bob"), ("grant", "bob"), ("grant", "eve")),
        *(("resolve", "ann"), ("resolve", "bob")),
    ]
    for ledger in ledgers:
        report = ledger.verify()
        assert report.ok and max(report.self_declared) <= first, report
        said = run_audit(export_text(ledger), tmp_path)
        unsigned = [line for line in said.stderr.splitlines() if "nobody signed" in line]
        assert said.returncode == 0 and str(list(report.self_declared)) in unsigned[0]


def test_only_what_is_signed_now_is_recorded(
    owners: Owners, send: Callable[..., httpx.Response], tmp_path: Path
) -> None:
    """Each of these leaves the ledger as it was; the one that is signed does not, and works once."""
    ledger = owners.ledger
    signed = sign(send, ANN, decide(ANN))
    other = Ledger(tmp_path / "other.sqlite", anchor=tmp_path / "anchor", create=True)
    people: Any = {"table": None, "principal": "owner", "signers": [ANN.public_text]}
    other.grant("visits", 9, 0, filter="basic", signer=ANN, **people)
    with pytest.raises(SignatureRequired) as required:
        other.quota("visits/team", "2", 0, principal="x", signer=SentSignature(ANN.public_text))
    named = [EVE.public_text]
    impostor = Signer.create("ann")
    before = ledger.newest_entry()
    cases: list[tuple[int, str, dict[str, Any], str]] = [
        (409, "unsigned_decision", decide(ANN), "own"),
        (409, "unsigned_decision", decide(ANN, signature="AAAA"), "own"),
        (409, "unsigned_decision", signed | {"epsilon": "3"}, "own"),
        (409, "unsigned_decision", signed | {"scope": "visits/teams"}, "own"),
        (409, "unsigned_decision", signed | {"signers": named}, "own"),
        (409, "unsigned_decision", signed | {"key": BOB.public_text}, "own"),
        (409, "unsigned_decision", decide(ANN, signature=ANN.sign_line(required.value.text)), "own"),
        (422, "invalid_input", decide(EVE, signature=signed["signature"]), "own"),
        (422, "invalid_input", decide(impostor), "own"),
        (422, "invalid_input", decide(EVE, verb="grant", scope="mine", signers=named), "own"),
        (422, "invalid_input", decide(EVE, verb="grant", scope="free", signers=named), "own"),
        (422, "invalid_input", decide(ANN, key="ann+1+AAAA"), "own"),
        (422, "invalid_input", decide(ANN, verb="grant", scope="visits", epsilon="1", table="none"), "own"),
        (422, "invalid_input", {"verb": "approve", "scope": "visits", "proposal": 99, "key": ANN.public_text}, "own"),
        (422, "invalid_input", {"verb": "rotate", "key": ANN.public_text}, "own"),
        (403, "forbidden", signed, "ann"),
        (403, "forbidden", signed, "aud"),
        (401, "unauthorized", signed, ""),
    ]  # fmt: skip
    for status, word, decision, who in cases:
        answer = send(decision, who)
        assert (answer.status_code, answer.json()["error"]) == (status, word), decision
        assert ledger.newest_entry() == before
    assert send(signed).json() == {"proposal": None}
    assert ledger.newest_entry()[0] == before[0] + 1 and ledger.scope("visits/team").epsilon == 2
    replayed = send(signed)
    assert (replayed.status_code, replayed.json()["error"]) == (409, "unsigned_decision")
    lowered = sign(send, BOB, decide(BOB, "1"))
    assert send(lowered).status_code == 200 and send(signed).status_code == 409
    assert ledger.scope("visits/team").epsilon == 1 and ledger.newest_entry()[0] == before[0] + 2
    assert ledger.verify().ok


def test_who_proposes_does_not_approve(owners: Owners, send: Callable[..., httpx.Response]) -> None:
    """With the same key, whoever's token it comes with; nor does a signature of the proposal approve it."""
    two = decide(ANN, scope="visits/two", approvals=2)
    signed = sign(send, ANN, two)
    seq = send(signed).json()["proposal"]
    assert send(two).json() == {"proposal": seq}, (
        "the same again needs no signature and adds nothing"
    )
    approval = {"verb": "approve", "scope": "visits/two", "proposal": seq}
    assert "somebody else" in send(approval | {"key": ANN.public_text}).json()["message"]
    by_bob = approval | {"key": BOB.public_text}
    assert send(by_bob | {"signature": signed["signature"]}).status_code == 409
    assert [one.seq for one in owners.ledger.proposals()] == [seq]
    assert send(sign(send, BOB, by_bob)).status_code == 200
    assert owners.ledger.scope("visits/two").approvals == 2 and owners.ledger.proposals() == []


def test_owners_who_decide_at_once_all_decide(owners: Owners, server: Server) -> None:
    """Each signs again where another was first: every decision is recorded once."""
    before, failures = owners.ledger.newest_entry()[0], []

    def work(number: int) -> None:
        try:
            signer = (ANN, BOB)[number % 2]
            told = remote(server).quota(f"visits/q{number}", "0.5", "0", signer=signer)
            assert told.epsilon == Fraction(1, 2)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    entries = owners.ledger.history(since=before + 1)
    assert sorted(e.scope for e in entries) == [f"visits/q{number}" for number in range(8)]
    assert owners.ledger.verify().ok


#: Kills the service once, with a decision that is signed: before it is recorded, and before that is said.
KILLS = {
    "before": """
import os
from dpflow.ledger.books import grants
sign = grants.sign_decision
def kill(*words, **more):
    body = sign(*words, **more)
    os.kill(os.getpid(), 9)
grants.sign_decision = kill
""",
    "after": """
import os
from dpflow.server.decisions import Decisions
record = Decisions.record
def kill(*words):
    record(*words)
    os.kill(os.getpid(), 9)
Decisions.record = kill
""",
}


@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=pytest.mark.slow)])
def test_a_kill_loses_and_repeats_no_decision(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends it again to the next process, and looks whether it was recorded before it signs anew."""
    # However long that one takes to start.
    for name in ("MAX_SIGNED", "MAX_RESENT"):
        monkeypatch.setattr(f"dpflow.client.owner.{name}", 1000)
    monkeypatch.setattr("dpflow.client.owner.MAX_PAUSE", 0.5)
    owners = Owners(tmp_path / "world")
    before = owners.ledger.newest_entry()[0]
    dying = owners.serve(KILLS[moment])
    told: list[Any] = []
    client = threading.Thread(
        target=lambda: told.append(remote(dying).quota("visits/once", "0.5", "0", signer=ANN))
    )
    client.start()
    assert dying.process.wait(60) == -9
    recorded = owners.ledger.newest_entry()[0] - before
    assert recorded == {"before": 0, "after": 1}[moment]
    next_one = owners.serve(port=dying.port)
    client.join(300)
    next_one.stop()
    assert told and told[0].scope == "visits/once"
    assert owners.ledger.newest_entry()[0] == before + 1
    assert owners.ledger.verify().ok


class Lying:
    """A service that asks for a signature of what it likes."""

    server = "https://dp.example.org"

    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        self._change, self.sent = change, list[dict[str, Any]]()

    def scopes(self) -> list[dict[str, Any]]:
        return [scope.to_json() for scope in self.ledger.scopes()]

    def proposals(self) -> list[dict[str, Any]]:
        shown = [asdict(p) | {"terms": p.terms.to_json()} for p in self.ledger.proposals()]
        return [self.show(one) or one for one in shown]

    def show(self, proposal: dict[str, Any]) -> dict[str, Any] | None:
        """A proposal as it is listed, None for the truth."""

    def history(self, end: int | None = None, **_: Any) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.ledger.history(before=end or 2**62)]

    def decide(self, decision: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(decision)
        ledger = self.ledger
        verb = getattr(ledger, decision["verb"])
        named = {
            k: v for k, v in decision.items() if k not in ("verb", "key", "signature", "table")
        }
        if decision["verb"] == "grant":
            named["table"] = None
        try:
            verb(**named, principal="x", signer=SentSignature(decision["key"]))
        except SignatureRequired as required:
            line = json.loads(required.text.partition("\n")[2])
            changed = self._change(line) or line
            text = (
                changed
                if isinstance(changed, str)
                else json.dumps(changed, sort_keys=True, separators=(",", ":"))
            )
            raise SignatureRequired(f"dpflow.decision\n{text}\n") from None
        raise AssertionError

    ledger: Ledger


def change_rule(line: dict[str, Any], **changes: Any) -> None:
    line["body"]["filter"] = json.dumps(
        json.loads(line["body"]["filter"]) | changes, sort_keys=True, separators=(",", ":")
    )


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "more epsilon": lambda line: change_rule(line, epsilon="9"),
    "more capacity": lambda line: line["body"].update(capacity=[9 * 10**12, 0, -1, -1]),
    "more delta": lambda line: change_rule(line, delta="1e-9"),
    "another filter": lambda line: change_rule(line, name="hybrid"),
    "another signer": lambda line: change_rule(line, signers=[EVE.public_text]),
    "another certifier": lambda line: change_rule(line, certified_by=[EVE.public_text]),
    "one approval": lambda line: line["body"].pop("approvals"),
    "another scope": lambda line: line.update(scope="other"),
    "another unit": lambda line: line["body"].update(protects="a person's row"),
    "blocks": lambda line: line["body"].update(blocks=1),
    "a period": lambda line: change_rule(line, period="day"),
    "a witness": lambda line: change_rule(line, witness=[EVE.public_text, 5]),
    "no signers": lambda line: change_rule(line, signers=[]),
    "no proposal": lambda line: line.update(kind="grant"),
    "another kind": lambda line: line.update(kind="resolve"),
    "another person": lambda line: line.update(principal="bob"),
    "an approval": lambda line: line["body"].update(proposal=4),
    "another reason": lambda line: line["body"].update(reason="a gift"),
    "no reason": lambda line: line["body"].pop("reason") and None,
    "more words": lambda line: line.update(more=1),
    "other spelling": lambda line: json.dumps(line),
    "no decision": lambda line: "[]",
}


@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("lie", [*LIES, "truth"])
def test_a_person_signs_nothing_else_than_was_decided(
    tmp_path: Path, lie: str, left_out: bool
) -> None:
    """Whatever the service asks for, of terms that are named and of those that stay; the truth is signed, once it was shown."""
    is_true = lie == "truth"
    service = Lying(LIES.get(lie, lambda line: None))
    service.ledger = Ledger(tmp_path / "l.sqlite", anchor=tmp_path / "a", create=True)
    people: Any = {
        "signers": [ANN.public_text, BOB.public_text],
        "certified_by": [BOB.public_text],
    }
    service.ledger.grant("s", 1, 0, table=None, principal="x", signer=ANN, filter="basic", **people)
    said = "others wrote" if is_true else "something else than was decided here"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception, match=said):
        patch.setattr("dpflow.client.owner.MAX_SIGNED", 2)
        terms: Any = {} if left_out else people | {"filter": "basic"}
        terms |= {"approvals": 2, "signer": ANN, "reason": "the trial"}
        shown: list[str] = []
        remote = RemoteLedger(service, lambda lines: shown.extend(lines) or True)  # type: ignore[arg-type,func-returns-value]
        remote.grant("s", "2", "0", table=None, **terms)
    assert any(decision["signature"] for decision in service.sent) == is_true
    if is_true:
        keys = f"signer stays: {ANN.public_text}", f"certifier stays: {BOB.public_text}"
        assert all(f"  {line}" in shown for line in (*keys, "epsilon: 1 -> 2"))


def make_lying(folder: Path) -> Any:
    """A service whose scope ``s`` ann and bob grant, with a proposal of ann's that grants epsilon 10^6 to ann and eve."""
    service: Any = Lying(lambda line: None)
    service.ledger = Ledger(folder / "l.sqlite", anchor=folder / "a", create=True)
    terms: dict[str, Any] = {"table": None, "principal": "x", "signer": ANN}
    people = [ANN.public_text, BOB.public_text]
    service.ledger.grant("s", 1, 0, filter="basic", signers=people, **terms)
    terms |= {"approvals": 2, "confirm_large": True, "signers": [ANN.public_text, EVE.public_text]}
    service.ledger.grant("s", 10**6, 0, **terms)
    return service


@pytest.mark.parametrize("changes", ["terms", "digest", "reason", "proposer", "nothing"])
def test_an_approver_signs_what_was_shown(
    tmp_path: Path, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service lists one proposal and has another signed; or lists another when it is approved than before."""
    monkeypatch.setattr("dpflow.client.owner.MAX_SIGNED", 2)
    service = make_lying(tmp_path)
    (truth,) = RemoteLedger(service).proposals()

    def show(proposal: dict[str, Any]) -> dict[str, Any]:
        if changes in ("reason", "proposer"):
            return proposal | {"reason": "a gift"} if changes == "reason" else proposal | {"principal": "eve"}  # fmt: skip
        rule = json.dumps(proposal["terms"]).replace("1000000", "2")
        return proposal | {"terms": json.loads(rule.replace(EVE.public_text, BOB.public_text))}

    if changes != "nothing":
        service.show = show
    (seen,) = RemoteLedger(service).proposals()
    assert (seen.digest == truth.digest) == (changes == "nothing")
    if changes != "terms":
        service.__dict__.pop("show", None)
    with pytest.raises(InvalidInput, match="--terms DIGEST"):
        RemoteLedger(service).approve("s", seen.seq, signer=BOB, reason="")
    with pytest.raises(InvalidInput, match="no grant with these terms"):
        RemoteLedger(service).approve("s", seen.seq, digest="", signer=BOB, reason="")
    said = {"terms": "something else than was", "nothing": "others wrote"}
    with pytest.raises(DpflowError, match=said.get(changes, "no grant with these terms")):
        RemoteLedger(service).approve("s", seen.seq, digest=seen.digest, signer=BOB, reason="")
    assert any(decision["signature"] for decision in service.sent) == (changes == "nothing")


def test_a_person_agrees_to_all_that_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, which obeys nothing of what the service says; who says no signs nothing."""
    monkeypatch.setattr("dpflow.client.owner.MAX_SIGNED", 2)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    service = make_lying(tmp_path)
    service.show = lambda proposal: proposal | {"reason": "\x1b[2J\u202e"}
    for agrees, error in ((False, click.exceptions.Abort), (True, ServiceUnavailable)):
        monkeypatch.setattr("typer.confirm", confirm := Confirm(agrees))
        with pytest.raises(error):
            RemoteLedger(service, confirm_decision).approve("s", 2, signer=BOB, reason="")
        assert confirm.asked and any(one["signature"] for one in service.sent) == agrees
        shown = capsys.readouterr().err
        assert "\x1b" not in shown and "\u202e" not in shown
        for line in ("epsilon: 1 -> 1000000", f"signer added: {EVE.public_text}", "filter stays"):
            assert line in shown


class Terminal(io.StringIO):
    """Where a person types."""

    def isatty(self) -> bool:
        return True


class Confirm:
    """A person who agrees, or does not."""

    def __init__(self, agrees: bool) -> None:
        self._agrees, self.asked = agrees, False

    def __call__(self, _: str, *, abort: bool, err: bool) -> bool:
        self.asked = True
        if not self._agrees and abort:
            raise click.exceptions.Abort
        return True


@pytest.mark.parametrize("decision", ["close", "retry"])
@pytest.mark.parametrize(
    "lie",
    [{"scope": "other"}, {"becomes": "settled"}, {"becomes": "closed"}, {"fenced_below": 0}, {}],
)
def test_an_end_is_of_the_release_that_was_named(
    tmp_path: Path, lie: dict[str, Any], decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its scope, and as the decision says."""
    monkeypatch.setattr("dpflow.client.owner.MAX_SIGNED", 2)
    service = make_lying(tmp_path)
    orphan = service.ledger.reserve(
        ReleaseKey("s", "", "", "r", "d"), event=Pure(Fraction(1, 10)), blocks=(), family="f", slot=None,
        principal="spender", request={"name": "r"},
    ).release_id  # fmt: skip

    def change(line: dict[str, Any]) -> None:
        line.update({name: value for name, value in lie.items() if name == "scope"})
        line["body"].update({name: value for name, value in lie.items() if name != "scope"})

    service._change = change
    with pytest.raises(DpflowError, match="something else than was" if lie else "others wrote"):
        RemoteLedger(service).resolve(orphan, reason="lost", decision=decision, signer=ANN)
    assert any(one["signature"] for one in service.sent) == (not lie)


def test_the_services_own_key_decides_nothing(tmp_path: Path) -> None:
    """One that lies in its anchor, though the scope names it; and it starts with no person's key."""
    world = ServiceWorld(tmp_path)
    own = world.ledger.signer
    people: Any = {"signers": [own.public_text], "signer": own}
    world.ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner", **people)
    with world.test_client("own") as client:
        decision = {"verb": "grant", "scope": "s", "epsilon": "2", "key": own.public_text}
        refused = client.post("/v1/decisions", json=decision)
        assert refused.status_code == 422 and "no person's" in refused.json()["message"]
        assert client.get("/v1/scopes").json()[0]["scope"] == "s"
    with world.test_client("ann") as client:
        assert client.get("/v1/scopes").status_code == 403
        assert client.get("/v1/proposals").status_code == 403
    environment = os.environ | {"DPFLOW_SIGNING_KEY": str(tmp_path / "key")}
    words = (str(tmp_path), "serve", str(world.file))
    code, (_, said) = ForkedProgram(COMMAND, *words, environment=environment).wait()
    assert code == 1 and "unset DPFLOW_SIGNING_KEY" in said


def test_decisions_on_postgresql(tmp_path: Path, postgres: Callable[[], str]) -> None:
    """By a service whose login owns the ledger: its triggers take what was signed."""
    world = ServiceWorld(tmp_path, postgres().replace(":@", "@"))
    people: Any = {"signers": [ANN.public_text, BOB.public_text], "signer": ANN}
    world.ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner", **people)
    with world.test_client("own") as client:
        send = lambda decision: client.post("/v1/decisions", json=decision)  # noqa: E731
        seq = send(sign(send, ANN, decide(ANN, "0.5", scope="s/t", approvals=2))).json()["proposal"]
        approval = {"verb": "approve", "scope": "s/t", "proposal": seq, "key": BOB.public_text}
        assert send(sign(send, BOB, approval)).status_code == 200
    assert world.ledger.scope("s/t").approvals == 2 and world.ledger.verify().ok


def test_a_watch_of_keys_sees_one_that_is_opened(tmp_path: Path) -> None:
    """The control of what the other tests rely on."""
    (tmp_path / "key").write_text("x")
    program = WATCHED.format(folder=str(tmp_path)) + f"open({str(tmp_path / 'key')!r}).read()"
    code, (_, said) = ForkedProgram(program).wait()
    assert code == 0 and "Traceback" in said
