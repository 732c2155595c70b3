"""MLflow behind a server: a real one that DPFLOW_TEST_MLFLOW names (with proxied artefacts), or its refusals and store in process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import mlflow
import pytest
from made_once import make_registry
from mlflow.store.artifact import artifact_repository_registry as stores
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

SERVER = "http://mlflow.test"
KINDS = ["like a server", pytest.param("server", marks=pytest.mark.integration)]


def stand_server(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tracking URI of an empty experiment ``dpflow`` whose files only a server reaches."""
    if kind == "server":
        if not (uri := os.environ.get("DPFLOW_TEST_MLFLOW")):
            pytest.skip("DPFLOW_TEST_MLFLOW names no running `mlflow server`")
        return uri
    local = make_registry(folder)

    class Proxied(mlflow.MlflowClient):  # type: ignore[misc]
        def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None):
            assert tracking_uri == registry_uri == SERVER
            super().__init__(local, local)

        def create_model_version(
            self, name: str, source: str, run_id: str | None = None, **more: Any
        ) -> Any:
            """As a server since MLflow 3.17: of its own store only, and only with the owner."""
            scheme, model_id = urlparse(source).scheme, more.get("model_id")
            roots = [self.get_run(run_id).info.artifact_uri, f"runs:/{run_id}"] if run_id else []
            roots += [f"models:/{model_id}"] if model_id else []
            owned = any(source.startswith(root) for root in roots)
            if not (owned or (scheme == "models" and "m-" not in source)):
                raise mlflow.exceptions.RestException(
                    {"error_code": "INVALID_PARAMETER_VALUE", "message": f"Invalid: '{source}'"}
                )
            return super().create_model_version(name, source, run_id, **more)

    def open_store(uri: str, **_: Any) -> LocalArtifactRepository:
        place = folder / "kept" / urlparse(uri).path.lstrip("/")
        return LocalArtifactRepository(str(place))

    monkeypatch.setitem(
        stores._artifact_repository_registry._registry, "mlflow-artifacts", open_store
    )
    monkeypatch.setattr(mlflow, "MlflowClient", Proxied)
    Proxied(SERVER, SERVER).create_experiment("dpflow", "mlflow-artifacts:/dpflow")
    return SERVER
