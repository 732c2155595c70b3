"""A learned rule with scikit-learn's conventions: trained by a release, where the rows are;
predicts anywhere, at no cost.

    def release(mechanism, table, **params):
        plan = dpflow.plan(mechanism, table, name="late-by-distance", scope="flights", **params)
        return dpflow.release(plan, ledger)

    model = PrivateClassifier(release, "learn_thresholds", {"column": "distance", "label": "late",
    "epsilon": "1", ...}) model.fit("flights.yml").predict(frame)

`fit` takes a declared private table in the place of X: labels and features never come to this
process's arrays, they are charged and read inside the release. A stored result gives the same
model: ``PrivateClassifier.from_document(receipt.result.document)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: TID253  nothing imports this module at start
from sklearn.utils.validation import check_array, check_is_fitted  # noqa: TID253

from dpflow.errors import InvalidInput
from dpflow_private_learning.building_blocks.hypotheses import ColumnScale, read_rule


class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A learner mechanism as a classifier: 1 where its rule is positive, 0 elsewhere and where a
    value is missing.

    Args:
        release: pays and runs: called with the mechanism's name, the table and the parameters;
        returns a receipt.
        mechanism: a learner's name.
        params: its parameters.

    Attributes after `fit`: ``rule_``, ``sql_`` (the predicate, for DuckDB), ``document_``,
    ``classes_``, ``feature_names_in_``, ``n_features_in_``.
    """

    def __init__(
        self,
        release: Callable[..., Any] | None = None,
        mechanism: str = "learn_thresholds",
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.release = release
        self.mechanism = mechanism
        self.params = params

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PrivateClassifier:
        """The fitted model of a learner's stored document. Raises `InvalidInput` if it holds no
        hypothesis.
        """
        return cls()._load_document(document)

    def fit(self, X: Any, y: None = None) -> PrivateClassifier:
        """Release the rule from a declared private table, or the path of its declaration; charged
        once.
        """
        if self.release is None:
            raise InvalidInput("give release: the function that pays for the mechanism and runs it")
        receipt = self.release(self.mechanism, X, **dict(self.params or {}))
        return self._load_document(receipt.result.document)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 or 0 for rows of a data frame that has the columns, or of an array with the columns in
        order, in their units.

        Raises `InvalidInput` for a frame without the columns, scikit-learn's errors for arrays that
        are no such rows.
        """
        check_is_fitted(self, "rule_")
        frame, names = hasattr(X, "columns"), self.feature_names_in_.tolist()
        if frame and not set(names) <= set(X.columns):
            raise InvalidInput(f"predict needs a frame with the columns {', '.join(names)}")
        rows = (
            X
            if frame
            else check_array(
                X, dtype=None, ensure_all_finite=False, ensure_min_samples=0, estimator=self
            )
        )
        # ValueError and its wording are scikit-learn's: its estimator checks compare the message.
        if not frame and rows.shape[1] != len(names):
            raise ValueError(
                f"X has {rows.shape[1]} features, but PrivateClassifier is expecting {len(names)} features as input: "
                f"{', '.join(names)}"
            )
        cells, there = [], np.ones(len(rows), bool)
        for i, scale in enumerate(self.scales_):
            values, present = scale.grid_integers(rows[scale.name] if frame else rows[:, i])
            cells.append(values)
            there &= present
        return np.asarray(self.rule_.predict(np.column_stack(cells)) & there, np.int64)

    def _load_document(self, document: Mapping[str, Any]) -> PrivateClassifier:
        if "hypothesis" not in document or "columns" not in document:
            raise InvalidInput(
                "this document holds no hypothesis; take that of a learner's release"
            )
        self.document_ = dict(document)
        self.rule_, self.sql_ = read_rule(document["hypothesis"]), document["sql"]
        self.scales_ = [ColumnScale.from_json(one) for one in document["columns"]]
        self.feature_names_in_ = np.array([scale.name for scale in self.scales_], dtype=object)
        self.n_features_in_ = len(self.scales_)
        self.classes_ = np.array([0, 1])
        return self
