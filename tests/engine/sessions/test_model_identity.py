"""A model is known by what it is made of: saved again it is the same one, with one number changed another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dpflow.engine.sessions.candidate import Candidate, Submission, load_candidate
from dpflow.engine.sessions.model_identity import digest_model
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("sklearn")
import skops.io
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, PolynomialFeatures, StandardScaler

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 3))
LABEL = (ROWS[:, 0] > 0) * 1
MODELS = [
    LogisticRegression(),
    SGDClassifier(random_state=0),
    GaussianNB(),
    RandomForestClassifier(3, random_state=0),
    AdaBoostClassifier(n_estimators=2, random_state=0),
    make_pipeline(SimpleImputer(), StandardScaler(), PolynomialFeatures(2), Ridge()),
    make_pipeline(KBinsDiscretizer(3, encode="ordinal"), LogisticRegression()),
]


def _save(model: Any, folder: Path, name: str, **more: Any) -> Candidate:
    """A candidate from a file of its own."""
    file = folder / f"{name}.skops"
    skops.io.dump(model, file)
    fields = {"name": name, "file": file, "label": "label", "features": ("a", "b", "c")}
    return load_candidate(Submission.model_validate(fields | more))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_model_that_is_saved_again_is_the_same_candidate(model: Any, tmp_path: Path) -> None:
    """Also as a second model, and after it was loaded: files differ, and the model does not."""
    model.fit(ROWS, LABEL)
    first, second = _save(model, tmp_path, "first"), _save(model, tmp_path, "second")
    files = [tmp_path / "first.skops", tmp_path / "second.skops"]
    assert files[0].read_bytes() != files[1].read_bytes()
    assert first.digest == second.digest
    trusted = skops.io.get_untrusted_types(file=files[0])
    loaded = skops.io.load(files[0], trusted=trusted)
    assert _save(loaded, tmp_path, "third").digest == first.digest
    rivals = [_save(model, tmp_path, "rival", estimator="difference", rival=file) for file in files]
    assert rivals[0].digest == rivals[1].digest != first.digest


def test_one_changed_number_makes_another_candidate(tmp_path: Path) -> None:
    """The last bit of a coefficient, a threshold of one tree's node, a parameter, a class label."""
    linear = LogisticRegression().fit(ROWS, LABEL)
    forest = RandomForestClassifier(3, random_state=0).fit(ROWS, LABEL)
    digests = [_save(linear, tmp_path, "linear").digest, _save(forest, tmp_path, "forest").digest]
    linear.coef_[0, 1] = np.nextafter(linear.coef_[0, 1], 9)
    digests.append(_save(linear, tmp_path, "linear").digest)
    linear.classes_ = linear.classes_ + 1
    digests.append(_save(linear, tmp_path, "linear").digest)
    linear.C = 2.0
    digests.append(_save(linear, tmp_path, "linear").digest)
    forest.estimators_[1].tree_.threshold[0] += 1
    digests.append(_save(forest, tmp_path, "forest").digest)
    assert len(set(digests)) == 6


def test_parts_are_told_apart_by_kind_and_shape_and_not_by_place_in_memory() -> None:
    """No two of different values share a digest; an array's order in memory and a dictionary's are none."""
    numbers = np.arange(6.0)
    values: list[Any] = [
        1, True, 1.0, "1", b"1", None, "None", [1], (1,), {1}, {1: 1}, [[1], []], [[], [1]], [1, 1],
        np.float64(1), np.float32(1), np.array(1), np.array([1.0]), numbers.reshape(2, 3),
        numbers.reshape(3, 2), np.array(["1"]), np.array(["1"], dtype=object), 0.0, -0.0, float,
        np.dtype(float), {"a": "b"}, {"b": "a"}, ["a", "b"], ["ab"], ["a", ["b"]],
    ]  # fmt: skip
    assert len({digest_model(value) for value in values}) == len(values)
    matrix = numbers.reshape(2, 3)
    assert digest_model(matrix) == digest_model(np.asfortranarray(matrix))
    assert digest_model({"a": 1, "b": 2}) == digest_model({"b": 2, "a": 1})
    # Between the fields of a record are bytes that nobody wrote.
    padded = np.dtype({"names": ["a"], "formats": ["u1"], "itemsize": 4})
    records = [np.frombuffer(bytes([1, *rest]), dtype=padded) for rest in ([0, 0, 0], [9, 9, 9])]
    assert digest_model(records[0]) == digest_model(records[1])


def test_parts_without_end_are_refused_and_many_references_cost_one_visit() -> None:
    """A list in itself has no digest; forty lists of two references each have one at once."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="too deep in each other"):
        digest_model(endless)
    doubled: list[Any] = []
    for _ in range(40):
        doubled = [doubled, doubled]
    assert len(digest_model(doubled)) == 32
