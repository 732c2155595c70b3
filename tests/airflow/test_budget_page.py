"""The budget page inside Airflow: who may look, what they see, and the links that lead there."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow_tasks import context, make_release

if TYPE_CHECKING:
    from budget_books import Books
    from smallworld import Tiny

#: Who may see plugins, and the DAGs that they may read; None for all.
USERS: dict[str, tuple[bool, set[str] | None]] = {
    "daily_analyst": (True, {"daily"}),
    "team_analyst": (True, {"team_a", "models", "a_dag_that_was_removed"}),
    "admin": (True, None),
    "guest": (False, None),
}


class Managers:
    """What the page asks of an auth manager."""

    async def get_user_from_token(self, token: str) -> Any:
        from jwt import InvalidTokenError

        if token not in USERS:
            raise InvalidTokenError("unknown")
        return SimpleNamespace(get_id=lambda: token, name=token)

    def is_authorized_view(self, *, access_view: Any, user: Any) -> bool:
        assert access_view.value == "PLUGINS"
        return USERS[user.name][0]

    def is_authorized_dag(self, *, method: str, user: Any, details: Any, **_: Any) -> bool:
        assert method == "GET"
        return USERS[user.name][1] is None or details.id in (USERS[user.name][1] or ())

    def get_authorized_dag_ids(self, *, user: Any, method: str) -> set[str]:
        assert method == "GET"
        return USERS[user.name][1] or set()


@pytest.fixture
def page(books: Books, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A client of the page as the plugin mounts it, below a state of its own."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    connection = {
        "conn_type": "dpflow_ledger",
        "host": str(books.place),
        "extra": {"anchor": "/nowhere"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    import airflow.api_fastapi.app as app_module
    import airflow.api_fastapi.core_api.security as security
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    import dpflow.airflow.page_access as page_access
    from dpflow.airflow.budget_pages import PageApplication

    managers = Managers()
    for module in (app_module, security, page_access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: managers)
    # Airflow's database, which tests/airflow/test_page_runs.py has.
    monkeypatch.setattr(page_access, "_find_run_id", lambda dag_id, name: name)
    root = FastAPI()
    root.mount("/dpflow", PageApplication())
    return TestClient(root, raise_server_exceptions=False)


def look(page: Any, user: str, address: str = "") -> Any:
    return page.get(f"/dpflow/{address}", headers={"Authorization": f"Bearer {user}"})


def test_nobody_looks_without_a_right(page: Any) -> None:
    """No token, a wrong one, and a user who may not see plugins."""
    for address in ("", "releases", "history", "nowhere"):
        assert page.get(f"/dpflow/{address}").status_code == 401
        assert look(page, "somebody", address).status_code == 403
        refused = look(page, "guest", address)
        assert refused.status_code == 403 and "flights" not in refused.text


def test_a_cookie_is_enough(page: Any) -> None:
    """As a browser asks from within Airflow."""
    page.cookies.set("_token", "admin")
    assert "Privacy budgets" in page.get("/dpflow/").text


def test_two_users_see_their_dags(page: Any, books: Books) -> None:
    """Each the rows of the DAGs that they may read, and budgets; an admin all, with what was released
    outside Airflow.
    """
    sees = {
        user: look(page, user, "releases").text
        for user in ("daily_analyst", "team_analyst", "admin")
    }
    names = ("departures", "team count", "mean age")
    assert {user: [name in text for name in names] for user, text in sees.items()} == {
        "daily_analyst": [True, False, False],
        "team_analyst": [False, True, False],
        "admin": [True, True, True],
    }
    receipt = f"release?id={books.orphan}"
    assert look(page, "daily_analyst", receipt).status_code == 200
    assert look(page, "team_analyst", receipt).status_code == 404
    assert "team_a" not in look(page, "daily_analyst", "history").text
    assert "flights" in look(page, "team_analyst").text
    # A query decides nothing about who asks.
    assert (
        "departures"
        not in look(page, "team_analyst", "releases?dags=daily&user=admin&dag_id=daily").text
    )


def test_a_receipt_leads_to_its_task(page: Any, books: Books) -> None:
    text = look(page, "admin", f"release?id={books.orphan}").text
    assert 'href="/dags/daily/runs/scheduled__2026-01-02/tasks/task_delays"' in text
    # Whoever looks for a gate's verdicts: its task returned them.
    assert 'href="/dags/models"' in look(page, "admin", f"release?id={books.gate}").text


def test_the_reader_comes_first(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with a login that only reads is taken before that of the tasks; it may name
    checkpoints. Without any connection DPFLOW_LEDGER is.
    """
    from dpflow.airflow.page_access import open_view
    from dpflow.errors import InvalidInput

    for name in ("DPFLOW_LEDGER", "AIRFLOW_CONN_DPFLOW_LEDGER", "AIRFLOW_CONN_DPFLOW_READER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "dpflow.airflow.page_access.Connection.get_connection_from_secrets", find_in_environment
    )
    monkeypatch.chdir(books.folder)
    with pytest.raises(InvalidInput, match="make a connection dpflow_reader or dpflow_ledger"):
        open_view()
    monkeypatch.setenv("DPFLOW_LEDGER", str(books.place))
    assert open_view().checkpoints() == []
    connection: dict[str, Any] = {"conn_type": "dpflow_ledger", "host": "nowhere.sqlite"}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    with pytest.raises(InvalidInput, match="there is no ledger"):
        open_view()
    (books.folder / "note.txt").write_text(books.ledger.checkpoint())
    extra = {"checkpoints": str(books.folder / "note.txt"), "keys": books.ledger.signer.public_text}
    monkeypatch.setenv(
        "AIRFLOW_CONN_DPFLOW_READER",
        json.dumps(connection | {"host": str(books.place), "extra": extra}),
    )
    (note,) = open_view().checkpoints()
    assert note.problem == "" and note.signer


