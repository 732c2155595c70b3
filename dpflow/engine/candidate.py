"""A model that claims a score: loaded from a file, named by its digest, applied to the rows of one group at a time.

A model must be a fixed function: if a prediction could change what the next one is, one group's rows would reach another's
score. So a file may hold estimators of listed scikit-learn modules only, and no random state. Files are skops, never
pickle: loading one runs no code of its author.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpflow.core.declaration import Exact, Strict
from dpflow.errors import InvalidInput

#: Beside what skops trusts by itself: scikit-learn's own compiled structures, which hold numbers only.
TRUSTED = ("sklearn.tree._tree.Tree",)

#: Modules whose fitted estimators are fixed functions of their input.
FIXED = (
    "sklearn.compose",
    "sklearn.ensemble",
    "sklearn.impute._base",
    "sklearn.linear_model",
    "sklearn.naive_bayes",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "sklearn.tree",
    "sklearn._loss",
    "sklearn.utils",
)
#: Except this one, whose function can be told to write into an array that the next prediction reads.
LOOSE = "sklearn.preprocessing._function_transformer"


class Submission(Strict):
    """One candidate as an analyst hands it in.

    ``file``: a scikit-learn estimator saved by skops. ``features``: numeric columns, in the order it was fitted on.
    ``label``: the column it predicts. ``claim``: the score the analyst says it has. ``estimator``: what scores it.
    """

    name: str
    file: Path
    label: str
    features: tuple[str, ...]
    claim: Exact
    estimator: str = "accuracy"


@dataclass(frozen=True)
class Candidate:
    """A loaded submission. ``digest`` covers the file, its columns, the estimator and the claim."""

    submission: Submission
    digest: str
    model: Any = field(repr=False)

    @property
    def label(self) -> str:
        """The column it predicts."""
        return self.submission.label

    def predict(self, rows: Mapping[str, Any]) -> Any:
        """Predictions for the rows of one group, given as arrays by column."""
        matrix = np.column_stack([np.asarray(rows[name], dtype=float) for name in self.submission.features])
        return self.model.predict(matrix)


def _require_fixed(submission: Submission, data: bytes) -> None:
    """Refuse a file with anything that may answer differently the next time. Raises `InvalidInput`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = set(_types(json.loads(archive.read("schema.json"))))
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise InvalidInput(f"candidate {submission.name}: {submission.file} is not a skops file") from None
    odd = {t for t in found if t.startswith("sklearn.") and not t.startswith(FIXED)}
    odd |= {t for t in found if t.startswith(("numpy.random", LOOSE))}
    if odd:
        raise InvalidInput(
            f"candidate {submission.name} holds {', '.join(sorted(odd)[:5])}, which may not be a fixed function of its input; "
            f"save a fitted estimator of scikit-learn's {', '.join(m.removeprefix('sklearn.') for m in FIXED[:-2])} modules, "
            f"with random_state an integer or None"
        )


def _types(node: Any) -> Iterator[str]:
    """Every class named in a skops schema."""
    if isinstance(node, dict):
        if "__class__" in node:
            yield f"{node.get('__module__')}.{node['__class__']}"
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _types(child)


def load_candidate(submission: Submission) -> Candidate:
    """Load a model and digest it. Raises `InvalidInput` for a missing file or one that would run foreign code."""
    import skops.io

    try:
        data = submission.file.read_bytes()
    except OSError:
        raise InvalidInput(f"candidate {submission.name}: there is no readable file {submission.file}") from None
    _require_fixed(submission, data)
    try:
        untrusted = sorted(set(skops.io.get_untrusted_types(data=data)) - set(TRUSTED))
        model = None if untrusted else skops.io.loads(data, trusted=list(TRUSTED))
    except Exception:  # noqa: BLE001  anything can be in a file that is not skops
        raise InvalidInput(f"candidate {submission.name}: {submission.file} is not a skops file") from None
    if untrusted:
        raise InvalidInput(
            f"candidate {submission.name} holds types that are not scikit-learn's or numpy's: {', '.join(untrusted[:5])}; "
            f"save an estimator made of those only"
        )
    content = submission.model_dump_json(exclude={"file", "name"}).encode()
    return Candidate(submission, hashlib.sha256(content + b"\0" + data).hexdigest(), model)
