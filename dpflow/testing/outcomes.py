"""What whoever receives a release sees, in forms that audits compare: the whole `Result`, in order.

A mechanism may leak through anything in its result: a number, its stated error, how many rows there
are, their order, a row that comes twice, the document, the synthetic table. Nothing is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from dpflow.core.contract.results import Result

Path = tuple[Hashable, ...]
Features = dict[Path, Hashable]

_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))

#: Coordinates of an audit at most: more would drown the one that leaks.
MOST = 60


def digest_outcome(result: Result) -> str:
    """A digest of everything in a result, in order; equal only for results that print the same."""
    # JSON writes 1, 1.0 and true differently, and a reader sees which one it is.
    text = _JSON.encode(result.to_json())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def list_features(result: Result, is_whole: bool = True) -> Features:
    """A result as named coordinates.

    There is one for each value and each stated error, by key, measure and occurrence; for the
    names of the rows in order; for each leaf of the document; and for synthetic rows their number,
    the sums of columns and how often each value occurs. ``("all",)`` stands for the whole, unless it is left out.
    """
    features: Features = {
        **({("all",): digest_outcome(result)} if is_whole else {}),
        ("order",): repr([(row.key, row.measure) for row in result.rows]),
        ("rows",): len(result.rows),
    }
    occurrences: Counter[tuple[str, str]] = Counter()
    for row in result.rows:
        name = row.key, row.measure
        features["row", *name, occurrences[name]] = row.value
        features["error", *name, occurrences[name]] = row.half_width_95
        occurrences[name] += 1
    features |= {("document", *path): leaf for path, leaf in _list_leaves(result.document)}
    if result.synthetic is not None:
        features["synthetic", "rows"] = len(result.synthetic.rows)
        for number, (column, _) in enumerate(result.synthetic.columns):
            values = [row[number] for row in result.synthetic.rows]
            numbers = [value for value in values if isinstance(value, int | float)]
            features["synthetic", column, "sum"] = sum(numbers)
            for value, count in Counter(values).items():
                features["synthetic", column, "value", value] = count
    return features


def choose_paths(samples: Iterable[Features]) -> list[Path]:
    """The coordinates of an audit: those that change between these results, at most `MOST`.

    A coordinate that some results lack changes, too.
    """
    listed = list(samples)
    paths = dict.fromkeys(path for features in listed for path in features)
    values = {path: {features.get(path) for features in listed} for path in paths}
    # A digest that never comes twice tells an audit nothing.
    unique = [path for path in (("all",), ("order",)) if len(values.get(path, ())) == len(listed)]
    return [path for path in paths if len(values[path]) > 1 and path not in unique][:MOST]


def make_outcome(result: Result, paths: Iterable[Path]) -> tuple[Hashable, ...]:
    """These coordinates of one result; None where it has none of that name."""
    features = list_features(result, is_whole=("all",) in paths)
    return tuple(features.get(path) for path in paths)


def _list_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Hashable]]:
    if isinstance(value, Mapping | list | tuple):
        yield (*path, "size"), len(value)
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            yield from _list_leaves(item, (*path, name))
    else:
        yield path, value
