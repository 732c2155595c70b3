"""What a URI of MLflow names: a logged model, a registered version or a part of a run, and its skops file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from dpflow.errors import InvalidInput, NotPublished
from dpflow.extras import require_extra

URI_FORMS = "models:/name/version, models:/name@alias, models:/m-id or runs:/id/path"
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})")
_REGISTERED = re.compile(r"models:/([^/@]+)(?:/([0-9]{1,9})|@([^/]+))")
_RUN = re.compile(r"runs:/([^/]+)/(.+)")
#: Codes of MLflow's errors that say that there is no such thing; of an alias it says the second.
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


@dataclass(frozen=True)
class MlflowModel:
    """What a URI names.

    Attributes:
        locations: folders or files that its files are in.
        version: the registered version, as MLflow describes it; None if the URI names none.
        model_id: the logged model; "" if the URI names none.
        run_id: the run that made it, or that the URI names; "" if there is none.
        tags: of what the URI names.
    """

    locations: tuple[str, ...]
    version: Any = None
    model_id: str = ""
    run_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def replace_tags(self, client: Any, tags: Mapping[str, str], owned: Collection[str]) -> None:
        """Set tags of what the URI names, and remove all others of the names that are ``owned``."""
        stale = [name for name in owned if name in self.tags and name not in tags]
        if self.version is not None:
            at = self.version.name, self.version.version
            for name, text in tags.items():
                client.set_model_version_tag(*at, name, text)
            for name in stale:
                client.delete_model_version_tag(*at, name)
        elif self.model_id:
            client.set_logged_model_tags(self.model_id, dict(tags))
            for name in stale:
                client.delete_logged_model_tag(self.model_id, name)
        else:
            for name, text in tags.items():
                client.set_tag(self.run_id, name, text)
            for name in stale:
                client.delete_tag(self.run_id, name)


@contextmanager
def registry_in_reach() -> Iterator[None]:
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


def open_client(tracking_uri: str | None) -> Any:
    """A client of MLflow; MLFLOW_TRACKING_URI says where if nothing else does."""
    with require_extra("gate", "a registered model"):
        from mlflow import MlflowClient

    with registry_in_reach():
        return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def find_model(client: Any, uri: str) -> MlflowModel:
    """What a URI names.

    Raises:
        InvalidInput: it is no URI of a model, or MLflow has none there.
        NotPublished: MLflow does not answer; a retry helps.
    """
    from mlflow.exceptions import MlflowException

    # Other errors than that there is no such thing are those of a registry out of reach.
    with registry_in_reach():
        try:
            return _find_model(client, uri)
        except MlflowException as error:
            if error.error_code not in _MISSING:
                raise
    raise InvalidInput(f"MLflow has no {uri}; log or register it, or correct the URI")


def _find_model(client: Any, uri: str) -> MlflowModel:
    if logged := _LOGGED.fullmatch(uri):
        model = client.get_logged_model(logged[1])
        run_id, tags = model.source_run_id or "", dict(model.tags)
        return MlflowModel((model.artifact_location,), None, logged[1], run_id, tags)
    if registered := _REGISTERED.fullmatch(uri):
        name, number, alias = registered.groups()
        version = (
            client.get_model_version(name, number)
            if number
            else client.get_model_version_by_alias(name, alias)
        )
        location = client.get_model_version_download_uri(name, version.version)
        # Registered by its URI, where the server did not look it up.
        inner = _LOGGED.fullmatch(location) or _RUN.fullmatch(location)
        locations = _find_model(client, location).locations if inner else (location,)
        return MlflowModel(locations, version, run_id=version.run_id or "", tags=version.tags)
    if part := _RUN.fullmatch(uri):
        return _find_part(client, *part.groups())
    raise InvalidInput(f"{uri!r} is no model; write {URI_FORMS}")


def _find_part(client: Any, run_id: str, path: str) -> MlflowModel:
    """A path among a run's artefacts, or in a model that the run logged under the first part of it."""
    run = client.get_run(run_id)
    name, _, inner = path.partition("/")
    outputs = run.outputs.model_outputs if run.outputs else ()
    logged = [client.get_logged_model(output.model_id) for output in outputs]
    folders = [model.artifact_location for model in logged if model.name == name]
    within = [f"{folder}/{inner}" if inner else folder for folder in folders]
    at = f"{run.info.artifact_uri}/{path}", *within
    return MlflowModel(at, run_id=run_id, tags=run.data.tags)


def name_version(uri: str, tracking_uri: str | None) -> str:
    """The URI of the version that an alias points at, which moves; any other URI as it is. Raises as `find_model`."""
    registered = _REGISTERED.fullmatch(uri)
    if registered is None or registered[3] is None:
        return uri
    version = find_model(open_client(tracking_uri), uri).version
    return f"models:/{version.name}/{version.version}"


def find_file(uri: str, tracking_uri: str | None) -> Path:
    """The skops file of what a URI names. Raises as `find_model`, and `InvalidInput` unless exactly
    one such file is in reach.
    """
    locations = [
        urlparse(location) for location in find_model(open_client(tracking_uri), uri).locations
    ]
    # An artifact store elsewhere would have to be downloaded by code that this gate does not check.
    if elsewhere := [at.scheme for at in locations if at.scheme not in ("", "file")]:
        raise InvalidInput(
            f"the files of {uri} are in a store that a gate does not open ({elsewhere[0]}:); download them and submit "
            f"the skops file by its path, as file"
        )
    files = [file for at in locations for file in _list_files(Path(unquote(at.path)))]
    if not files:
        raise InvalidInput(
            f"{uri} holds no skops file; log the model by mlflow.sklearn.log_model(model, name=..., "
            f"serialization_format='skops'), trees and forests with skops_trusted_types=['sklearn.tree._tree.Tree'], too"
        )
    if len(files) > 1:
        raise InvalidInput(
            f"{uri} holds {len(files)} skops files; submit the right one by its path, as file"
        )
    return files[0]


def _list_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.skops"))
