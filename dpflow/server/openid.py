"""Tokens of OpenID issuers (JWT): who signed them, whom they are for, and what they say.

Only keys of the issuer's set are used, each with algorithms of its own kind, and none is a shared secret. So a token that
names no algorithm, or a public key as a secret, is none. No request waits for the network: a thread reads keys.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt

from dpflow.client.remote import NoRedirects
from dpflow.private_files import forbid_public_writing
from dpflow.server.service import Claim, Issuer
from dpflow.yaml_files import parse_json

log = logging.getLogger("dpflow")
#: Algorithms that a key may sign with, by its type and curve.
_ALGORITHMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
#: Bits of the smallest RSA key, bytes of an issuer's answer and characters of a token.
_MIN_BITS, _MAX_BYTES, _MAX_TOKEN = 2048, 2**20, 8192
#: Seconds between two looks at a URL that unknown keys cause, of one look, and after which keys are used no more, as a
#: multiple of ``refresh_seconds``.
_MIN_PAUSE, _TIMEOUT, _MAX_AGE = 5.0, 5.0, 12


class KeysUnavailable(Exception):
    """No keys of an issuer are known now."""


class KeySet:
    """The public keys of an issuer, as its file or URL has them."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = -float("inf")
        #: What changes when the file does; None where it could not be read.
        self._version: tuple[int, ...] | None = ()
        self._lock, self._wanted = threading.Lock(), threading.Event()
        self._is_url = "://" in issuer.keys
        if not self._is_url:
            return
        self._refresh()
        told = (weakref.ref(self), self._wanted, issuer.refresh_seconds)
        threading.Thread(target=_keep_fresh, args=told, name="dpflow-keys", daemon=True).start()

    def find(self, key_id: str | None) -> jwt.PyJWK | None:
        """A key by its id, or the only one. Raises `KeysUnavailable`."""
        with self._lock:
            if not self._is_url:
                self._read_file()
            elif time.monotonic() - self._read_at > self._issuer.refresh_seconds * _MAX_AGE:
                self._keys = {}
            keys = self._keys
        if not keys:
            raise KeysUnavailable
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        if key_id not in keys:
            # Perhaps it is new.
            self._wanted.set()
        return keys.get(key_id)

    def _read_file(self) -> None:
        file = Path(self._issuer.keys)
        try:
            forbid_public_writing(file)
            status = file.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if version != self._version:
                self._keys, self._version = parse_keys(file.read_bytes()), version
        except (OSError, ValueError) as error:
            if self._version is not None:
                log.error("keys of %s cannot be read: %s", self._issuer.issuer, error)
            self._keys, self._version = {}, None

    def _refresh(self) -> None:
        try:
            keys = parse_keys(ask_issuer(urllib.request.Request(self._issuer.keys)))  # noqa: S310  the file was checked
        except (OSError, ValueError, http.client.HTTPException) as error:
            log.error("keys of %s cannot be read: %s", self._issuer.issuer, type(error).__name__)
            return
        with self._lock:
            self._keys, self._read_at = keys, time.monotonic()


def _keep_fresh(find_store: Any, wanted: threading.Event, seconds: float) -> None:
    """Read keys again, as long as somebody has them."""
    while True:
        wanted.wait(seconds)
        time.sleep(_MIN_PAUSE if wanted.is_set() else 0)
        wanted.clear()
        if (store := find_store()) is None:
            return
        store._refresh()
        del store


def parse_keys(content: bytes) -> dict[str, jwt.PyJWK]:
    """The signing keys of a JWK set, by their ids; others, such as shared secrets, are left out. Raises `ValueError`."""
    data = parse_json(content)
    if not isinstance(data, dict) or not isinstance(data.get("keys"), list):
        raise ValueError("no JWK set")
    keys: dict[str, jwt.PyJWK] = {}
    for position, fields in enumerate(data["keys"]):
        if not isinstance(fields, dict) or fields.get("use", "sig") != "sig":
            continue
        if not _list_algorithms(fields) or "d" in fields:
            continue
        try:
            key = jwt.PyJWK(fields, algorithm=_list_algorithms(fields)[0])
        except jwt.PyJWTError:
            continue
        if fields["kty"] == "RSA" and key.key.key_size < _MIN_BITS:
            continue
        name = str(fields.get("kid", f" {position}"))
        # Of two with one id neither can be told from the other.
        if name in keys:
            raise ValueError("a key id twice")
        keys[name] = key
    return keys


def _list_algorithms(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a key may sign with; the one that it names if it names one."""
    able = _ALGORITHMS.get((str(fields.get("kty")), str(fields.get("crv", ""))), ())
    named = fields.get("alg")
    return able if named is None else tuple(one for one in able if one == named)


def ask_issuer(request: urllib.request.Request) -> bytes:
    """The body of an issuer's answer, which comes from the very address. Raises `OSError`, and `HTTPException` of http.client."""
    handlers: list[Any] = [NoRedirects]
    # A proxy would get all of it in the clear, and no issuer of this machine is behind one.
    if request.type == "http":
        handlers.append(urllib.request.ProxyHandler({}))
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT) as reply:
        return bytes(reply.read(_MAX_BYTES))


class Issuers:
    """Reads tokens of the issuers of a service file."""

    def __init__(self, issuers: Mapping[str, Issuer]) -> None:
        self._issuers = issuers
        self._keys = {name: KeySet(issuer) for name, issuer in issuers.items()}

    def read_claims(
        self, token: str, audience: str | None = None
    ) -> tuple[str, Mapping[str, Any]] | None:
        """The issuer's name and the claims of a token; None for one that is not valid now.

        Args:
            audience: in place of the issuer's own.

        Raises `KeysUnavailable` for a token of an issuer whose keys nobody can read.
        """
        if len(token) > _MAX_TOKEN:
            return None
        # Whatever a stranger writes there is no reason to fail.
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except Exception:  # noqa: BLE001
            return None
        key_id = header.get("kid")
        if "crit" in header or not (key_id is None or isinstance(key_id, str)):
            return None
        for name, issuer in self._issuers.items():
            if claimed != issuer.issuer:
                continue
            if (key := self._keys[name].find(key_id)) is None:
                return None
            try:
                claims = jwt.decode(
                    token,
                    key.key,
                    algorithms=_list_algorithms(key._jwk_data),
                    audience=audience or issuer.audience,
                    issuer=issuer.issuer,
                    leeway=issuer.leeway_seconds,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except Exception:  # noqa: BLE001  it is none of this issuer's, whatever is wrong with it
                return None
            return name, claims
        return None


def has_claim(claim: Claim, issuer: str, claims: Mapping[str, Any]) -> bool:
    """Whether a token of an issuer has a claim with this value. An address that its issuer did not verify is none."""
    if claim.claim == "email" and claims.get("email_verified") is not True:
        return False
    value = claims.get(claim.claim)
    values = value if isinstance(value, list) else [value]
    # True and 1 are no texts, so they are no value that a file writes.
    return claim.issuer == issuer and any(
        one == claim.value for one in values if isinstance(one, str)
    )
