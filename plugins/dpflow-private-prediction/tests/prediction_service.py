"""A service with two principals over a small table, as its tests ask it."""

from __future__ import annotations

from typing import Any

import yaml
from prediction_doors import Doors
from starlette.testclient import TestClient

from dpflow.registry import Registry
from dpflow.server.app import create_app
from dpflow.server.predictions import Opening, Sessions, open_sessions
from dpflow.server.principals import Principals
from dpflow.server.service import load_service, new_token
from dpflow.tables.access.declarations import load_table

ANN, BOB = new_token(), new_token()
REGISTRY = Registry.load()


def predictor(digest: str, scope: str, **terms: Any) -> dict[str, Any]:
    """A principal with the door ``predict``."""
    return {"token_sha256": digest, "scope": scope, "doors": ["predict"], **terms}


class Served:
    """A running service with two principals: ann may ask 60 points unless told otherwise, bob 5."""

    def __init__(
        self, doors: Doors, ann: int = 60, predict: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        self.doors = doors
        doors.file()
        table = load_table(doors.declaration)
        for name, epsilon in (("ann", ann // 5), ("bob", 1)):
            doors.book.grant(
                f"loans/{name}",
                epsilon,
                0,
                filter="basic",
                table=table,
                principal="owner",
                confirm_large=True,
            )
        principals = {
            "ann": predictor(ANN[1], "loans/ann", predictions=ann),
            "bob": predictor(BOB[1], "loans/bob", predictions=5),
        }
        door = {"session": "session.yml"} | (predict or {})
        self.file = doors.folder / "service.yml"
        self.file.write_text(yaml.safe_dump({"predict": door, "principals": principals} | changes))
        self.sessions = open_sessions(load_service(self.file), doors.book, REGISTRY)
        self.client = self.start(self.sessions)

    def start(self, sessions: Sessions | None) -> TestClient:
        """A server of the file as it is now; None: one whose models are being learned."""
        self.opened = Opening()
        if sessions is not None:
            self.opened.set_result(sessions)
        service = load_service(self.file)
        principals = Principals(self.file, service)
        app = create_app(service, principals, self.opened, self.doors.book, REGISTRY)
        return TestClient(app, raise_server_exceptions=False)

    def ask(self, points: Any, token: str = ANN[0], **headers: str) -> Any:
        """One request."""
        return self.client.post(
            "/v1/predictions",
            json={"points": points},
            headers={"Authorization": f"Bearer {token}"} | headers,
        )

    def spent(self) -> str:
        """Epsilon of the table's whole budget."""
        return self.doors.spent()


def point(i: int) -> list[Any]:
    return [i / 100, 0.5, "Oslo"]
