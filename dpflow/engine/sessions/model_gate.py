"""A gate as a program uses it: opened from its file, asked about one model at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpflow.engine.sessions.candidate import name_version
from dpflow.engine.sessions.holdout_gate import (
    IS_CHAMPION,
    Promotes,
    asks_for_champions,
    judge,
    parse_submission,
    require_gate,
    require_metrics,
)
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput

#: Fields of no use to a candidate from such a source.
_UNUSED = {"file": ("tracking_uri",), "model": (), "predictions": ("features", "tracking_uri")}


class ModelGate:
    """An open gate.

    Args:
        session: an open session (`dpflow.open_session`).
        promoter: what moves an alias on a yes; a gate that asks for champions needs one.
        defaults: fields of every submission that takes them, such as ``label``, ``features`` and
            ``tracking_uri``.
    """

    def __init__(
        self,
        session: Session,
        promoter: Promotes | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        require_gate(session.plan)
        if promoter is not None:
            require_metrics([session.plan])
        self.session, self._promoter, self._defaults = session, promoter, dict(defaults or {})

    def submit(
        self,
        model: Path | str | Mapping[str, Any],
        claim: str | float | None = None,
        *,
        name: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """The verdict on one model; the same one again is free.

        Args:
            model: a skops file, an MLflow URI (``models:/name/3``, ``runs:/id/path``), or a table of
                predictions: database, table and id.
            claim: the score that it is said to have; a gate that asks for champions takes none.
            name: what the verdict calls it; the model's own name if left out.
            fields: further ones of a submission, such as ``label`` and ``features``.

        Returns:
            what `dpflow.engine.sessions.holdout_gate.judge` does. A registered model is tagged with
            it.

        Raises:
            InvalidInput: the claim is missing, or the model cannot be read.
            NotPublished: the registry is out of reach; the verdict is stored, and a retry is free.
        """
        asks_claim = not asks_for_champions(self.session.plan)
        if asks_claim and claim is None:
            raise InvalidInput("say which score the model is claimed to have: submit(model, claim)")
        kind = _source_kind(model)
        shared = {k: v for k, v in self._defaults.items() if k not in _UNUSED[kind]}
        submission = {"name": name or _name_model(model), kind: model, **shared, **fields}
        if asks_claim:
            submission["claim"] = str(claim)
        return submit_candidate(self.session, submission, self._promoter)

    def status(self) -> dict[str, Any]:
        """What is left of it."""
        return self.session.remaining()


def submit_candidate(
    session: Session, submission: Mapping[str, Any], promoter: Promotes | None
) -> dict[str, Any]:
    """The verdict, which becomes tags of a model that came from MLflow."""
    version = None
    if submission.get("model") is not None:
        # Its verdict is that of the version which is judged, also if an alias moves meanwhile.
        version = name_version(parse_submission(session, submission, promoter))
        submission = {**submission, "model": version.model}
    verdict = judge(session, submission, promoter)
    # Of the champion itself nothing was asked: what moved the alias stays on it.
    was_asked = "commitment" in verdict or verdict.get("promotion") != IS_CHAMPION
    if version is not None and was_asked:
        from dpflow.engine.sessions.model_promotion import record_verdict

        record_verdict(version, verdict)
    return verdict


def _source_kind(model: Path | str | Mapping[str, Any]) -> str:
    if isinstance(model, Mapping):
        return "predictions"
    return "model" if str(model).startswith(("models:/", "runs:/")) else "file"


def _name_model(model: Path | str | Mapping[str, Any]) -> str:
    if isinstance(model, Mapping):
        return str(model.get("table", "predictions"))
    return str(model) if _source_kind(model) == "model" else Path(model).stem
