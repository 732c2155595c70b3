"""What the database roles of those who spend may do on PostgreSQL: real logins, and the SQL that is
shipped.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpflow.errors import BudgetExceeded, InvalidInput, LedgerUnavailable, WitnessBehind
from dpflow.ledger import BudgetView, Ledger
from dpflow.ledger.history.checkpoint import Signer
from dpflow.ledger.history.state import TABLES
from dpflow.ledger.storage import schema

VISIBLE = ", ".join(TABLES["dpflow_release"].names)
ROLES = ("dpflow_spender", "dpflow_interactive")
ROLES_SQL = resources.files("dpflow.ledger.storage").joinpath("roles.sql").read_text()


def _as(url: str, login: str) -> str:
    """The same database for another login."""
    return url.replace("//postgres", f"//{login}", 1)


@pytest.fixture
def owner(postgres, tmp_path, ask) -> Ledger:
    """A ledger with a settled release, an orphan, an open session and a closed one."""
    ledger = Ledger(postgres(), anchor=tmp_path / "anchor", create=True, owner=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ledger.settle(ask.reserve(ledger, "done"), {"value": 1})
    ask.reserve(ledger, "orphan")
    for name, closed in (("open", False), ("closed", True)):
        held = ledger.open_session(
            ask.key(name), **ask.terms(), state={"threshold": 7}, exclusive=False
        )
        ledger.answer(
            held.session_id,
            query="q",
            expected_version=0,
            state={"threshold": 7},
            answer={"ok": True},
            closed=closed,
        )
    return ledger


@pytest.fixture
def login(owner) -> Callable[[str], str]:
    """Makes a login that is a member of a role, and returns the ledger's URL for it."""
    url = owner._database._url.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for _ in range(2):  # running it again is harmless
            connection.execute(ROLES_SQL)
        database = connection.info.dbname
        for role in (*ROLES, "dpflow_reader"):
            connection.execute(f"CREATE ROLE {database}_{role} LOGIN IN ROLE {role}")
    return lambda role: _as(url, f"{database}_{role}")


def everything(ledger: Ledger) -> list[object]:
    """All rows of all tables, as the owner sees them."""
    with ledger._database.begin_reading() as transaction:
        return [
            transaction.text(f"SELECT * FROM {table.name} ORDER BY 1, 2")
            for table in schema.metadata.sorted_tables
        ]


@pytest.fixture
def nobody_says_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPFLOW_LEDGER_OWNER")


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "operate-the-ledger.md"


def list_deeds(ledger: Ledger, ask: Any) -> dict[str, list[Callable[[], object]]]:
    """What each row of the page's table names, at the ledger of `owner`."""
    scope, export = "flights", io.StringIO()
    keys = {name: ask.key(name) for name in ("done", "new", "orphan", "gate")}

    def advance() -> None:
        held = ledger.open_session(keys["gate"], **ask.terms(), state={"v": 0}, exclusive=False)
        ledger.answer(held.session_id, query="q", expected_version=0, state={}, answer={})

    def find_orphan() -> str:
        (orphan,) = [one for one in ledger.releases() if one.state == "reserved"]
        return orphan.release_id

    return {
        "read grants, sums, charges and the history": [
            lambda: ledger.history(),
            lambda: ledger.remaining(scope),
            lambda: ledger.odometer(scope),
            lambda: ledger.releases(),
        ],
        "read results, even encrypted": [lambda: ledger.find(keys["done"])],
        "verify, export, checkpoint, statement": [
            lambda: ledger.verify(),
            lambda: ledger.export(export),
            lambda: ledger.checkpoint(),
            lambda: ledger.statement(scope),
        ],
        "release, settle, retry, check": [
            lambda: ledger.settle(ask.reserve(ledger, "new"), {"value": 1}),
            lambda: ask.reserve(ledger, "orphan"),
            lambda: ledger.check(scope, [ask.terms()["event"]], []),
        ],
        "open sessions, read and advance their secret state": [advance],
        "grant, quota, approve, resolve, import": [
            lambda: ledger.grant(scope, 9, 0, table=None, filter="basic", principal="me"),
            lambda: ledger.quota(f"{scope}/me", 1, 0, principal="me"),
            lambda: ledger.resolve(find_orphan(), reason="r", principal="me"),
        ],
    }


