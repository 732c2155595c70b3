"""A model that claims a score: loaded from a file, named by its digest, applied to rows one batch at a time.

A prediction must depend on its own row only; scikit-learn estimators are fixed functions after fitting, so predicting a
batch is the same as predicting row by row. Files are skops, never pickle: loading one runs no code of its author.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpflow.core.declaration import Exact, Strict
from dpflow.errors import InvalidInput

#: Beside what skops trusts by itself: scikit-learn's own compiled structures, which hold numbers only.
TRUSTED = ("sklearn.tree._tree.Tree",)


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
        """Predictions for a batch of rows, given as arrays by column."""
        matrix = np.column_stack([np.asarray(rows[name], dtype=float) for name in self.submission.features])
        return self.model.predict(matrix)


def load_candidate(submission: Submission) -> Candidate:
    """Load a model and digest it. Raises `InvalidInput` for a missing file or one that would run foreign code."""
    import skops.io

    try:
        data = submission.file.read_bytes()
    except OSError:
        raise InvalidInput(f"candidate {submission.name}: there is no readable file {submission.file}") from None
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
