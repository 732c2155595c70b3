"""The interface at a service, over HTTP, with nothing but the standard library."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from email.message import Message
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from dpflow import errors
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.parse.parameters import check_parameters
from dpflow.client.interface import Client, Parameters, PlanView
from dpflow.core.contract.result_fields import FIELD_KINDS, FIELDS
from dpflow.engine.releases.receipt import ROWS_LEFT_OUT, Receipt
from dpflow.errors import DpflowError, InvalidInput, ServiceUnavailable, hide_credentials
from dpflow.loopback import is_loopback

if TYPE_CHECKING:
    from dpflow.tables.public.query_process import RowTable

#: Seconds of one HTTP request, and those for which the service may hold the reply to a poll.
TIMEOUT, POLL = 60, 20
#: How often a request is sent again because the service does not know its job any more, and seconds before it.
MAX_RESENT, MAX_PAUSE = 10, 5.0
#: Points of one request, unless the service takes fewer.
MAX_POINTS = 10_000
#: Entries of the history that are asked for at once, as many as a service gives.
MAX_ENTRIES = 1000
#: Of a job that another process polls: it waits or runs, it has an answer, the service does not know it.
JobStage = Literal["waits", "ended", "unknown"]
#: What else an error of a service carries.
_DETAILS = ("rule", "line", "column", "nearest", "what", "scope", "block", "text")


def check_server(server: str) -> str:
    """The address of a service without a slash at its end. Raises `InvalidInput` for one that is none, or
    where a token would travel in the clear.
    """
    place = server.rstrip("/")
    try:
        parts = urllib.parse.urlsplit(place)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urllib.parse.urlsplit("")
    if (
        parts.scheme not in ("https", "http")
        or not host
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise InvalidInput(
            f"{hide_credentials(server)[:80]!r} is no address of a service; write it as https://dp.example.org"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidInput(
            f"{place} would get the token in the clear; write https://, or ask it on its own machine"
        )
    return place


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address would get the token."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RemoteClient(Client):
    """A client of ``dpflow serve``.

    Args:
        server: its address, as `check_server` returns it.
        token: of the principal that asks.
    """

    def __init__(self, server: str, token: str) -> None:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidInput("the token is none of a service; copy it whole, without blanks")
        self.server, self._token = server, token
        handlers: list[Any] = [NoRedirects]
        # A proxy would get the token in the clear, and no service of this machine is behind one.
        if server.startswith("http://"):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def __repr__(self) -> str:
        return f"RemoteClient({self.server!r})"

    def tables(self) -> list[dict[str, Any]]:
        """As `Client.tables`."""
        return list(self._ask("GET", "tables"))

    def describe(self, table: str) -> dict[str, Any]:
        """As `Client.describe`."""
        return dict(self._ask("GET", f"tables/{urllib.parse.quote(table, safe='')}"))

    def plan_fields(self, fields: Mapping[str, Any]) -> PlanView:
        """As `Client.plan_fields`."""
        request = encode_fields(fields)
        return PlanView(request, self._ask("POST", "plan", request))

    def release(self, plan: PlanView) -> Receipt:
        """As `Client.release`."""
        return Receipt.from_wire(self.settle("release", plan.request))

    def ask(
        self, fields: Mapping[str, Any], queries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """As `Client.ask`."""
        return dict(self.settle("sessions", encode_questions(fields, queries)))

    def sql(self, text: str, *, parameters: Parameters = (), **options: Any) -> SqlAnswer:
        """As `Client.sql`."""
        return SqlAnswer.from_wire(self.settle("sql", encode_query(text, parameters, options)))

    def explain(self, text: str, *, parameters: Parameters = (), **options: Any) -> dict[str, Any]:
        """As `Client.explain`."""
        return dict(self._ask("POST", "explain", encode_query(text, parameters, options)))

    def published(self) -> list[str]:
        """As `Client.published`; none for a principal without the door ``read``."""
        status, answer = self._send("GET", "published")
        names = [] if status == 403 else [str(row["name"]) for row in _read(status, answer)]
        return [view for name in names for view in (name, f"{name}_latest")]

    def read_published(self, name: str) -> RowTable:
        """As `Client.read_published`; a name that ends in ``_latest`` is that of the latest interval."""
        from dpflow.tables.public.query_process import RowTable

        status, rows, headers = self._exchange("GET", _place_published(name))
        whole = name.removesuffix("_latest")
        if status == 422 and whole != name:
            place = _place_published(whole)
            status, rows, headers = self._exchange("GET", place, latest="true")
        rows = _read(status, rows)
        kinds = dict.fromkeys(FIELDS, "VARCHAR") | FIELD_KINDS
        values = [[row.get(column) for row in rows] for column in FIELDS]
        left_out = int(headers.get(ROWS_LEFT_OUT, 0))
        columns = [(column, kinds[column]) for column in FIELDS]
        return RowTable(name, columns, values, rows_left_out=left_out)

    def remaining(self, scope: str | None = None) -> list[dict[str, Any]]:
        """As `Client.remaining`."""
        return list(self._ask("GET", "remaining", scope=scope))

    def history(
        self,
        scope: str | None = None,
        *,
        since: str | None = None,
        principal: str | None = None,
        limit: int = 50,
        end: int | None = None,
    ) -> list[dict[str, Any]]:
        """As `Client.history`, below the entry ``end``."""
        asked = {"scope": scope, "since": since, "principal": principal}
        entries: list[dict[str, Any]] = []
        while True:
            size = min(limit - len(entries), MAX_ENTRIES)
            first = entries[0]["seq"] if entries else end
            before = None if first is None else str(first)
            page = self._ask("GET", "history", **asked, before=before, limit=str(size))
            entries = [*page, *entries]
            if len(page) < size or len(entries) >= limit:
                return entries

    def scopes(self) -> list[dict[str, Any]]:
        """All granted scopes, each as `dpflow.ledger.Scope.to_json` has it; for owners and auditors."""
        return list(self._ask("GET", "scopes"))

    def proposals(self) -> list[dict[str, Any]]:
        """Grants that wait for a second person: ``terms``, as of `scopes`, ``principal`` and ``seq``."""
        return list(self._ask("GET", "proposals"))

    def decide(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Have a signed decision recorded. Raises `SignatureRequired`, which has the text to sign, unless it is signed so."""
        return dict(self._ask("POST", "decisions", decision))

    def gates(self) -> list[dict[str, Any]]:
        """The gates that may be named: ``gate``, what each costs, proves and refuses."""
        return list(self._ask("GET", "gates"))

    def show_gate(self, gate: str) -> dict[str, Any]:
        """One gate, with what is ``left`` of it; opens and charges nothing."""
        return dict(self._ask("GET", f"gates/{urllib.parse.quote(gate, safe='')}"))

    def submit_candidate(self, gate: str, candidate: Mapping[str, Any]) -> dict[str, Any]:
        """A gate's verdict on a candidate: ``session``, ``verdict`` and what is ``left``. The same one again is free.

        Args:
            candidate: name, claim, label, features and the others of a submission. ``file`` and ``rival`` are the bytes
                of a skops file; ``predictions`` has ``column`` (the private table's row id), ``ids``, ``predictions``
                and perhaps ``scores``.
        """
        return dict(self.settle(*encode_candidate(gate, candidate)))

    def show_session(self) -> dict[str, Any]:
        """This principal's session of predictions: ``session_id``, ``name``, ``features``, ``guarantee``, ``protects``
        and ``predictions_left``.
        """
        return dict(self._ask("GET", "session"))

    def predict(self, points: Sequence[Sequence[Any]]) -> tuple[list[Any], int, int | None]:
        """Private answers to points, in their order, how many of them have a value beyond the declared range, the end of
        which stood for it, and how many new points may still be asked; None without a point.

        Args:
            points: values in the order of the session's features; a point that was answered before is free.
        """
        answers: list[Any] = []
        clamped, left, size = 0, None, MAX_POINTS
        while len(answers) < len(points):
            part = [list(map(_encode, point)) for point in points[len(answers) :][:size]]
            status, answer = self._send("POST", "predictions", {"points": part})
            # The service's limits are of points and of bytes.
            if status == 413 and size > 1:
                size //= 2
                continue
            answers += _read(status, answer)["answers"]
            clamped += len(answer["clamped"])
            left = int(answer["predictions_left"])
        return answers, clamped, left

    def check_contract(self, contract: str, blocks: Sequence[str] = ()) -> dict[str, Any]:
        """The outcome of a data contract that the service file names, as
        `dpflow.quality.contract_run.ContractOutcome.to_json` writes it. The same revision and blocks again are free.
        """
        return dict(self.settle("contract", {"contract": contract, "blocks": list(blocks)}))

    def load(self, load: str, blocks: Sequence[str]) -> dict[str, Any]:
        """Load blocks by a load of the service file, in place of what was there of them: ``load``, ``table`` and
        ``blocks``, and no number of rows.
        """
        return dict(self.settle("load", {"load": load, "blocks": list(blocks)}))

    def settle(self, door: str, body: Any, on_job: Callable[[str], None] = lambda job: None) -> Any:
        """The answer of a request: from its job where it has one. A job that the service has forgotten is
        sent again, which charges nothing twice.

        Args:
            on_job: gets the job's id before the first poll.
        """
        for turn in range(MAX_RESENT):
            status, answer = self._send("POST", door, body)
            while status == 202:
                place = _place_job(answer["job"])
                on_job(str(answer["job"]))
                status, answer = self._send("GET", place, wait=str(POLL))
                if status == 404:
                    # A process that did not queue it knows it once it is charged; another one may have it.
                    time.sleep(min(0.05 * 2**turn, MAX_PAUSE))
                    status, answer = self._send("GET", place, wait=str(POLL))
            if status != 404:
                return _read(status, answer)
        raise ServiceUnavailable(f"{self.server} forgot the request {MAX_RESENT} times; try again")

    def submit(self, door: str, body: Any) -> tuple[str, Any]:
        """Send a request and wait for nothing: its job's id, or "" and the answer."""
        status, answer = self._send("POST", door, body)
        return (str(answer["job"]), None) if status == 202 else ("", _read(status, answer))

    def find_stage(self, job: str) -> JobStage:
        """What became of a job. Raises `ServiceUnavailable` while nobody knows."""
        status, answer = self._send("GET", _place_job(job))
        if status in (429, 503) and not answer.get("details", {}).get("is_outcome"):
            raise ServiceUnavailable(str(answer.get("message", "the service is not ready")))
        return "waits" if status == 202 else "unknown" if status == 404 else "ended"

    def find_answer(self, job: str) -> tuple[bool, Any]:
        """Whether a job has an answer, and the answer. Raises the error that it ended with."""
        status, answer = self._send("GET", _place_job(job))
        return (False, None) if status in (202, 404) else (True, _read(status, answer))

    def cancel(self, job: str) -> None:
        """Take back a job that waits and that nothing was charged for; any other goes on."""
        self._send("DELETE", _place_job(job))

    def _ask(self, method: str, place: str, body: Any = None, **query: str | None) -> Any:
        return _read(*self._send(method, place, body, **query))

    def _send(
        self, method: str, place: str, body: Any = None, **query: str | None
    ) -> tuple[int, Any]:
        """Status and JSON of a reply. Raises as `_exchange`."""
        return self._exchange(method, place, body, **query)[:2]

    def _exchange(
        self, method: str, place: str, body: Any = None, **query: str | None
    ) -> tuple[int, Any, Message]:
        """Status, JSON and headers of a reply. Raises `ServiceUnavailable` if there is none."""
        given = {name: text for name, text in query.items() if text is not None}
        url = f"{self.server}/v1/{place}" + (f"?{urllib.parse.urlencode(given)}" if given else "")
        request = urllib.request.Request(  # noqa: S310  the scheme was checked
            url,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT) as reply:
                return reply.status, json.loads(reply.read()), reply.headers
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return error.code, json.loads(error.read()), error.headers
                except (ValueError, OSError):
                    pass
            problem = f"it answers with status {error.code}, and not as dpflow does"
        except (OSError, http.client.HTTPException):
            problem = "it cannot be reached"
        except ValueError:
            problem = "it does not answer as dpflow does"
        raise ServiceUnavailable(
            f"no answer of {self.server}: {problem}; check the address, and send the request again"
        )