@pytest.mark.parametrize("role", ["owner", *ROLES, "dpflow_reader"])
def test_the_page_says_what_each_role_may(owner, login, tmp_path, ask, role):
    """Each cell of its table: what a role may works with the anchor, and the rest is refused in words."""
    ledger = owner
    if role != "owner":
        ledger = Ledger(login(role), anchor=tmp_path / "anchor")
    # The page's table: what is done, and for each role's name its cell.
    text = PAGE.read_text().split("## Who may do what on PostgreSQL")[1].split("\n\n|")[1]
    lines = [line.strip("| \n").split(" | ") for line in text.split("\n\n")[0].splitlines()]
    names = [name.strip("`") for name in lines[0]]
    rights = {line[0]: dict(zip(names, line[1:], strict=True)) for line in lines[2:]}
    deeds = list_deeds(ledger, ask)
    assert [*rights][:-1] == [row for row in rights if row in deeds]
    found = {}
    for row, some in deeds.items():
        done = []
        for deed in some:
            try:
                deed()
                done.append("yes")
            except InvalidInput as error:
                assert "database role" in str(error), (row, error)
                done.append("no")
        found[row] = done[0] if len({*done}) == 1 else done
    stated = {row: rights[row][role] for row in deeds}
    for row, cell in stated.items():
        # Of the rest a reader has the page (`test_a_reader_shows_the_page_and_nothing_else`).
        partly = ["yes", "no", "no", "no"] if cell == "by page and `history`" else cell
        assert found[row] == partly, (row, found[row])


POWERS = {
    "is a superuser": "ALTER ROLE {0} SUPERUSER",
    "owns dpflow_slot": "ALTER TABLE dpflow_slot OWNER TO {0}",
    # Either may drop the tables, and a trigger acts with the rights of whoever writes.
    "owns the schema or database of dpflow_witness": "ALTER SCHEMA public OWNER TO {0}",
    "owns the schema or database of dpflow_witness ": "ALTER DATABASE {1} OWNER TO {0}",
    "can put triggers on dpflow_account": "GRANT TRIGGER ON dpflow_account TO {0}",
    "can delete rows of dpflow_node": "GRANT DELETE ON dpflow_node TO {0}",
    "can delete rows of dpflow_data": "GRANT TRUNCATE ON dpflow_data TO PUBLIC",
    "can write dpflow_entry": "GRANT UPDATE (body) ON dpflow_entry TO {0}",
    "can write dpflow_scope": "GRANT INSERT ON dpflow_scope TO {0}",
    # Whoever may take a role has what it has.
    "can write dpflow_scope ": "CREATE ROLE {0}_b; GRANT UPDATE ON dpflow_scope TO {0}_b; "
    "ALTER ROLE {0} NOINHERIT; GRANT {0}_b TO {0}",
}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.usefixtures("nobody_says_owner")
def test_who_can_do_more_than_spend_says_so(postgres, tmp_path, ask, power):
    """A task that spent with the login of an owner could write its own grant, and nobody was told."""
    url = postgres()
    owner = Ledger(url, anchor=tmp_path / "anchor", create=True, owner=True)
    owner.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(ROLES_SQL)
        name = f"{connection.info.dbname}_more"
        connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE dpflow_interactive")
        ask.reserve(Ledger(_as(url, name), anchor=tmp_path / "anchor"), "spends")
        connection.execute(POWERS[power].format(name, connection.info.dbname))
    before = everything(owner)
    ledger = Ledger(_as(url, name), anchor=tmp_path / "anchor")
    for charge in (
        lambda: ask.reserve(ledger, "a"),
        lambda: ledger.open_session(ask.key("b"), **ask.terms(), state={}, exclusive=False),
    ):
        with pytest.raises(InvalidInput, match=f"nothing was charged.* it {power.strip()}") as told:
            charge()
        assert not told.value.retryable
    assert everything(owner) == before
    said = Ledger(_as(url, name), anchor=tmp_path / "anchor", owner=True)
    if power != "can write dpflow_scope ":  # without inheritance it cannot even read
        ask.reserve(said, "a")
        assert owner.verify().ok


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.usefixtures("nobody_says_owner")
def test_those_who_spend_release(owner, login, tmp_path: Path, ask, role):
    """Charging, settling, retrying, joining a slot, replaying and reading what is public: all of it
    works for both roles.
    """
    ledger = Ledger(login(role), anchor=tmp_path / "anchor")
    ledger.settle(ask.reserve(ledger, "a", slot="run/0"), {"value": 1})
    assert ask.reserve(ledger, "done", slot="run/1").result == {"value": 1}
    assert ask.reserve(ledger, "orphan").attempt == 2
    ledger.record("contract", {"ok": True}, principal="airflow", scope="flights")
    assert ask.spent(ledger) == {"": "0.5"} and ledger.check("flights", [], []) is None
    with pytest.raises(BudgetExceeded):
        ask.reserve(ledger, "too much", "9")
    assert ledger.history(limit=1)[0].kind == "refuse"
    assert (
        len(ledger.releases()) == 5
        and len(ledger.history("flights")) >= 8
        and ledger.odometer("flights")
    )
    assert owner.verify().ok


