"""The door ``gate``: candidates come from strangers, rows stay here, and the verdict leaves.

A model is a skops file that a locked process scores (`dpflow.engine.sessions.model_process`). Predictions come by row id:
an id that no row has is ignored, and a row without a prediction counts as wrong, so that nobody learns which ids there
are. The gate is charged whole with its first candidate, whose file is looked at before.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpflow.core.contract.results import finite_json
from dpflow.engine.planning.gate_design import load_gate_file
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.release_list import describe_session
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.champion_file import ChampionFile
from dpflow.engine.sessions.holdout_gate import (
    check_candidate,
    check_submissions,
    require_gate,
    require_metrics,
)
from dpflow.engine.sessions.model_gate import submit_candidate
from dpflow.engine.sessions.model_process import ModelProcesses
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.private_files import make_private_folder, sweep_left, write_private
from dpflow.registry import Registry
from dpflow.server.job_queue import Query, Reply
from dpflow.server.principals import Caller
from dpflow.server.service import ServedGate, Service
from dpflow.tables import write_predictions

#: Fields of a candidate that are files.
_FILES = ("file", "rival")
#: Begins the folder in which a table of predictions is written.
_PART = "part-"


@dataclass(frozen=True)
class Gates:
    """The gates of a service.

    Attributes:
        terms: as the service file has them.
        requests: their release files.
    """

    terms: Mapping[str, ServedGate]
    requests: Mapping[str, ReleaseRequest]
    ledger: Ledger
    registry: Registry

    def list_names(self, caller: Caller) -> list[Reply]:
        """The gates that a caller may submit to, each with what it costs and says."""
        caller.require_door("gate")
        names = [
            name
            for name in sorted(caller.terms.gates)
            if self.requests[name].scope == caller.terms.scope
        ]
        plans = {name: self._plan(caller, name) for name in names}
        return [{"gate": name, **self._describe(plan)} for name, plan in plans.items()]

    def show_status(self, caller: Caller, name: str) -> Reply:
        """What a gate costs and says, and what is left of it; opens and charges nothing."""
        plan = self._plan(caller, name)
        session = Session.find(plan, self.ledger, self.registry, caller.name)
        left: Reply = {"state": "not opened"} if session is None else session.remaining()
        return {"gate": name, **self._describe(plan), "left": left}

    def plan_candidate(self, caller: Caller, body: Mapping[str, Any]) -> Query:
        """The verdict on a candidate, as a job: also a stored one needs the model's digest.

        Raises:
            UnknownName: the caller may name no such gate, whether there is one or not.
            InvalidInput, PlanRefused: a field that the gate does not know, or that is no base64.
        """
        name = str(body["gate"])
        plan, terms = self._plan(caller, name), self.terms[name]
        run = RunIdentity.of_request(plan.request, caller.name)
        promoter = None
        if terms.champion is not None:
            require_metrics([plan])
            promoter = ChampionFile(terms.champion, str(terms.better_by))
        files = {
            field: _decode(field, body["candidate"][field])
            for field in _FILES
            if body["candidate"].get(field) is not None
        }
        fields = partial(_make_submission, body["candidate"], files)
        check_submissions([plan], self.ledger, [fields(Path("/"))], promoter)
        is_new = self.ledger.find(run.key(plan)) is None

        def answer() -> Reply:
            with _make_folder(terms) as folder, ModelProcesses(terms.max_seconds) as models:
                submission = fields(folder)
                written = _write_files(submission, body["candidate"], files)
                try:
                    unopened = Session("", "", plan, self.ledger, self.registry, models.load)
                    if is_new:
                        # A file that is no model opens no gate, and neither does a claim of 7.
                        check_candidate(unopened, submission, promoter)
                    session = Session.open(
                        plan, self.ledger, self.registry, run_identity=run, load=models.load
                    )
                    verdict = submit_candidate(session, submission, promoter)
                except BaseException:
                    _remove(written)
                    raise
                if verdict["outcome"] != "promoted":
                    _remove(written)
                left = session.remaining()
                about = describe_session(plan, session.id, replayed=not is_new)
                reply = {"session": session.id, "verdict": verdict, "left": left, "about": about}
                return dict(finite_json(reply))

        return Query(plan.table.place, [(plan, run)] if is_new else (), answer, always_job=True)

    def _plan(self, caller: Caller, name: str) -> Plan:
        caller.require_door("gate")
        request = caller.find_own("gate", name, self.requests)
        return make_plan(request, self.registry, self.ledger)

    def _describe(self, plan: Plan) -> Reply:
        return {**plan.describe(), **require_gate(plan).describe_limits(plan.params)}


def load_gates(service: Service, ledger: Ledger, registry: Registry) -> Gates:
    """The gates of a service file. Raises `InvalidInput` for a file that is none, and for one of a table that is not
    served.
    """
    requests = {
        name: load_gate_file(terms.gate, registry)[0] for name, terms in service.gates.items()
    }
    served = {file.resolve() for file in service.tables.values()}
    for name, request in requests.items():
        if request.table not in served:
            raise InvalidInput(f"gate {name!r} is about a table that is not served; add it")
        require_gate(make_plan(request, registry))
    return Gates(service.gates, requests, ledger, registry)


def _decode(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{field} is no base64; send the bytes of the skops file so") from None


def _make_submission(
    candidate: Mapping[str, Any], files: Mapping[str, bytes], folder: Path
) -> Reply:
    """A candidate as a submission whose files are in a folder, under the digests of their content."""
    fields = {
        name: value
        for name, value in candidate.items()
        if value not in (None, [], {}) and name not in (*_FILES, "predictions")
    }
    for name, data in files.items():
        fields[name] = folder / f"{hashlib.sha256(data).hexdigest()}.skops"
    if (table := candidate.get("predictions")) is not None:
        scores = table["ids"] if table["scores"] is None else table["scores"]
        if not len(table["ids"]) == len(table["predictions"]) == len(scores):
            raise InvalidInput(
                "ids, predictions and scores are as many; send one of each for a row"
            )
        if len({isinstance(value, str) for value in table["ids"]}) != 1:
            raise InvalidInput("ids are all numbers or all texts, and at least one; send them so")
        digest = hashlib.sha256(repr(table).encode()).hexdigest()
        fields["predictions"] = {
            "database": folder / f"{digest}.duckdb",
            "table": "predictions",
            "id": table["column"],
        }
        if table["scores"] is not None:
            fields["predictions"]["score"] = "score"
    return fields


def _write_files(
    submission: Mapping[str, Any], candidate: Mapping[str, Any], files: Mapping[str, bytes]
) -> list[Path]:
    """Write what is not there, each file whole or not at all: another try takes what is there. Returns it."""
    written = []
    for name, data in files.items():
        if not submission[name].exists():
            write_private(submission[name], data)
            written.append(submission[name])
    if "predictions" in submission:
        database = submission["predictions"]["database"]
        if not database.exists():
            table = candidate["predictions"]
            with tempfile.TemporaryDirectory(dir=database.parent, prefix=_PART) as scratch:
                part = Path(scratch) / database.name
                write_predictions(
                    part, table["column"], table["ids"], table["predictions"], table["scores"]
                )
                part.replace(database)
            written.append(database)
    return written


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _make_folder(terms: ServedGate) -> Iterator[Path]:
    """Where a candidate's files are: beside the champion, which is scored later, or nowhere for long."""
    if terms.champion is None:
        sweep_left(Path(tempfile.gettempdir()), "dpflow-candidate-.{8}")
        with tempfile.TemporaryDirectory(prefix="dpflow-candidate-") as folder:
            yield Path(folder)
        return
    kept = terms.champion.with_name(f"{terms.champion.stem}.candidates")
    make_private_folder(kept)
    sweep_left(kept, f"{_PART}.{{8}}")
    yield kept
