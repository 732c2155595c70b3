"""Moves an alias in the MLflow model registry. Imports mlflow, so it is itself imported only when a
gate promotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from dpflow.engine.sessions.candidate import Candidate
from dpflow.extras import require_extra


class Promoter:
    """One registered model and the alias that points at its best accepted version.

    Args:
        model: registered model name; made if missing.
        alias: e.g. ``"champion"``.
        tracking_uri: an MLflow URI such as ``sqlite:////path/mlflow.db``.
    """

    def __init__(self, model: str, alias: str, tracking_uri: str) -> None:
        with require_extra("gate", "a promotion"):
            from mlflow import MlflowClient

        self.model, self.alias = model, alias
        self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        if not self._client.search_registered_models(filter_string=f"name = '{model}'"):
            self._client.create_registered_model(model)

    def offer(self, candidate: Candidate, record: Mapping[str, str]) -> bool:
        """Promote an accepted candidate if its claim is above the promoted one's; a retry finds its
        version again.
        """
        claim = candidate.submission.claim
        version = self._find_version(candidate, record)
        current = self._read_promoted()
        # A retry finds its own version promoted already, and an equal claim moves nothing.
        if current is not None and (current[0] == version or current[1] >= claim):
            return current[0] == version
        self._client.set_registered_model_alias(self.model, self.alias, version)
        return True

    def _read_promoted(self) -> tuple[str, Fraction] | None:
        """Version and claim behind the alias."""
        aliases = self._client.get_registered_model(self.model).aliases
        if self.alias not in aliases:
            return None
        version = self._client.get_model_version(self.model, str(aliases[self.alias]))
        return str(version.version), Fraction(version.tags["dpflow.claim"])

    def _find_version(self, candidate: Candidate, record: Mapping[str, str]) -> str:
        """The model version of this candidate, made once."""
        # Known by its digest: a retry must not register the same model a second time.
        for version in self._client.search_model_versions(f"name = '{self.model}'"):
            if version.tags.get("dpflow.candidate") == candidate.digest:
                return str(version.version)
        tags = {
            "dpflow.candidate": candidate.digest,
            "dpflow.name": candidate.submission.name,
            "dpflow.claim": str(candidate.submission.claim),
            "dpflow.estimator": candidate.submission.measure,
            **{f"dpflow.{name}": text for name, text in record.items()},
        }
        source = candidate.submission.source
        return str(self._client.create_model_version(self.model, source=source, tags=tags).version)