@pytest.mark.usefixtures("nobody_says_owner")
@pytest.mark.parametrize("role", ROLES)
def test_those_who_spend_bring_checkpoints(owner, login, tmp_path, ask, role, monkeypatch):
    """They count charges and write a witness's checkpoint into the history; by hand they lower no count."""
    nightly, outside = Signer.create("nightly"), tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(outside))
    terms = {"filter": "basic", "witness": nightly.public_text, "witness_every": 1}
    owner.grant("watched", 1, 0, table=None, principal="owner", **terms)
    ledger = Ledger(login(role), anchor=tmp_path / "anchor")
    ask.reserve(ledger, "a", scope="watched")
    with psycopg.connect(login(role).replace("+psycopg", ""), autocommit=True) as connection:
        for column in ("size", "charges"):
            with pytest.raises(psycopg.errors.RaiseException, match="stays so"):
                connection.execute(f"UPDATE dpflow_witness SET {column} = 0")
    with pytest.raises(WitnessBehind):
        ask.reserve(ledger, "b", scope="watched")
    owner.witness(outside, nightly)
    ask.reserve(ledger, "b", scope="watched")
    assert owner.verify().ok


@pytest.mark.usefixtures("nobody_says_owner")
def test_those_who_hold_sessions_answer(owner, login, tmp_path, ask):
    """Opening, resuming, answering one by one or in a batch, and closing work for the interactive
    role.
    """
    ledger = Ledger(login("dpflow_interactive"), anchor=tmp_path / "anchor")
    for _ in range(2):
        held = ledger.open_session(ask.key("gate"), **ask.terms(), state={"v": 0}, exclusive=True)
    ledger.answer(
        held.session_id, query="q", expected_version=0, state={"v": 1}, answer={"verdict": "yes"}
    )
    assert ledger.answer_batch(
        held.session_id, {"r": 1, "s": 2}, expected_version=1, state={"v": 2}, closed=True
    )
    assert ledger.batches(held.session_id) == [{"r": 1, "s": 2}]
    ledger.tell_verdict(held.session_id, "q")
    assert owner.verify().ok


