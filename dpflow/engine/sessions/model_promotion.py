"""Moves an alias in the MLflow model registry. Imports mlflow, so it is itself imported only when a
gate promotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dpflow.core.accounting.amounts import parse_exact
from dpflow.engine.sessions.candidate import Candidate, Submission, find_version
from dpflow.engine.sessions.holdout_gate import Champion
from dpflow.errors import InvalidInput, NotPublished
from dpflow.extras import require_extra


@contextmanager
def _registry_in_reach() -> Iterator[None]:
    """Raises `NotPublished`, which is retryable, where the registry does not answer."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        kind = type(error).__name__
    else:
        return
    # Its text may hold the address with a password, so it is left out.
    raise NotPublished(
        f"the model registry could not be reached or refused ({kind}); what the gate said is stored, so submit the same "
        f"again once it is back: it costs nothing"
    )


#: What of a verdict becomes a tag of the submitted version or run.
TAGS = ("verdict", "interval", "noise", "score", "guarantee", "session", "commitment", "promotion")


def record_verdict(submission: Submission, verdict: Mapping[str, Any]) -> None:
    """Tag the registered version or the run that was submitted with the gate's verdict, and log it
    whole as the artefact ``dpflow/verdict-SESSION.json`` of its run; nothing for other candidates.

    Raises `NotPublished`, which is retryable.
    """
    if submission.model is None:
        return
    with require_extra("gate", "a registered model"):
        from mlflow import MlflowClient

    uri = submission.tracking_uri
    tags = {f"dpflow.{name}": str(verdict[name]) for name in TAGS if name in verdict}
    with _registry_in_reach():
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        run = re.fullmatch("runs:/([^/]+)/.+", submission.model)
        if run is not None:
            run_id = run.group(1)
            for name, text in tags.items():
                client.set_tag(run_id, name, text)
        else:
            version = find_version(client, submission.model)
            run_id = version.run_id or ""
            for name, text in tags.items():
                client.set_model_version_tag(version.name, version.version, name, text)
        # A version that was registered from a file has no run to keep artefacts in.
        if run_id:
            file = f"dpflow/verdict-{verdict['session'][:16]}.json"
            client.log_dict(run_id, dict(verdict), file)


class Promoter:
    """One registered model and the alias that points at its champion.

    Args:
        model: registered model name; made if missing.
        alias: e.g. ``"champion"``.
        tracking_uri: an MLflow URI such as ``sqlite:////path/mlflow.db``.
        better_by: by how much a challenger has to be better, in units of the session's metric.
    """

    def __init__(self, model: str, alias: str, tracking_uri: str, better_by: str | int = 0) -> None:
        with require_extra("gate", "a promotion"):
            from mlflow import MlflowClient

        self.model, self.alias = model, alias
        self.better_by = parse_exact("better_by", better_by)
        if self.better_by < 0:
            raise InvalidInput(f"better_by {better_by} is negative; write 0 or more")
        with _registry_in_reach():
            self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
            if not self._client.search_registered_models(filter_string=f"name = '{model}'"):
                self._client.create_registered_model(model)

    @_registry_in_reach()
    def find_champion(self) -> Champion | None:
        """The version behind the alias."""
        aliases = self._client.get_registered_model(self.model).aliases
        if self.alias not in aliases:
            return None
        return _read_champion(self._client.get_model_version(self.model, str(aliases[self.alias])))

    @_registry_in_reach()
    def find_replaced(self) -> Champion | None:
        """The version that the one behind the alias is tagged to have replaced."""
        aliases = self._client.get_registered_model(self.model).aliases
        if self.alias not in aliases:
            return None
        now = self._client.get_model_version(self.model, str(aliases[self.alias]))
        former = now.tags.get("dpflow.replaced")
        return (
            _read_champion(self._client.get_model_version(self.model, former)) if former else None
        )

    @_registry_in_reach()
    def roll_back(self, former: Champion, record: Mapping[str, str]) -> None:
        """Move the alias back; the version that falls is tagged with the session that said so."""
        standing = self.find_champion()
        self._client.set_registered_model_alias(self.model, self.alias, former.version)
        if standing is not None:
            session = record["session"]
            self._client.set_model_version_tag(
                self.model, standing.version, "dpflow.rolled_back", session
            )

    @_registry_in_reach()
    def was_promoted(self, digest: str, session: str) -> bool:
        """Whether a version of this candidate is tagged as promoted by this session."""
        version = self._find_version(digest)
        return version is not None and version.tags.get("dpflow.promoted") == session

    @_registry_in_reach()
    def promote(self, candidate: Candidate, record: Mapping[str, str]) -> None:
        """Move the alias; a retry finds its version again."""
        # Known by its digest: a retry must not register the same model a second time.
        version = self._find_version(candidate.digest)
        submission = candidate.submission
        tags = {
            "dpflow.candidate": candidate.digest,
            "dpflow.name": submission.name,
            "dpflow.claim": str(submission.claim),
            "dpflow.estimator": submission.measure,
            "dpflow.submission": submission.model_dump_json(),
            **{f"dpflow.{name}": text for name, text in record.items()},
        }
        if version is None:
            version = self._client.create_model_version(
                self.model, source=submission.source, tags=tags
            )
        else:
            for name, text in tags.items():
                self._client.set_model_version_tag(self.model, version.version, name, text)
        self._client.set_registered_model_alias(self.model, self.alias, version.version)
        # Last: a version with this tag had its turn.
        self._client.set_model_version_tag(
            self.model, version.version, "dpflow.promoted", record["session"]
        )

    def _find_version(self, digest: str) -> Any:
        """The model version of a candidate, or None."""
        for version in self._client.search_model_versions(f"name = '{self.model}'"):
            if version.tags.get("dpflow.candidate") == digest:
                return version
        return None


def _read_champion(version: Any) -> Champion:
    digest, submission = (
        version.tags.get(f"dpflow.{name}", "") for name in ("candidate", "submission")
    )
    return Champion(str(version.version), digest, submission)
