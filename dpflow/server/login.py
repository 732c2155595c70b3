"""Login by an OpenID issuer's own page: the authorization code flow with PKCE.

What a login needs until its end is sealed in a cookie of the browser that began it. So every process of the service can end
it, and no other browser can.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpflow.server.openid import Issuers, KeysUnavailable, ask_issuer
from dpflow.server.refusals import Refused, refuse_for_now
from dpflow.server.service import Issuer, IssuerLogin
from dpflow.yaml_files import parse_json


@dataclass(frozen=True)
class BegunLogin:
    """What a login has to come back with. The three texts are random, and new for each login."""

    issuer: str
    state: str
    nonce: str
    verifier: str


class Logins:
    """Logins by the issuers of a service file that have a page for it."""

    def __init__(self, issuers: Mapping[str, Issuer], tokens: Issuers) -> None:
        self._issuers = {name: one for name, one in issuers.items() if one.login is not None}
        self._tokens = tokens

    @property
    def names(self) -> list[str]:
        """Issuers that a person may choose from."""
        return [*self._issuers]

    def begin(self, issuer: str) -> tuple[str, str]:
        """The address of the issuer's page, and what `end` needs, as text. Raises `Refused` for another name."""
        login = self._find(issuer)
        begun = BegunLogin(issuer, *(secrets.token_urlsafe(32) for _ in range(3)))
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": login.client_id,
            "redirect_uri": login.callback,
            "scope": login.scopes,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        joint = "&" if urllib.parse.urlsplit(login.authorize).query else "?"
        return f"{login.authorize}{joint}{urllib.parse.urlencode(query)}", json.dumps(asdict(begun))

    def end(self, kept: str, query: Mapping[str, list[str]]) -> tuple[str, Mapping[str, Any]]:
        """The issuer's name and the claims of who came back.

        Args:
            kept: of `begin`, from the browser that came back.
            query: of the address that it came back to.

        Raises `Refused` for anything but the one answer to this login.
        """
        begun = BegunLogin(**json.loads(kept))
        login = self._find(begun.issuer)
        state, code = (query.get(name, []) for name in ("state", "code"))
        if len(state) != 1 or not hmac.compare_digest(state[0].encode(), begun.state.encode()):
            raise _refuse("this is not the end of a login that this browser began")
        # Another issuer's answer, that a mixed-up browser brings (RFC 9207).
        own_name = [self._issuers[begun.issuer].issuer]
        if query.get("iss", own_name) != own_name:
            raise _refuse("another issuer answered")
        if len(code) != 1 or "error" in query:
            raise _refuse("the issuer let nobody in")
        token = _redeem(login, code[0], begun.verifier)
        try:
            # The audience is the client, so such a token is none for the doors of the service.
            read = self._tokens.read_claims(token, login.client_id)
        except KeysUnavailable:
            raise refuse_for_now("the issuer's keys cannot be read now; log in again") from None
        if read is None or read[0] != begun.issuer:
            raise _refuse("the issuer's token is not valid")
        claims = read[1]
        nonce = claims.get("nonce")
        is_ours = isinstance(nonce, str) and hmac.compare_digest(
            nonce.encode(), begun.nonce.encode()
        )
        # With other audiences beside this client, one of them might have asked for the token.
        if not is_ours or claims["aud"] not in (login.client_id, [login.client_id]):
            raise _refuse("the issuer's token is of another login")
        return read

    def _find(self, issuer: str) -> IssuerLogin:
        found = self._issuers.get(issuer)
        if found is None or found.login is None:
            raise Refused(404, "not_found", "there is no login by this issuer")
        return found.login


def _refuse(why: str) -> Refused:
    return Refused(401, "unauthorized", f"{why}; log in again")


def _redeem(login: IssuerLogin, code: str, verifier: str) -> str:
    """The ID token for a code. Raises `Refused` where the issuer gives none."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": login.callback,
        "client_id": login.client_id,
        "code_verifier": verifier,
    }
    headers = {"Accept": "application/json"}
    try:
        if login.client_secret is not None:
            secret = Path(login.client_secret).read_text(encoding="utf-8-sig").strip()
            pair = ":".join(urllib.parse.quote(one, safe="") for one in (login.client_id, secret))
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        request = urllib.request.Request(  # noqa: S310  the service file was checked for its scheme
            login.token, urllib.parse.urlencode(form).encode(), headers
        )
        answer = parse_json(ask_issuer(request))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            raise _refuse("the issuer does not take the code") from None
        raise refuse_for_now("the issuer fails; log in again later") from None
    except (OSError, ValueError, http.client.HTTPException):
        raise refuse_for_now("the issuer cannot be asked now; log in again later") from None
    token = answer.get("id_token") if isinstance(answer, dict) else None
    if not isinstance(token, str):
        raise _refuse("the issuer gave no token")
    return token