def test_a_spender_sees_no_secret(owner, login, tmp_path, ask):
    """Whoever only releases can neither read the state of a session nor open one, by hand or
    through the ledger.
    """
    ledger = Ledger(login("dpflow_spender"), anchor=tmp_path / "anchor")
    (open_one,) = [r for r in owner.releases() if r.state == "open"]
    with pytest.raises(InvalidInput, match="database role"):
        ledger.session(open_one.release_id)
    with pytest.raises(InvalidInput, match="database role"):
        ledger.open_session(ask.key("mine"), **ask.terms(), state={}, exclusive=False)
    with psycopg.connect(login("dpflow_spender").replace("+psycopg", "")) as connection:
        for statement in (
            "SELECT secret FROM dpflow_release",
            "SELECT * FROM dpflow_release",
            "TABLE dpflow_answer",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)
    assert ask.spent(owner) == {"": "0.4"} and owner.verify().ok


def test_a_login_waits_for_its_roles(owner, login, tmp_path, ask):
    """An upgrade makes the tables again, so for a while nobody but the owner may read them. A task that
    was refused for good then would lose its run.
    """
    url = owner._database._url.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dpflow_spender, dpflow_interactive"
        )
        with pytest.raises(LedgerUnavailable, match=r"this step recorded nothing.*run roles\.sql"):
            Ledger(login("dpflow_spender"), anchor=tmp_path / "anchor")
        connection.execute(ROLES_SQL)
    ledger = Ledger(login("dpflow_spender"), anchor=tmp_path / "anchor")
    assert ask.reserve(ledger, "waits").attempt == 1 and LedgerUnavailable.retryable


@pytest.mark.parametrize("role", ROLES)
def test_nobody_but_the_owner_decides(owner, login, tmp_path, role):
    """Grants, quotas, decisions on orphans, imports and rotations by a role are refused, and the
    message says why.
    """
    ledger, before = Ledger(login(role), anchor=tmp_path / "anchor"), everything(owner)
    (orphan,) = [r for r in owner.releases() if r.state == "reserved"]
    stream = io.StringIO()
    owner.export(stream)
    decisions = (
        lambda: ledger.grant("flights", 9, 0, table=None, filter="basic", principal="me"),
        lambda: ledger.grant("mine", 9, 0, table=None, filter="basic", principal="me"),
        lambda: ledger.register_suite("digest", ["place"], None, table="visits", principal="me"),
        lambda: ledger.quota("flights/me", 1, 0, principal="me"),
        lambda: ledger.resolve(orphan.release_id, reason="r", principal="me"),
        lambda: ledger.resolve(orphan.release_id, reason="r", principal="me", decision="retry"),
        lambda: ledger.rotate(principal="me"),
    )
    wrap = (tmp_path / "anchor" / "wrap").read_bytes()
    for decision in decisions:
        with pytest.raises(InvalidInput, match="database role"):
            decision()
    assert everything(owner) == before and owner.verify().ok
    assert (tmp_path / "anchor" / "wrap").read_bytes() == wrap


