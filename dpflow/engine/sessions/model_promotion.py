"""Moves an alias in the MLflow model registry. Imports mlflow, so it is itself imported only when a
gate promotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpflow.core.accounting.amounts import parse_exact
from dpflow.engine.sessions.candidate import Candidate, Submission
from dpflow.engine.sessions.holdout_gate import Champion
from dpflow.engine.sessions.mlflow_models import (
    MlflowModel,
    find_file,
    find_model,
    is_server,
    keep_model,
    list_versions,
    open_client,
    open_registry,
    registry_in_reach,
    suppress_missing,
)
from dpflow.errors import InvalidInput

#: What of a verdict becomes a tag of the submitted version, logged model or run.
TAGS = (
    "verdict", "outcome", "promotion", "claim", "interval", "noise", "score", "guarantee", "because",
    "session", "snapshot", "commitment",
)  # fmt: skip
#: What tags say of a version as the champion of one alias, whose name ends the tag's: other gates may judge and promote it,
#: too.
_ALIAS_TAGS = (
    "candidate", "name", "estimator", "submission", "comparison", "replaced", "judge", "promoted", "rolled_back",
)  # fmt: skip
#: Of the tag of a model that says what its alias' last champion was: there was none.
_NONE = "none"


def record_verdict(submission: Submission, verdict: Mapping[str, Any]) -> None:
    """Tag the registered version, logged model or run that was submitted with the gate's verdict, and log it
    whole as the artefact ``dpflow/verdict-SESSION.json`` of its run; nothing for other candidates.

    Raises as `registry_in_reach`.
    """
    if submission.model is None:
        return
    tags = {f"dpflow.{name}": str(verdict[name]) for name in TAGS if name in verdict}
    client = open_client(submission.tracking_uri)
    model = find_model(client, submission.model)
    with registry_in_reach():
        # Of one verdict: what only an earlier one had goes.
        model.replace_tags(client, tags, [f"dpflow.{name}" for name in TAGS])
        # A version that was registered from a file has no run to keep artefacts in, and some runs were removed.
        if model.run_id:
            file = f"dpflow/verdict-{verdict['session'][:16]}.json"
            with suppress_missing():
                client.log_dict(model.run_id, dict(verdict), file)


class Promoter:
    """One registered model and the alias that points at its champion.

    Args:
        model: registered model name; made if missing.
        alias: e.g. ``"champion"``.
        tracking_uri: an MLflow URI such as ``sqlite:////path/mlflow.db``.
        better_by: by how much a challenger has to be better, in units of the session's metric.
    """

    def __init__(self, model: str, alias: str, tracking_uri: str, better_by: str | int = 0) -> None:
        self.model, self.alias, self.tracking_uri = model, alias, tracking_uri
        self.better_by = parse_exact("better_by", better_by)
        if self.better_by < 0:
            raise InvalidInput(f"better_by {better_by} is negative; write 0 or more")
        self._client = open_registry(model, tracking_uri)

    @registry_in_reach()
    def find_champion(self) -> Champion | None:
        """The version behind the alias."""
        standing = self._find_standing()
        return None if standing is None else self._read_champion(standing)

    @registry_in_reach()
    def find_replaced(self) -> Champion | None:
        """The version that the one behind the alias is tagged to have replaced."""
        standing = self._find_standing()
        former = None if standing is None else standing.tags.get(self._tag("replaced"))
        # One that was deleted is none that comes back.
        found = next((v for v in self._list_versions() if str(v.version) == former), None)
        return None if found is None else self._read_champion(found)

    @registry_in_reach()
    def find_missing(self) -> str:
        """As `Promotes.find_missing`: a registered model may have been deleted or renamed, and was made again empty."""
        registered, history = self._client.get_registered_model(self.model), self._tag("last")
        if self.alias in registered.aliases or history in registered.tags:
            return ""
        return (
            f"{self.model} never had one of the alias {self.alias} in MLflow; bring back the registered model that had, or to begin "
            f"anew set the tag {history} of {self.model} to {_NONE}"
        )

    def _read_champion(self, version: Any) -> Champion:
        """A version as this alias knows it."""
        digest, submission = (
            version.tags.get(self._tag(name), "") for name in ("candidate", "submission")
        )
        return Champion(str(version.version), digest, submission)

    def _find_standing(self) -> Any:
        """The model version behind the alias; None before there was one. Raises `InvalidInput` where it was deleted:
        the next one would be called the first.
        """
        registered = self._client.get_registered_model(self.model)
        if (number := registered.aliases.get(self.alias)) is not None:
            version = self._client.get_model_version(self.model, str(number))
            self._finish_move(registered, version)
            return version
        history = self._tag("last")
        if (last := registered.tags.get(history, _NONE)) != _NONE:
            raise InvalidInput(
                f"{self.model} had a champion, version {last}, and nothing bears the alias {self.alias} now; give it to a version "
                f"that was promoted before, or set the model's tag {history} to {_NONE} to begin anew"
            )
        return None

    def _finish_move(self, registered: Any, version: Any) -> None:
        """Set the tags that follow a move of the alias, which may have been killed before them."""
        if self._tag("candidate") not in version.tags:
            return
        if registered.tags.get(self._tag("last")) != str(version.version):
            self._client.set_registered_model_tag(self.model, self._tag("last"), version.version)
        judge = version.tags.get(self._tag("judge"))
        if self._tag("promoted") not in version.tags and judge is not None:
            self._client.set_model_version_tag(
                self.model, version.version, self._tag("promoted"), judge
            )

    def _tag(self, name: str) -> str:
        """A tag that is about this alias; ``last``, of the registered model, is the last version that it went to."""
        return f"dpflow.{name}.{self.alias}"

    @registry_in_reach()
    def roll_back(self, former: Champion, record: Mapping[str, str], seen: Champion | None) -> bool:
        """Move the alias back; the version that falls is tagged with the session that said so."""
        if (standing := self.find_champion()) != seen:
            return False
        self._move(former.version)
        if standing is not None:
            self._client.set_model_version_tag(
                self.model, standing.version, self._tag("rolled_back"), record["session"]
            )
        return True

    @registry_in_reach()
    def was_promoted(self, digest: str, session: str) -> bool:
        """Whether a version of this candidate is tagged as promoted to this alias by this session."""
        said = {self._tag("candidate"): digest, self._tag("promoted"): session}
        return any(said.items() <= version.tags.items() for version in self._list_versions())

    @registry_in_reach()
    def promote(
        self, candidate: Candidate, record: Mapping[str, str], seen: Champion | None
    ) -> bool:
        """Move the alias to the submitted version, or to one that is made; a retry finds it again. A registry has no move that
        looks first: whoever moves its alias between look and move, some milliseconds, is overwritten.
        """
        if self.find_champion() != seen:
            return False
        submission = candidate.submission
        # Known by its digest: a retry must not register the same model a second time.
        version = self._find_submitted(submission) or self._find_version(candidate.digest)
        made: dict[str, Any] = {}
        kept = submission
        if version is None:
            made, kept = self._keep(submission)
        elif submission.file is not None and is_server(self.tracking_uri):
            kept = _by_uri(submission, f"models:/{self.model}/{version.version}")
        # The address of this very registry may hold a password, and everybody reads tags.
        here = {"tracking_uri"} if kept.tracking_uri == self.tracking_uri else None
        said = {
            "verdict": "yes",
            "outcome": "promoted",
            "candidate": candidate.digest,
            "name": submission.name,
            **({} if submission.claim is None else {"claim": str(submission.claim)}),
            "estimator": submission.measure,
            "submission": kept.model_dump_json(exclude=here),
            # The session's own tag becomes that of any other gate which judges this version.
            "judge": record["session"],
            **record,
        }
        tags = {
            self._tag(name) if name in _ALIAS_TAGS else f"dpflow.{name}": text
            for name, text in said.items()
        }
        if version is None:
            version = self._client.create_model_version(self.model, tags=tags, **made)
        else:
            owned = [*(f"dpflow.{name}" for name in TAGS), *map(self._tag, _ALIAS_TAGS)]
            MlflowModel((), version, tags=version.tags).replace_tags(self._client, tags, owned)
        self._move(str(version.version))
        # Last: a version with this tag had its turn.
        self._client.set_model_version_tag(
            self.model, version.version, self._tag("promoted"), record["session"]
        )
        return True

    def _move(self, version: str) -> None:
        self._client.set_registered_model_alias(self.model, self.alias, version)
        # Versions are deleted with their tags and aliases; this stays.
        self._client.set_registered_model_tag(self.model, self._tag("last"), version)

    def _keep(self, submission: Submission) -> tuple[dict[str, Any], Submission]:
        """Source and owner of a version that is made, and the submission as it can be scored again: a server keeps
        files of its own store only, and gets them.
        """
        if submission.model is not None and submission.tracking_uri == self.tracking_uri:
            model = find_model(self._client, submission.model)
            owner = {"model_id": model.model_id} if model.model_id else {}
            if submission.model.startswith("runs:"):
                owner = {"run_id": model.run_id}
            return {"source": submission.model, **owner}, submission
        if not is_server(self.tracking_uri):
            source = submission.source
            if submission.model is not None:
                elsewhere = open_client(submission.tracking_uri)
                source = find_model(elsewhere, submission.model).locations[0]
            return {"source": source}, submission
        with TemporaryDirectory() as scratch:
            file = submission.file
            if submission.model is not None:
                file = find_file(submission.model, submission.tracking_uri, Path(scratch))
            run_id, source = keep_model(self._client, submission.name, file)
        # Predictions stay where they are, and so does what only SQL scores.
        kept = submission if file is None else _by_uri(submission, f"runs:/{run_id}/model")
        return {"source": source, "run_id": run_id}, kept

    def _find_submitted(self, submission: Submission) -> Any:
        """The version of this registered model that was submitted, by itself or by its logged model."""
        if submission.model is None or submission.tracking_uri != self.tracking_uri:
            return None
        submitted = find_model(self._client, submission.model)
        if submitted.version is not None:
            return submitted.version if submitted.version.name == self.model else None
        return next((v for v in self._list_versions() if v.source == submission.model), None)

    def _list_versions(self) -> Any:
        return list_versions(self._client, self.model)

    def _find_version(self, digest: str) -> Any:
        """The model version that this or another alias got for a candidate, or None."""
        for version in self._list_versions():
            if any(
                text == digest and name.startswith("dpflow.candidate.")
                for name, text in version.tags.items()
            ):
                return version
        return None


def _by_uri(submission: Submission, uri: str) -> Submission:
    """A submission whose file is in the promoter's own registry."""
    return submission.model_copy(update={"file": None, "model": uri, "tracking_uri": None})
