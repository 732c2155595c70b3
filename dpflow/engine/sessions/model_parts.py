"""Whether a loaded model is made of what fitting makes, so that it reads no more than the rows it is given.

A file may hold any attribute of an object. Five kinds would break a prediction's promise:

- a tree whose node names a feature that the rows do not have: compiled code does not check, and reads
  what lies behind the row in memory, which is another row;
- a tree whose node leads to itself or to a place that there is not;
- polynomials with more columns than are computed: what was in memory before fills the others;
- classes in no order: a label is looked up in them, and the place found may be behind the last;
- an attribute in the place of a method, or an object of another kind where a tree belongs.

What is checked is all of it: every object, list and array that a model refers to.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np

#: Values that do nothing.
_PLAIN = (type(None), bool, int, float, str, bytes, np.generic, np.dtype)
#: Kinds of numpy's arrays whose elements are values: numbers and texts.
_VALUES = "biufcSUMm"
_TREE = "sklearn.tree._tree.Tree"
_TREES = "sklearn.tree._classes"
_FORESTS = "sklearn.ensemble._forest"
_POLYNOMIALS = "sklearn.preprocessing._polynomial"
_LABELS = "sklearn.preprocessing._label"
#: Compiled losses, which fitting leaves behind and no prediction calls.
_LOSSES = ("sklearn._loss._loss", "sklearn.linear_model._sgd_fast")


def find_odd_part(model: Any) -> str | None:
    """What in a model of scikit-learn is not as fitting makes it, as a path of attributes; None if
    nothing is.
    """
    # Anything can be in a file's attributes, such as a list for the number of features.
    try:
        return _walk_parts(model)
    except Exception:  # noqa: BLE001
        return "a part of the model"


def _walk_parts(model: Any) -> str | None:
    # With the parts themselves: what is no longer referred to gives its id to another.
    seen, waiting = dict[int, Any](), [("the model", model)]
    while waiting:
        path, part = waiting.pop()
        if id(part) in seen or isinstance(part, _PLAIN) or _is_number_type(part):
            continue
        seen[id(part)] = part
        if type(part).__module__ in _LOSSES:
            continue
        if type(part) is np.ndarray:
            if part.dtype == object:
                waiting.append((path, part.ravel().tolist()))
            elif part.dtype.kind not in _VALUES:
                return path
        elif type(part) in (list, tuple, set, frozenset):
            waiting += [(f"{path}[{i}]", inner) for i, inner in enumerate(part)]
        elif type(part) in (dict, OrderedDict):
            waiting.append((path, [*part, *part.values()]))
        elif type(part).__module__.startswith("sklearn.") and hasattr(part, "__dict__"):
            if (name := _find_odd_attribute(part)) is not None:
                return f"{path}.{name}"
            # A tree is whole where it belongs, and odd elsewhere.
            waiting += [
                (f"{path}.{name}", inner)
                for name, inner in vars(part).items()
                if not (name == "tree_" and type(part).__module__ == _TREES)
            ]
        else:
            return path
    return None


def _is_number_type(part: Any) -> bool:
    """A type that says what numbers are made of, such as ``numpy.float64``."""
    return isinstance(part, type) and issubclass(part, (np.generic, bool, int, float, str))


def _find_odd_attribute(part: Any) -> str | None:
    """The name of an attribute that stands for a method, or of a tree or forest that is none."""
    name: str
    for name in vars(part):
        of_class = inspect.getattr_static(type(part), name, None)
        if callable(of_class) or hasattr(of_class, "__get__"):
            return name
    if type(part).__module__ == _TREES and "tree_" in vars(part):
        return None if is_tree(part.tree_, part.n_features_in_) else "tree_"
    if type(part).__module__ == _FORESTS and "estimators_" in vars(part):
        # Forests hand rows to their trees unchecked.
        trees = part.estimators_
        fits = type(trees) is list and all(
            type(tree).__module__ == _TREES
            and is_tree(getattr(tree, "tree_", None), part.n_features_in_)
            for tree in trees
        )
        return None if fits else "estimators_"
    if type(part).__module__ == _POLYNOMIALS and "_n_out_full" in vars(part):
        return _find_odd_size(part)
    if type(part).__module__ == _LABELS and "classes_" in vars(part):
        classes = part.classes_.tolist()
        return None if all(a < b for a, b in pairwise(classes)) else "classes_"
    return None


def _find_odd_size(polynomials: Any) -> str | None:
    """Which number of columns or degree fitting would have made another."""
    fitted = type(polynomials)(**polynomials.get_params())
    fitted.fit(np.zeros((1, polynomials.n_features_in_)))
    names = ("_n_out_full", "n_output_features_", "_min_degree", "_max_degree")
    return next((n for n in names if getattr(polynomials, n) != getattr(fitted, n)), None)


def is_tree(tree: Any, features: Any) -> bool:
    """Whether this is a compiled tree on so many features, whose every node is a leaf or leads to two
    later ones.
    """
    if f"{type(tree).__module__}.{type(tree).__qualname__}" != _TREE:
        return False
    # Its arrays are as long as it says, whatever it has.
    if tree.n_features != features or not 0 < tree.node_count == tree.capacity:
        return False
    places = np.arange(tree.node_count)
    inner = tree.children_left != -1
    below = np.stack([tree.children_left, tree.children_right])[:, inner]
    return bool(
        ((below > places[inner]) & (below < tree.node_count)).all()
        and ((tree.feature[inner] >= 0) & (tree.feature[inner] < features)).all()
    )