BY_HAND = (
    "UPDATE dpflow_scope SET protects = ''",
    "INSERT INTO dpflow_scope SELECT 'mine', filter, protects, blocks FROM dpflow_scope",
    "UPDATE dpflow_meta SET value = ''",
    "UPDATE dpflow_entry SET kind = ''",
    "DELETE FROM dpflow_entry",
    "TRUNCATE dpflow_entry",
    *(
        f"INSERT INTO dpflow_entry SELECT seq + 100, at, '{kind}', scope, release_id, principal, body, previous, hash, seal "
        "FROM dpflow_entry"
        for kind in ("grant", "resolve", "import")
    ),
    "DELETE FROM dpflow_account",
    "UPDATE dpflow_account SET epsilon = epsilon - 1",
    "UPDATE dpflow_account SET block = 'elsewhere'",
    "UPDATE dpflow_account SET scope = 'elsewhere'",
    "DELETE FROM dpflow_release",
    "UPDATE dpflow_release SET digest = ''",
    "UPDATE dpflow_release SET scope = 'elsewhere'",
    "UPDATE dpflow_release SET result = '{}' WHERE state = 'settled'",
    "UPDATE dpflow_release SET state = 'reserved' WHERE state = 'settled'",
    "UPDATE dpflow_release SET state = 'fenced' WHERE state = 'reserved'",
    "UPDATE dpflow_release SET state = 'open' WHERE state = 'reserved'",
    "UPDATE dpflow_release SET state = 'open' WHERE state = 'closed'",
    "UPDATE dpflow_release SET attempts = 0 WHERE state = 'reserved'",
    "UPDATE dpflow_release SET fenced_below = 9",
    "UPDATE dpflow_release SET version = version - 1 WHERE state = 'open'",
    "UPDATE dpflow_answer SET answer = '{}'",
    "DELETE FROM dpflow_answer",
    "UPDATE dpflow_slot SET run = ''",
    "DELETE FROM dpflow_slot",
    "DELETE FROM dpflow_data",
    "UPDATE dpflow_data SET first = 'another'",
    "DROP TABLE dpflow_entry",
    "ALTER TABLE dpflow_entry DISABLE TRIGGER ALL",
    "ALTER TABLE dpflow_release DISABLE ROW LEVEL SECURITY",
    "DROP TRIGGER dpflow_entry_append_only ON dpflow_entry",
    "CREATE OR REPLACE FUNCTION dpflow_only_forward() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "SET session_replication_role = replica",
    "SET ROLE postgres",
)


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_taken_back_by_hand(owner, login, role):
    """With the role's own connection nothing that is spent, settled, answered, decided or written
    is changed.
    """
    before = everything(owner)
    with psycopg.connect(login(role).replace("+psycopg", ""), autocommit=True) as connection:
        for statement in BY_HAND:
            try:
                changed = connection.execute(statement).rowcount
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException):
                continue
            assert changed == 0, statement
    assert everything(owner) == before and owner.verify().ok


def test_an_open_gate_and_a_cut_stay(owner, login, ask):
    """Whoever holds sessions cannot open the data of a gate by hand, nor partition it again; the ledger
    itself still goes on.
    """
    owner.grant("gated", 1, 0, table=None, filter="basic", principal="owner")
    terms = ask.terms() | {"state": {}, "exclusive": True, "partition": "9 groups"}
    held = owner.open_session(ask.key("gate", scope="gated"), **terms)
    with psycopg.connect(
        login("dpflow_interactive").replace("+psycopg", ""), autocommit=True
    ) as connection:
        for change in (
            "gate = NULL",
            "gate = 'another'",
            "partition = NULL",
            "partition = '1 group'",
        ):
            with pytest.raises(psycopg.errors.RaiseException):
                connection.execute(f"UPDATE dpflow_data SET {change} WHERE gate IS NOT NULL")
        connection.execute(
            "CREATE TEMP TABLE dpflow_release (id text, state text)"
        )  # what it would read in its place
        with pytest.raises(psycopg.errors.RaiseException):
            connection.execute("UPDATE dpflow_data SET gate = NULL WHERE gate IS NOT NULL")
    owner.answer(held.session_id, query="q", expected_version=0, state={}, answer={}, closed=True)
    owner.open_session(ask.key("next", scope="gated"), **terms)
    assert owner.verify().ok


@pytest.mark.parametrize("values", ["'gate', NULL", "NULL, '9 groups'"])
def test_a_spender_closes_and_cuts_no_data(owner, login, ask, values):
    """One row written by hand would shut a dataset, or divide it permanently."""
    with psycopg.connect(
        login("dpflow_spender").replace("+psycopg", ""), autocommit=True
    ) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"INSERT INTO dpflow_data VALUES ('table x', 'somebody', {values})")
    assert owner.verify().ok


def test_a_spender_closes_no_session(owner, login):
    """Sessions belong to those who hold them."""
    with psycopg.connect(
        login("dpflow_spender").replace("+psycopg", ""), autocommit=True
    ) as connection:
        assert (
            connection.execute(
                "UPDATE dpflow_release SET state = 'closed' WHERE state = 'open'"
            ).rowcount
            == 0
        )
    assert owner.verify().ok