def find_in_environment(name: str) -> Any:
    """Connections of the environment alone: tests have no database of Airflow's."""
    import os

    from airflow.models import Connection

    from dpflow.airflow.page_access import AirflowNotFoundException

    text = os.environ.get(f"AIRFLOW_CONN_{name.upper()}")
    if text is None:
        raise AirflowNotFoundException(name)
    return Connection.from_json(text, conn_id=name)


def test_airflow_finds_the_plugin() -> None:
    """By its entry point; each view has a route of its own and a place that Airflow knows."""
    (entry,) = [e for e in entry_points(group="airflow.plugins") if e.name == "dpflow"]
    plugin = entry.load()
    routes = {view["url_route"]: view["destination"] for view in plugin.external_views}
    assert sorted(routes.values()) == ["dag", "dag_run", "nav", "task", "task_instance"]
    assert len(routes) == len(plugin.external_views)
    (app,) = plugin.fastapi_apps
    assert app["url_prefix"] == "/dpflow" and callable(app["app"])


@pytest.mark.parametrize(("base", "path"), [
    ("", ""), ("http://localhost:8080", ""), ("https://example.org/air//flow/", "/air/flow"),
])  # fmt: skip
def test_addresses_stand_below_airflows(
    monkeypatch: pytest.MonkeyPatch, base: str, path: str
) -> None:
    """Behind a proxy's prefix, with a slash too many, and with ids that would lead elsewhere."""
    from dpflow.airflow.links import BudgetPageLink, ReceiptLink, make_page_path, make_task_path

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    assert make_page_path("") == f"{path}/dpflow/"
    hostile = "manual__2026/../../x?y=1&dag_id=other#z'\"<é"
    assert make_task_path("d", hostile, "t").count("/") == path.count("/") + 6
    key = SimpleNamespace(dag_id="d", run_id=hostile, task_id="t")
    for link in (BudgetPageLink(), ReceiptLink()):
        released = SimpleNamespace(_release_notes=("a release",))
        address = urlsplit(link.get_link(released, ti_key=key))
        assert (address.path, address.fragment) == (f"{path}/dpflow/releases", "")
        assert parse_qs(address.query) == {"dag_id": ["d"], "run_id": [hostile], "task_id": ["t"]}
    scope = BudgetPageLink().get_link(SimpleNamespace(scope="a/b&c"), ti_key=key)
    assert scope == f"{path}/dpflow/scope?name=a%2Fb%26c"


@pytest.mark.usefixtures("airflow_home")
def test_a_task_links_to_its_receipt(tiny: Tiny) -> None:
    """One release: its receipt. Several: their list. None: all scopes. A report: its scope."""
    from dpflow.airflow import BudgetReportOperator, ReleaseOperator
    from dpflow.airflow.provider import get_provider_info

    key = SimpleNamespace(dag_id="d", run_id="r", task_id="t")
    operator = ReleaseOperator(task_id="t", release=make_release())
    receipt = operator.execute(context(tiny))
    links = {
        link.name: link.get_link(operator, ti_key=key) for link in operator.operator_extra_links
    }
    assert links["Privacy receipt"].endswith(f"/dpflow/release?id={receipt['release_id']}")
    assert links["Privacy budget"].endswith("/dpflow/releases?dag_id=d&run_id=r&task_id=t")
    # A try that failed before it released: no page of nothing.
    other = ReleaseOperator(task_id="t", release=make_release())
    empty = [link.get_link(other, ti_key=key) for link in other.operator_extra_links]
    assert empty == ["", "/dpflow/"]
    report = BudgetReportOperator(task_id="t", scope="visits")
    (link,) = report.operator_extra_links
    assert link.get_link(report, ti_key=key).endswith("/dpflow/scope?name=visits")
    # Airflow takes links of a serialized DAG from those that a provider or plugin names.
    named = get_provider_info()["extra-links"]
    classes = {type(link) for op in (operator, report) for link in op.operator_extra_links}
    assert {f"{c.__module__}.{c.__qualname__}" for c in classes} == {*named}
