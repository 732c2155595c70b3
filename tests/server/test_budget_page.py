"""The budget page of a service: its login, its cookie, and who may read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from service_world import QUERY, TOKENS, ServiceWorld, headers_of, settle
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    world = ServiceWorld(tmp_path_factory.mktemp("budget_page"))
    with world.test_client("ann") as ann:
        body = {"query": QUERY, "options": {"epsilon": "0.5"}}
        assert settle(ann, "sql", body).status_code == 200
    return world


@pytest.fixture
def browser(world: ServiceWorld) -> Iterator[Any]:
    """On this machine, so that its cookie needs no TLS; it has no header of its own."""
    with TestClient(world.app(), base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


def log_in(browser: Any, token: str, **headers: str) -> Any:
    return browser.post("/budgets/login", data={"token": token}, headers=headers)


def test_an_auditor_logs_in_reads_and_logs_out(browser: Any, world: ServiceWorld) -> None:
    for place in ("/budgets/", "/budgets/releases", "/budgets/scope?name=visits"):
        answer = browser.get(place)
        assert (answer.status_code, answer.headers["location"]) == (303, "/budgets/login")
        assert "visits" not in answer.text
    assert '<input type="password"' in browser.get("/budgets/login").text
    answer = log_in(browser, TOKENS["aud"][0])
    assert (answer.status_code, answer.headers["location"]) == (303, "/budgets/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/budgets" in cookie
    overview = browser.get("/budgets/")
    assert overview.status_code == 200 and "visits/ann" in overview.text
    assert overview.headers["cache-control"] == "no-store"
    assert TOKENS["aud"][0] not in overview.text
    for page in ("releases", "alarms", "scope?name=visits/ann", "statement?name=visits/ann"):
        assert browser.get(f"/budgets/{page}").status_code == 200, page
    assert browser.get("/budgets/nothing").status_code == 404
    browser.post("/budgets/logout")
    assert browser.get("/budgets/").status_code == 303


def test_nobody_else_reads_it(browser: Any) -> None:
    """Who asks sees its own scope by /v1 alone; a wrong token says nothing of tokens."""
    for token, status, why in (
        (TOKENS["ann"][0], 403, "roles auditor and owner"),
        ("x" * 43, 401, "valid bearer token"),
        ("two words", 401, "copy it whole"),
        ("a;b", 401, "valid bearer token"),
        ("", 401, "valid bearer token"),
    ):
        answer = log_in(browser, token)
        assert answer.status_code == status and why in answer.text
        assert "set-cookie" not in answer.headers and "visits" not in answer.text
    assert browser.get("/budgets/", headers=headers_of("ann")).status_code == 403
    assert browser.get("/budgets/", headers=headers_of("aud")).status_code == 200
    elsewhere = log_in(browser, TOKENS["aud"][0], **{"Sec-Fetch-Site": "cross-site"})
    assert elsewhere.status_code == 403 and "set-cookie" not in elsewhere.headers


def test_the_cookie_opens_no_other_door(browser: Any) -> None:
    """Browsers send it by themselves, so nothing but the page takes it."""
    log_in(browser, TOKENS["aud"][0])
    browser.cookies.set("dpflow_budgets", TOKENS["aud"][0], path="/")
    assert browser.get("/v1/history").status_code == 401


def test_a_cookie_travels_by_tls_beyond_this_machine(world: ServiceWorld) -> None:
    with TestClient(world.app(), base_url="http://dp.example.org", follow_redirects=False) as far:
        assert "secure" in log_in(far, TOKENS["aud"][0]).headers["set-cookie"].lower()


def test_a_token_that_is_taken_out_reads_no_more(browser: Any, world: ServiceWorld) -> None:
    log_in(browser, TOKENS["aud"][0])
    assert browser.get("/budgets/").status_code == 200
    text = world.file.read_text()
    service = yaml.safe_load(text)
    service["principals"]["aud"]["token_sha256"] = "0" * 64
    world.file.write_text(yaml.safe_dump(service))
    assert browser.get("/budgets/").status_code == 303
    world.file.write_text(text)