def test_what_a_role_writes_by_hand_is_found(owner, login):
    """A charge without an entry, a result without one, a row that nobody reserved: possible, and
    named by verify.
    """
    with psycopg.connect(
        login("dpflow_spender").replace("+psycopg", ""), autocommit=True
    ) as connection:
        connection.execute("UPDATE dpflow_account SET epsilon = epsilon + 1")
        connection.execute(
            "UPDATE dpflow_release SET result = '{}', state = 'settled' WHERE state = 'reserved'"
        )
        (row,) = connection.execute(f"SELECT {VISIBLE} FROM dpflow_release LIMIT 1").fetchall()
        forged = dict(zip(VISIBLE.split(", "), row)) | {
            "id": "free", "run_identity": "free", "state": "reserved", "result_digest": None, "snapshot": None,
        }  # fmt: skip
        connection.execute(
            f"INSERT INTO dpflow_release ({VISIBLE}) VALUES ({', '.join(['%s'] * len(forged))})",
            list(forged.values()),
        )
    found = str(owner.verify())
    assert "account flights does not hold" in found and "release free was never charged" in found
    assert "is not the one that was settled" in found


@pytest.mark.parametrize("role", ROLES)
def test_policies_leave_the_indices_in_use(owner, login, role):
    """Row policies that are always true cost no plan: the look-ups of a charge stay index scans."""
    with psycopg.connect(login(role).replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        for query in (
            "SELECT seq FROM dpflow_entry ORDER BY seq DESC LIMIT 1",
            "SELECT id FROM dpflow_release WHERE scope = 's' AND dag_id = '' AND task_id = '' AND run_identity = 'o' "
            "AND digest = 'd' AND ordinal = 0",
            "SELECT gate FROM dpflow_data WHERE name IN ('dataset s', 'table t')",
            "SELECT seq FROM dpflow_entry WHERE kind IN ('suite', 'contract') AND kind = 'suite' ORDER BY seq",
        ):
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {query}").fetchall())
            assert "Index" in plan and "Seq Scan" not in plan, plan


def test_a_reader_shows_the_page_and_nothing_else(owner, tmp_path, ask):
    """The role of the budget page: every question of a page is answered without an anchor; no other
    column can be read, and nothing can be written, not even through a ledger opened with the anchor.
    """
    url = owner._database._url.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(ROLES_SQL)
        name = f"{connection.info.dbname}_page"
        connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE dpflow_reader")
    view = BudgetView(_as(url, name))
    assert view.catch_up().complete and view.faults() == []
    (summary,) = view.scopes()
    assert (summary.scope.scope, summary.blocks) == ("flights", 1)
    assert vars(summary.fullest.spent)["epsilon"] == 4 * 10**11
    assert len(view.releases()) == 4 and len(view.sessions()) == 2 and view.orphans() == []
    assert [one.spent for one in view.budgets("flights")] == [view.budget("flights", "").spent]
    assert view.release(view.releases()[0].release_id) and view.proposals() == []
    assert view.settled_at(view.releases()[-1]) and len(view.history()) == owner.verify().entries
    assert view.releases_of_run("dag", "run") == []
    with pytest.raises(InvalidInput, match="opened to be read"), view._database.begin_writing():
        pass
    with psycopg.connect(_as(url, name).replace("+psycopg", "")) as connection:
        for statement in (
            *("SELECT result FROM dpflow_release", "SELECT secret FROM dpflow_release"),
            *("SELECT snapshot FROM dpflow_release", "TABLE dpflow_answer", "TABLE dpflow_key"),
            *("TABLE dpflow_node", "TABLE dpflow_data", "DELETE FROM dpflow_entry"),
            *("UPDATE dpflow_account SET epsilon = 0", "UPDATE dpflow_scope SET closed = 0"),
            "INSERT INTO dpflow_slot VALUES ('a', 'b', 'c')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)
    with pytest.raises(InvalidInput, match="database role"):
        ask.reserve(Ledger(_as(url, name), anchor=tmp_path / "anchor"), "more")
    # A login that may write could not through the page either.
    connection = BudgetView(url)._database.engine.raw_connection()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.driver_connection.execute("DELETE FROM dpflow_slot")
    connection.close()
