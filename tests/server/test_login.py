"""Login to the budget page by an issuer's own page: what ends it, and what a forged end opens."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from service_world import TRUST, ServiceWorld
from starlette.testclient import TestClient

from dpflow.errors import InvalidDeclaration
from dpflow.server import budget_page
from dpflow.server.service import load_service

KEY, STRANGE = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
HERE, CLIENT, SECRET = "http://127.0.0.1/budgets/callback", "dpflow page", "a secret: of two"
BROWSER: Any = {"base_url": "http://127.0.0.1", "follow_redirects": False}


class Issuer(HTTPServer):
    """An OpenID issuer of this process, which lets everybody in as the auditor at once.

    Attributes:
        claims: what its ID tokens say instead; None leaves a claim out.
        key: which signs them.
        answer: what its token endpoint gives instead of a token: status, headers and body.
        is_strict: whether it looks at PKCE.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.codes: dict[str, dict[str, str]] = {}
        self.reset()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def reset(self) -> None:
        self.claims: dict[str, Any] = {}
        self.key, self.answer, self.is_strict = KEY, None, True
        self.tokens: list[str] = []

    def sign(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        body = {"iss": self.url, "aud": CLIENT, "sub": "7", "iat": now, "exp": now + 60}
        body |= {"nonce": asked["nonce"], "email": "aud@example.org", "email_verified": True}
        body = {name: value for name, value in (body | self.claims).items() if value is not None}
        token = jwt.encode(body, self.key, "ES256", {"kid": "k"})
        self.tokens.append(token)
        return token


class Handler(BaseHTTPRequestHandler):
    server: Issuer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if place.path == "/keys":
            fields = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
            return self.reply(200, {"keys": [fields | {"kid": "k"}]})
        asked = dict(parse_qsl(place.query, strict_parsing=True))
        known = {"client_id": CLIENT, "redirect_uri": HERE, "response_type": "code"}
        known |= {"code_challenge_method": "S256", "scope": "openid email"}
        if place.path != "/authorize" or any(asked.get(k) != v for k, v in known.items()):
            return self.reply(400, {})
        code = secrets.token_urlsafe(16)
        self.server.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.server.url}
        return self.reply(303, {}, Location=f"{HERE}?{urlencode(back)}")

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        if self.server.answer is not None:
            return self.reply(*self.server.answer)
        pair = base64.b64encode(b"dpflow%20page:a%20secret%3A%20of%20two").decode()
        asked = self.server.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_right = asked is not None and (
            self.headers["Authorization"] == f"Basic {pair}"
            and form["redirect_uri"] == asked["redirect_uri"]
            and form["grant_type"] == "authorization_code"
            and (not self.server.is_strict or challenge == asked["code_challenge"])
        )
        if not is_right:
            return self.reply(400, {"error": "invalid_grant"})
        assert asked is not None
        return self.reply(200, {"id_token": self.server.sign(asked), "token_type": "Bearer"})

    def reply(self, status: int, body: Any, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.shutdown()
    issuer.server_close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> ServiceWorld:
    world = ServiceWorld(tmp_path_factory.mktemp("login"))
    service = yaml.safe_load(world.file.read_text())
    login = {
        "authorize": f"{issuer.url}/authorize", "token": f"{issuer.url}/token", "callback": HERE,
        "client_id": CLIENT, "client_secret": "secret.txt",
    }  # fmt: skip
    (world.folder / "secret.txt").write_text(f"{SECRET}\n")
    service["issuers"] = {
        "corp": {"issuer": issuer.url, "audience": "dpflow", "keys": f"{issuer.url}/keys"},
        "other": {"issuer": f"{issuer.url}/", "audience": "dpflow", "keys": f"{issuer.url}/keys"},
        "header": {"issuer": f"{issuer.url}/h", "audience": "dpflow", "keys": f"{issuer.url}/keys"},
    }
    for issuer_terms in service["issuers"].values():
        issuer_terms["login"] = login
    for name in ("aud", "ann"):
        claim = {"issuer": "corp", "claim": "email", "value": f"{name}@example.org"}
        service["principals"][name]["openid"] = claim
    world.file.write_text(yaml.safe_dump(service))
    return world


@pytest.fixture(scope="module")
def apps(world: ServiceWorld) -> list[Any]:
    """Two processes of one service, as far as they share nothing but the ledger and the file."""
    return [world.app(), world.app()]


@pytest.fixture
def browser(apps: list[Any], issuer: Issuer) -> Iterator[Any]:
    issuer.reset()
    with TestClient(apps[0], **BROWSER) as client:
        yield client


def go(browser: Any, issuer: str = "corp") -> dict[str, str]:
    """Begin a login; what the issuer sends the browser back with."""
    begun = browser.get(f"/budgets/login/{issuer}")
    assert begun.status_code == 303
    back = httpx.get(begun.headers["location"], verify=TRUST)
    assert back.status_code == 303 and back.headers["location"].startswith(f"{HERE}?")
    return dict(parse_qsl(urlsplit(back.headers["location"]).query))


def come_back(browser: Any, query: Any) -> Any:
    text = query if isinstance(query, str) else urlencode(query)
    return browser.get(f"/budgets/callback?{text}")


def require_closed(browser: Any, answer: Any) -> None:
    """Nothing was opened, and nothing said that the address brought."""
    assert answer.status_code in (401, 403, 503), answer.status_code
    assert "location" not in answer.headers and "dpflow_budgets" not in str(answer.headers)
    assert "visits" not in answer.text and "evil" not in answer.text
    assert browser.get("/budgets/").status_code == 303


def test_an_auditor_logs_in_at_the_issuer(
    browser: Any, apps: list[Any], issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """Begun at one process and ended at another; it opens the page for an hour, and nothing else."""
    form = browser.get("/budgets/login").text
    assert 'href="/budgets/login/corp"' in form
    query = go(browser)
    cookie = browser.cookies["dpflow_login"]
    with TestClient(apps[1], **BROWSER) as other:
        other.cookies.set("dpflow_login", cookie, path="/budgets")
        answer = come_back(other, query)
        assert (answer.status_code, answer.headers["location"]) == (303, "/budgets/")
        session, begun = answer.headers.get_list("set-cookie")
        for part in ("httponly", "samesite=lax", "path=/budgets", "max-age=3600"):
            assert part in session.lower()
        assert "max-age=0" in begun.lower()
        assert other.get("/budgets/").status_code == 200
        assert "visits/ann" in other.get("/budgets/").text
        cookie = other.cookies["dpflow_budgets"]
    with TestClient(apps[1], **BROWSER) as other:
        for name in ("dpflow_budgets", "dpflow_login"):
            other.cookies.set(name, cookie, path="/")
        assert other.get("/v1/history").status_code == 401
    (token,) = issuer.tokens
    # An ID token is for the page, and is none at a door of the service.
    assert browser.get("/v1/history", headers={"Authorization": f"Bearer {token}"}).status_code == 401  # fmt: skip
    # Not the test's own client, which logs addresses where another test has let it.
    logged = [one.getMessage() for one in caplog.records if not one.name.startswith("http")]
    written = f"{answer.headers} {logged}"
    assert token not in written and query["code"] not in written and SECRET not in written


def test_a_cookie_needs_tls_beyond_this_machine(apps: list[Any]) -> None:
    for base, is_secure in (("http://dp.example.org", True), ("https://127.0.0.1", True), ("http://127.0.0.1", False)):  # fmt: skip
        far = TestClient(apps[0], base_url=base, follow_redirects=False)
        cookie = far.get("/budgets/login/corp").headers["set-cookie"].lower()
        assert ("secure" in cookie) is is_secure and "httponly" in cookie


def test_the_cookie_of_a_login_comes_back_from_the_issuer(browser: Any) -> None:
    """Whatever the issuer's name is: a strict cookie would not."""
    for name in ("corp", "header"):
        cookie = browser.get(f"/budgets/login/{name}").headers["set-cookie"].lower()
        assert "samesite=lax" in cookie


def test_a_session_ends(browser: Any, world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour, and as soon as the service file knows the claim no more."""
    assert come_back(browser, go(browser)).status_code == 303
    assert browser.get("/budgets/").status_code == 200
    text = world.file.read_text()
    world.file.write_text(text.replace("aud@example.org", "eve@example.org"))
    assert browser.get("/budgets/").status_code == 303
    world.file.write_text(text)
    assert browser.get("/budgets/").status_code == 200
    now = time.time()
    monkeypatch.setattr(budget_page.time, "time", lambda: now + 3601)
    assert browser.get("/budgets/").status_code == 303


STATES: dict[str, Callable[[dict[str, str]], Any]] = {
    "another state": lambda q: q | {"state": "x" * 43},
    "a state that is no ASCII": lambda q: q | {"state": "é"},
    "no state": lambda q: {"code": q["code"]},
    "two states": lambda q: f"{urlencode(q)}&state={q['state']}",
    "two codes": lambda q: f"{urlencode(q)}&code={q['code']}",
    "no code": lambda q: {"state": q["state"]},
    "another code": lambda q: q | {"code": "x"},
    "another issuer's answer": lambda q: q | {"iss": "https://evil.example.org"},
    "two issuers": lambda q: f"{urlencode(q)}&iss=https://evil.example.org",
    "an error": lambda q: q | {"error": "evil", "error_description": "evil"},
    "nothing": lambda q: "",
    "a place to go": lambda q: {"next": "https://evil.example.org", "redirect_uri": "//evil"},
}  # fmt: skip


@pytest.mark.parametrize("forged", STATES)
def test_a_forged_address_opens_nothing(browser: Any, forged: str) -> None:
    query = go(browser)
    require_closed(browser, come_back(browser, STATES[forged](query)))
    # The login is over, so a second guess is none.
    require_closed(browser, come_back(browser, query))


PAST = int(time.time()) - 3600
TOKENS: dict[str, dict[str, Any]] = {
    "another nonce": {"nonce": "x" * 43},
    "no nonce": {"nonce": None},
    "a list of nonces": {"nonce": ["x"]},
    "another issuer": {"iss": "https://evil.example.org"},
    "another issuer of the file": {"iss": "+/"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "evil"},
    "the service as audience": {"aud": "dpflow"},
    "a second audience": {"aud": [CLIENT, "evil"]},
    "no audience": {"aud": None},
    "expired": {"exp": PAST},
    "without end": {"exp": None},
    "not yet": {"nbf": PAST + 7200},
    "nobody's address": {"email": "evil@example.org"},
    "an address that is not verified": {"email_verified": False},
    "who sees one scope": {"email": "ann@example.org"},
}


@pytest.mark.parametrize("forged", TOKENS)
def test_a_forged_token_opens_nothing(browser: Any, issuer: Issuer, forged: str) -> None:
    issuer.claims = dict(TOKENS[forged])
    if issuer.claims.get("iss") == "+/":
        issuer.claims["iss"] = f"{issuer.url}/"
    require_closed(browser, come_back(browser, go(browser)))


ANSWERS: dict[str, Any] = {
    "a failure": (500, {}),
    "a refusal": (401, {"error": "invalid_client"}),
    "no JSON": (200, b"<html>evil</html>"),
    "a list": (200, ["id_token"]),
    "no token": (200, {"access_token": "x"}),
    "a number": (200, {"id_token": 7}),
    "no JWT": (200, {"id_token": "x"}),
    "unsigned": (200, {"id_token": jwt.encode({"iss": "i"}, None, "none")}),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_strange_answer_of_the_issuer_opens_nothing(
    browser: Any, issuer: Issuer, answer: str
) -> None:
    issuer.answer = ANSWERS[answer]
    require_closed(browser, come_back(browser, go(browser)))


def test_a_strangers_key_opens_nothing(browser: Any, issuer: Issuer) -> None:
    issuer.key = STRANGE
    require_closed(browser, come_back(browser, go(browser)))


def test_a_used_or_foreign_code_opens_nothing(
    browser: Any, apps: list[Any], issuer: Issuer
) -> None:
    """Neither once more, nor in another browser, nor in the middle of another's login, where PKCE and the nonce hold."""
    query = go(browser)
    kept = browser.cookies["dpflow_login"]
    stranger = TestClient(apps[0], **BROWSER)
    require_closed(stranger, come_back(stranger, query))
    assert come_back(browser, query).status_code == 303
    browser.post("/budgets/logout")
    require_closed(browser, come_back(browser, query))
    browser.cookies.set("dpflow_login", kept, path="/budgets")
    require_closed(browser, come_back(browser, query))
    for is_strict in (True, False):
        issuer.is_strict = is_strict
        stolen = go(stranger)["code"]
        require_closed(browser, come_back(browser, go(browser) | {"code": stolen}))


def test_cookies_are_what_was_sealed_for_them(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = go(browser)
    begun = browser.cookies["dpflow_login"]
    for cookie in (begun[:-4] + "AAAA", begun[8:], "", "x", "é", begun + begun):
        stranger = TestClient(browser.app, base_url="http://127.0.0.1", follow_redirects=False)
        header = {"Cookie": f"dpflow_login={cookie}".encode("latin-1")}
        require_closed(stranger, stranger.get(f"/budgets/callback?{urlencode(query)}", headers=header))  # fmt: skip
    # One of a login that has begun is none of a reader.
    browser.cookies.set("dpflow_budgets", begun, path="/budgets")
    assert browser.get("/budgets/").status_code == 303
    now = time.time()
    monkeypatch.setattr(budget_page.time, "time", lambda: now + 601)
    require_closed(browser, come_back(browser, query))


def test_a_login_goes_nowhere_else(browser: Any) -> None:
    for place in ("nobody", "%2e%2e", "corp%3f", "//evil.example.org"):
        answer = browser.get(f"/budgets/login/{place}")
        assert answer.headers.get("location", "/budgets/login") == "/budgets/login"
    answer = browser.get("/budgets/login/corp?next=//evil&callback=//evil&redirect_uri=//evil")
    assert "evil" not in answer.headers["location"]
    sent = parse_qs(urlsplit(answer.headers["location"]).query)
    assert sent["redirect_uri"] == [HERE] and len(sent["state"][0]) == 43
    assert browser.post("/budgets/callback").status_code == 405


@pytest.mark.parametrize("field", ["authorize", "token", "callback", "keys"])
def test_addresses_in_the_clear_are_refused(world: ServiceWorld, field: str) -> None:
    text = world.file.read_text()
    service = yaml.safe_load(text)
    terms = service["issuers"]["corp"]
    (terms if field == "keys" else terms["login"])[field] = "http://dp.example.org/budgets/callback"
    world.file.write_text(yaml.safe_dump(service))
    try:
        with pytest.raises(InvalidDeclaration, match="write https"):
            load_service(world.file)
    finally:
        world.file.write_text(text)
