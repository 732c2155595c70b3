"""What a URI of MLflow names: a logged model, a registered version or a part of a run, and its skops file."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlparse

from dpflow.errors import DpflowError, InvalidInput, NotPublished
from dpflow.extras import require_extra
from dpflow.fault_points import FaultInjected
from dpflow.yaml_files import load_yaml

URI_FORMS = "models:/name/version, models:/name@alias, models:/m-id or runs:/id/path"
#: Scheme of what a server keeps.
_KEPT = "mlflow-artifacts"
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})")
_REGISTERED = re.compile(r"models:/([^/@]+)(?:/([0-9]{1,9})|@([^/]+))")
_RUN = re.compile(r"runs:/([^/]+)/(.+)")
#: Codes of MLflow's errors that say that there is no such thing; of an alias it says the second.
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
#: Codes that no later try changes.
_FOR_GOOD = (*_MISSING, "BAD_REQUEST", "ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "NOT_FOUND")
#: How the path of a model's description ends, and what loads a model of scikit-learn.
_DESCRIPTION, _LOADER = "/MLmodel", "mlflow.sklearn"
#: The experiment whose runs keep the files of what a server registers.
EXPERIMENT = "dpflow"
#: Bytes of a file that a server keeps.
MAX_FILE = 2**30


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
    """Raises `NotPublished`, which is retryable, where the registry or its store does not answer or refuses, and
    `InvalidInput` where MLflow says no for good, or its client misses a package for the store.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except ImportError as error:
        code, kind = _FOR_GOOD[0], f"{error.name} is not installed"
    except Exception as error:
        # Stores have classes of their own; Python's, but for the system's, are faults of a program.
        is_builtin = type(error).__module__ == "builtins" and not isinstance(error, OSError)
        if is_builtin or isinstance(error, DpflowError | FaultInjected):
            raise
        # Of two who write one entry at once its database refuses the later.
        is_late = type(error.__cause__).__name__ == "IntegrityError"
        code = error.error_code if isinstance(error, MlflowException) and not is_late else ""
        kind = code or type(error).__name__
    else:
        return
    # Its text may hold the address with a password, so it is left out.
    if code in _FOR_GOOD:
        raise InvalidInput(
            f"MLflow refuses this for good ({kind}): something was deleted, or the server does not take it; mend that and "
            f"submit the same again: what was answered is stored and costs nothing"
        )
    raise NotPublished(
        f"the model registry or its store could not be reached or refused ({kind}); submit the same again once it is back: "
        f"what was answered is stored and costs nothing"
    )


@contextmanager
def suppress_missing() -> Iterator[None]:
    """Do nothing for what MLflow does not have any more."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != _MISSING[0]:
            raise


def open_client(tracking_uri: str | None) -> Any:
    """A client of MLflow; MLFLOW_TRACKING_URI says where if nothing else does."""
    with require_extra("gate", "a registered model"):
        from mlflow import MlflowClient

    with registry_in_reach():
        return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def is_server(tracking_uri: str) -> bool:
    """Whether a server stands before the registry, which takes no file that it does not keep itself."""
    return tracking_uri.startswith(("http://", "https://"))


def open_registry(model: str, tracking_uri: str) -> Any:
    """A client of a registry that has this registered model, and of a server that opens its store to it: before
    anything is charged. Raises as `registry_in_reach`.
    """
    client = open_client(tracking_uri)
    with registry_in_reach():
        if not client.search_registered_models(filter_string=_write_filter(model)):
            client.create_registered_model(model)
        if is_server(tracking_uri):
            _require_store(_find_experiment(client).artifact_location, tracking_uri)
    return client


def list_versions(client: Any, model: str) -> Any:
    """The versions of a registered model."""
    return client.search_model_versions(_write_filter(model))


def _write_filter(model: str) -> str:
    """What MLflow finds a registered model by. Raises `InvalidInput` for a name that it cannot be asked for."""
    if "'" in model and '"' in model:
        raise InvalidInput(
            f"MLflow cannot look for registered model {model}: its name has both kinds of quotation marks; give it another name"
        )
    quote = '"' if "'" in model else "'"
    return f"name = {quote}{model}{quote}"


def keep_model(client: Any, name: str, path: Path | None) -> tuple[str, str]:
    """Make a run that keeps a skops file, as ``model.skops``, or the folder of a model: its id, and the model's place."""
    run = client.create_run(_find_experiment(client).experiment_id, run_name=name)
    run_id = run.info.run_id
    if path is not None and path.is_dir():
        client.log_artifacts(run_id, str(path), "model")
    elif path is not None:
        with TemporaryDirectory() as scratch:
            file = shutil.copyfile(path, Path(scratch) / "model.skops")
            client.log_artifact(run_id, str(file), "model")
    client.update_run(run_id, status="FINISHED")
    return run_id, f"{run.info.artifact_uri}/model"


def _find_experiment(client: Any) -> Any:
    if (found := client.get_experiment_by_name(EXPERIMENT)) is not None:
        return found
    return client.get_experiment(client.create_experiment(EXPERIMENT))


def _require_store(uri: str, tracking_uri: str) -> None:
    """Raise, unless the store where a server wants files is one that this machine reaches."""
    place = urlparse(uri)
    if place.scheme not in ("", "file"):
        _list_stored(uri, tracking_uri)
        return
    folder = Path(unquote(place.path))
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise InvalidInput(
            f"the server of MLflow wants files in {folder}, which cannot be written here; start it with "
            f"--artifacts-destination, so that it takes them itself"
        )


