"""Tokens of an OpenID issuer: whom they open the service for, and what a forged one opens."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from service_world import QUERY, RELEASE, TOKENS, TRUST, Server, ServiceWorld, asker, settle

from dpflow.errors import InvalidDeclaration
from dpflow.server import openid
from dpflow.server.openid import Issuers, KeysUnavailable, parse_keys
from dpflow.server.service import Issuer, load_service

ISSUER, AUDIENCE = "https://login.example.org", "dpflow"
RSA = {name: rsa.generate_private_key(65537, 2048) for name in ("new", "old", "strange")}
EC = ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    algorithm: Any = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
    fields = json.loads(algorithm.to_jwk(key.public_key()))
    return fields | ({} if kid is None else {"kid": kid}) | more


def key_set(*names: str, **more: Any) -> dict[str, Any]:
    keys = [public_jwk(RSA[name], name, alg="RS256", use="sig") for name in names]
    return {"keys": [*keys, public_jwk(EC, "ec", **more)]}


def sign(key: Any = RSA["new"], kid: str | None = "new", alg: str = "RS256", head: Any = None, **claims: Any) -> str:  # fmt: skip
    now = int(time.time())
    body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "7", "iat": now, "exp": now + 60}
    body |= {"email": "ann@example.org", "email_verified": True} | claims
    body = {name: value for name, value in body.items() if value is not None}
    headers = ({} if kid is None else {"kid": kid}) | (head or {})
    return jwt.encode(body, key, alg, headers)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def confuse(alg: str) -> str:
    """A token that is signed with the issuer's public key as a secret."""
    public = RSA["new"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)  # fmt: skip
    body = jwt.decode(sign(), options={"verify_signature": False})
    text = f"{part({'alg': alg, 'kid': 'new', 'typ': 'JWT'})}.{part(body)}"
    code = hmac.new(pem, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"


def unsigned(alg: str, **claims: Any) -> str:
    body = jwt.decode(sign(), options={"verify_signature": False}) | claims
    return f"{part({'alg': alg, 'kid': 'new'})}.{part(body)}."


def stretch(token: str) -> str:
    """A token whose claims were changed after it was signed."""
    head, body, code = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    return f"{head}.{part(claims | {'email': 'bob@example.org'})}.{code}"


PAST = int(time.time()) - 3600
FORGED: dict[str, Any] = {
    "alg none": lambda: unsigned("none"),
    "alg None": lambda: unsigned("None"),
    "alg nothing": lambda: unsigned(""),
    "alg a list": lambda: unsigned(["RS256"]),  # type: ignore[arg-type]
    "public key as secret": lambda: confuse("HS256"),
    "public key as secret, said to be RS256": lambda: confuse("RS256"),
    "another audience": lambda: sign(aud="other"),
    "no audience": lambda: sign(aud=None),
    "another issuer": lambda: sign(iss=f"{ISSUER}/"),
    "no issuer": lambda: sign(iss=None),
    "another case of the issuer": lambda: sign(iss=ISSUER.upper()),
    "expired": lambda: sign(exp=PAST),
    "without end": lambda: sign(exp=None),
    "an end that is none": lambda: unsigned("none", exp="never"),
    "not yet": lambda: sign(nbf=PAST + 7200),
    "made in the future": lambda: sign(iat=PAST + 7200),
    "an old key": lambda: sign(RSA["old"], "old"),
    "an old key under the new one's name": lambda: sign(RSA["old"], "new"),
    "a stranger's key": lambda: sign(RSA["strange"], "strange"),
    "a key that the token brings": lambda: sign(RSA["strange"], None, head={"jwk": public_jwk(RSA["strange"], None)}),
    "a place of keys": lambda: sign(RSA["strange"], "strange", head={"jku": "http://127.0.0.1:1/keys"}),
    "another key's id": lambda: sign(kid="ec"),
    "no key's id, of two keys": lambda: sign(kid=None),
    "a path as key's id": lambda: sign(RSA["strange"], "../../dev/null"),
    "a number as key's id": lambda: f"{part({'alg': 'RS256', 'kid': 1})}.{sign().split('.', 1)[1]}",
    "another algorithm of this key": lambda: sign(alg="PS256"),
    "a critical extension": lambda: sign(head={"crit": ["exp"], "exp": 1}),
    "changed claims": lambda: stretch(sign()),
    "no signature": lambda: sign().rpartition(".")[0] + ".",
    "nobody's claim": lambda: sign(email="zoe@example.org"),
    "a claim of another kind": lambda: sign(email={"ann@example.org": 1}),
    "an address that is not verified": lambda: sign(email_verified=False),
    "an address of which nothing is said": lambda: sign(email_verified=None),
    "ann's and bob's": lambda: sign(groups=["dp-bob"]),
    "deep": lambda: f"{part({'alg': 'RS256'})}.{base64.urlsafe_b64encode(b'[' * 4000).decode()}.x",
    "long": lambda: sign(pad="x" * 10_000),
    "dots": lambda: "..",
    "not base64": lambda: "a.b.c",
    "odd": lambda: "é.\u202e.x",
}  # fmt: skip


def write_world(folder: Path, keys: str) -> ServiceWorld:
    world = ServiceWorld(folder)
    service = yaml.safe_load(world.file.read_text())
    service["issuers"] = {"corp": {"issuer": ISSUER, "audience": AUDIENCE, "keys": keys}}
    for name, claim, value in (("ann", "email", "ann@example.org"), ("bob", "groups", "dp-bob")):
        terms = asker(name) | {"openid": {"issuer": "corp", "claim": claim, "value": value}}
        # Bob has no other token.
        service["principals"][name] = {
            n: v for n, v in terms.items() if name == "ann" or n != "token_sha256"
        }
    world.file.write_text(yaml.safe_dump(service))
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    folder = tmp_path_factory.mktemp("openid")
    (folder / "keys.json").write_text(json.dumps(key_set("new")))
    return write_world(folder, "keys.json")


@pytest.fixture(scope="module")
def server(world: ServiceWorld) -> Iterator[Server]:
    running = Server(world.file)
    yield running
    running.stop()
    assert "Traceback" not in running.log and "eyJ" not in running.log


def ask(server: Server, token: str, method: str = "GET", place: str = "tables", **more: Any) -> httpx.Response:  # fmt: skip
    headers = {"Authorization": b"Bearer " + token.encode()}
    return httpx.request(
        method, f"{server.url}/v1/{place}", headers=headers, timeout=60, verify=TRUST, **more
    )


def test_a_claim_says_who_asks(world: ServiceWorld, server: Server) -> None:
    """By an address or a group, with RSA or elliptic keys; the principal pays, and a job is its own."""
    headers = {"Authorization": f"Bearer {sign()}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, verify=TRUST) as ann:
        answer = settle(ann, "sql", {"query": QUERY, "options": {"epsilon": "0.5"}})
        assert answer.status_code == 200
        job = ann.post("/v1/release", json=RELEASE).json()["job"]
        # It is charged here, not while a later test compares budgets.
        while ann.get(f"/v1/jobs/{job}", params={"wait": 20}).status_code == 202:
            pass
    assert world.ledger.history("visits/ann")[-1].principal == "ann"
    bob = sign(EC, "ec", "ES256", email=None, groups=["staff", "dp-bob"], aud=["x", AUDIENCE])
    assert [row["table"] for row in ask(server, bob).json()] == ["visits"]
    assert ask(server, bob, place=f"jobs/{job}").status_code == 404
    # Its own token is valid, too.
    assert ask(server, TOKENS["ann"][0]).status_code == 200


def test_a_forged_token_opens_nothing(world: ServiceWorld, server: Server) -> None:
    """Each with the answer of any other wrong token, which says what may be wrong with it."""
    wrong = ask(server, "x" * 43)
    assert "expired" in wrong.json()["message"]
    before = world.ledger.remaining("visits/ann").rows()
    for name, forge in FORGED.items():
        token = forge()
        answer = ask(server, token, "POST", "release", json=RELEASE | {"name": "forged"})
        assert (answer.status_code, answer.text) == (401, wrong.text), name
    assert world.ledger.remaining("visits/ann").rows() == before


def test_keys_are_read_again(tmp_path: Path) -> None:
    """From a file with the next request: a key that was taken out opens nothing, a new one does; without the file, or
    with one that is none, nobody with such a token is let in, and others are.
    """
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(key_set("old")))
    world = write_world(tmp_path, "keys.json")
    with world.test_client("ann") as client:

        def status(token: str) -> int:
            return int(
                client.get("/v1/tables", headers={"Authorization": f"Bearer {token}"}).status_code
            )

        old, new = sign(RSA["old"], "old"), sign()
        assert (status(old), status(new)) == (200, 401)
        keys.write_text(json.dumps(key_set("new")))
        assert (status(old), status(new)) == (401, 200)
        for content in (
            "{}",
            "[",
            '{"keys": 1}',
            '{"keys": []}',
            json.dumps({"keys": [public_jwk(EC, "a")] * 2}),
        ):
            keys.write_text(content)
            assert status(new) == 503 and status(TOKENS["ann"][0]) == 200
        keys.unlink()
        assert status(new) == 503
        # A mapping that is taken out ends with the next request, as a token does.
        keys.write_text(json.dumps(key_set("new")))
        assert status(new) == 200
        service = yaml.safe_load(world.file.read_text())
        del service["principals"]["ann"]["openid"]
        world.file.write_text(yaml.safe_dump(service))
        assert status(new) == 401 and status(TOKENS["ann"][0]) == 200


def test_keys_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at the start and again for an unknown key, never while a request waits; old ones end with their age."""
    shown: list[Any] = [key_set("old")]

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/keys" else 302)
            self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(json.dumps(shown[-1]).encode())

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(openid, "_MIN_PAUSE", 0.01)
    http = HTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{http.server_port}"
    make = functools.partial(Issuer, issuer=ISSUER, audience=AUDIENCE)
    issuers = Issuers({"corp": make(keys=f"{place}/keys")})
    new = sign()
    assert issuers.read_claims(sign(RSA["old"], "old")) is not None
    assert issuers.read_claims(new) is None
    shown.append(key_set("new"))
    deadline = time.monotonic() + 60
    while issuers.read_claims(new) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert issuers.read_claims(sign(RSA["old"], "old")) is None
    with pytest.raises(KeysUnavailable):
        Issuers({"corp": make(keys=f"{place}/elsewhere")}).read_claims(new)
    http.shutdown()
    http.server_close()
    issuers._keys["corp"]._read_at -= 300 * 12 + 1
    with pytest.raises(KeysUnavailable):
        issuers.read_claims(new)


def test_only_public_keys_that_sign_are_keys() -> None:
    """Shared secrets, private halves, keys for encryption, short ones and unknown kinds are none."""
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA["new"]))
    short = rsa.generate_private_key(65537, 1024)
    odd = [
        {"kty": "oct", "k": part("secret"), "kid": "a"},
        private | {"kid": "b"},
        public_jwk(RSA["new"], "c", use="enc"),
        public_jwk(RSA["new"], "d", alg="HS256"),
        public_jwk(short, "e"),
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "f"},
        *(7, {}, {"kty": ["RSA"]}),
    ]
    good = public_jwk(RSA["new"], "good")
    assert list(parse_keys(json.dumps({"keys": [*odd, good]}).encode())) == ["good"]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"token_sha256": None}, "has no token"),
        ({"openid": {"issuer": "corps", "claim": "sub", "value": "7"}}, "did you mean 'corp'"),
        ({"openid": {"issuer": "corp", "claim": "groups", "value": "dp-bob"}}, "the same claim"),
        ({"openid": {"issuer": "corp", "claim": "sub"}}, "value"),
    ],
)
def test_the_file_says_what_is_wrong(
    world: ServiceWorld, tmp_path: Path, terms: Any, said: str
) -> None:
    service = yaml.safe_load(world.file.read_text())
    ann = service["principals"]["ann"] | {"openid": None} | terms
    service["principals"]["ann"] = {n: v for n, v in ann.items() if v is not None}
    (tmp_path / "service.yml").write_text(yaml.safe_dump(service))
    with pytest.raises(InvalidDeclaration, match=said):
        load_service(tmp_path / "service.yml")


def test_keys_are_read_as_long_as_somebody_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a service that is gone reads nothing more, and ends."""
    monkeypatch.setattr(openid, "_MIN_PAUSE", 0)
    read: list[str] = []
    store = SimpleNamespace(_refresh=lambda: read.append("keys"))
    stores = iter([store, store, None])
    thread = threading.Thread(
        target=openid._keep_fresh, args=(lambda: next(stores), threading.Event(), 0), daemon=True
    )
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and read == ["keys", "keys"]