def _place_published(name: str) -> str:
    return f"published/{urllib.parse.quote(name, safe='')}.json"


def _place_job(job: object) -> str:
    return f"jobs/{urllib.parse.quote(str(job), safe='')}"


def _read(status: int, answer: Any) -> Any:
    """The body of a reply. Raises the error that it says."""
    if status < 300:
        return answer
    raise make_error(answer if isinstance(answer, dict) else {})


def make_error(body: Mapping[str, Any]) -> DpflowError:
    """The error of a reply, as it was raised at the service."""
    kind = getattr(errors, str(body.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, DpflowError)):
        kind = ServiceUnavailable
    # Without the constructor, which would compose the text again.
    error = kind.__new__(kind)
    error.args = (str(body.get("message", "the service says no, and not why; check its address")),)
    details = body.get("details")
    for name, value in (details if isinstance(details, dict) else {}).items():
        if name in _DETAILS:
            setattr(error, name, value)
    return error


def encode_query(text: str, parameters: Parameters, options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a query. Raises `InvalidInput` for parameters that are none."""
    check_parameters(parameters)
    if isinstance(parameters, Mapping):
        encoded: Any = {name: _encode(value) for name, value in parameters.items()}
    else:
        encoded = [_encode(value) for value in parameters]
    given = {name: _encode(value) for name, value in options.items() if value is not None}
    return {"query": text, "options": given, "parameters": encoded}


def encode_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a release as the body of a request."""
    return {name: _encode(value) for name, value in fields.items()}


def encode_candidate(gate: str, candidate: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The door of a gate, and a candidate as the body of a request; see `RemoteClient.submit_candidate`."""
    fields = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else _encode(value)
        for name, value in candidate.items()
    }
    return f"gates/{urllib.parse.quote(gate, safe='')}/candidates", fields


def encode_questions(
    fields: Mapping[str, Any], queries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The body of questions to a session. Raises `InvalidInput` for questions that are no mappings."""
    if not all(isinstance(query, Mapping) for query in queries):
        raise InvalidInput(
            "queries are a list of mappings, such as - {estimator: column_mean, columns: [age]}"
        )
    return {"session": encode_fields(fields), "queries": [_encode(query) for query in queries]}


def _encode(value: Any) -> Any:
    """A value as JSON that the service reads as the same: amounts and times are texts."""
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date | Fraction):
        return str(value)
    if isinstance(value, Decimal):
        number = float(value)
        if Decimal(repr(number)) != value:
            raise InvalidInput(f"{value} has more digits than a double; write it into the query")
        return number
    if isinstance(value, Mapping):
        return {str(name): _encode(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidInput(
        f"a value of type {type(value).__name__} cannot be sent; give a number, text, date or truth value"
    )