def _list_stored(uri: str, tracking_uri: str | None) -> Any:
    from mlflow.artifacts import list_artifacts

    return list_artifacts(artifact_uri=uri, tracking_uri=tracking_uri)


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
    # MLflow takes no tag on it.
    if run.info.lifecycle_stage == "deleted":
        raise InvalidInput(
            f"run {run_id} was deleted in MLflow; restore it, or submit another model"
        )
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


def find_file(uri: str, tracking_uri: str | None, scratch: Path) -> Path:
    """The skops file of what a URI names; one that a server keeps is read into ``scratch``. Raises as `find_model`, and
    `InvalidInput` unless exactly one such file is in reach, and is what MLflow loads there.
    """
    by_path = "download it and submit the skops file by its path, as file"
    places = find_model(open_client(tracking_uri), uri).locations
    schemes = [urlparse(place).scheme for place in places]
    # Another store would have to be read by code that this gate does not check.
    if elsewhere := [scheme for scheme in schemes if scheme not in ("", "file", _KEPT)]:
        raise InvalidInput(
            f"the files of {uri} are in a store that a gate does not open ({elsewhere[0]}:); {by_path}"
        )
    paths = [Path(unquote(urlparse(place).path)) for place in places]
    if _KEPT not in schemes and not any(path.exists() for path in paths):
        raise InvalidInput(
            f"no file of {uri} is on this machine; correct the URI, or where the files are elsewhere {by_path}"
        )
    listed: list[Path | str] = []
    for place, scheme, path in zip(places, schemes, paths):
        listed += _list_kept(place, tracking_uri) if scheme == _KEPT else _list_files(path)
    described = [file for file in listed if str(file).endswith(_DESCRIPTION)]
    files = [file for file in listed if file not in described]
    if not files:
        raise InvalidInput(
            f"{uri} holds no skops file; log the model by mlflow.sklearn.log_model(model, name=..., "
            f"serialization_format='skops'), trees and forests with skops_trusted_types=['sklearn.tree._tree.Tree'], too"
        )
    if len(files) > 1:
        raise InvalidInput(
            f"{uri} holds {len(files)} skops files; submit the right one by its path, as file"
        )

    def read(file: Path | str) -> Path:
        return file if isinstance(file, Path) else _fetch(file, tracking_uri, scratch)

    (file,) = files
    folders = [str(one).removesuffix(_DESCRIPTION[1:]) for one in described]
    # Of models in a model MLflow loads the outer one.
    if around := sorted(one for one in folders if str(file).startswith(one)):
        outer = described[folders.index(around[0])]
        if not _is_loaded(read(outer), str(file).removeprefix(around[0])):
            raise InvalidInput(
                f"MLflow loads {uri} as another kind of model, of which its skops file is a part, or calls another function than "
                "predict; submit a table of its predictions, or the skops file by its path, as file"
            )
    return read(file)


def _is_loaded(description: Path, file: str) -> bool:
    """Whether a model's description says that MLflow makes the model of this file alone, by its scikit-learn flavour and
    skops, and predicts by ``predict``.
    """
    flavors = load_yaml(description, "model of MLflow").get("flavors")
    # Whoever logged it may have written anything.
    python, sklearn = (
        flavor
        if isinstance(flavors, dict) and isinstance(flavor := flavors.get(name), dict)
        else {}
        for name in ("python_function", "sklearn")
    )
    # What is loaded as a function may be told by itself.
    made_of = python.get("data", python.get("model_path", file))
    # A file may hold a pickle before its skops archive.
    is_judged = (
        python.get("loader_module", _LOADER) == _LOADER
        and python.get("predict_fn", "predict") == "predict"
        and sklearn.get("serialization_format") == "skops"
    )
    return is_judged and made_of == sklearn.get("pickled_model") == file


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted([*path.rglob("*.skops"), *path.rglob(_DESCRIPTION[1:])])


def _list_kept(place: str, tracking_uri: str | None) -> list[str]:
    """The same of a server's store: the URIs of files. Raises `InvalidInput` for one larger than `MAX_FILE`."""
    with registry_in_reach():
        folder, pattern, listed = place, ".skops", _list_stored(place, tracking_uri)
        # Of a file itself nothing is listed.
        if not listed:
            folder, _, pattern = place.rpartition("/")
            listed = [
                entry
                for entry in _list_stored(folder, tracking_uri)
                if not entry.is_dir and entry.path.rpartition("/")[2] == pattern
            ]
    files = []
    for entry in listed:
        uri = f"{folder}/{entry.path.rpartition('/')[2]}"
        if entry.is_dir:
            files += _list_kept(uri, tracking_uri)
        elif uri.endswith((pattern, _DESCRIPTION)):
            if (entry.file_size or 0) > MAX_FILE:
                raise InvalidInput(f"{uri} has more than {MAX_FILE} bytes; log a smaller model")
            files.append(uri)
    return files


@registry_in_reach()
def _fetch(uri: str, tracking_uri: str | None, scratch: Path) -> Path:
    from mlflow.artifacts import download_artifacts

    return Path(
        download_artifacts(artifact_uri=uri, tracking_uri=tracking_uri, dst_path=str(scratch))
    )
