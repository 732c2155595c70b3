"""A table of points in, a table of private answers out, by a service."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpflow.client.remote import RemoteClient
from dpflow.core.contract.point_encoding import key_text
from dpflow.engine.prediction.batch import Points
from dpflow.engine.releases.request import Publish
from dpflow.tables import check_answers, publish_answers, read_points


def label_points_remotely(
    client: RemoteClient,
    points: Points,
    answers: Publish,
    interval: dt.datetime | None = None,
) -> tuple[str, dict[str, Any]]:
    """Answer every point of a table of this machine, and write the answers here. A retry is free and writes the same.

    Args:
        interval: the start of the run's interval, as of `publish_answers`.

    Returns: the session's name, and what `dpflow.engine.prediction.batch.label_points` returns.

    Raises:
        SessionClosed: more new points than predictions are left; those before are answered and stored.
        InvalidInput: points that do not fit the declaration.
        TableError, NotPublished: as for a release.
    """
    check_answers(answers.database, answers.table)
    session = client.show_session()
    features = session["features"]
    columns = read_points(
        points.database, points.table, [feature["name"] for feature in features], points.key
    )
    keys = columns.pop("").tolist()
    values = [list_values(feature, columns[feature["name"]]) for feature in features]
    labels, clamped, left = client.predict([list(point) for point in zip(*values, strict=True)])
    publish_answers(answers.database, answers.table, session["session_id"], keys, labels, interval)
    return session["name"], {
        "session_id": session["session_id"],
        "points": len(keys),
        "clamped": clamped,
        "predictions_left": session["predictions_left"] if left is None else left,
        "published": f"{answers.database.name}:{answers.table}",
    }


def list_values(feature: Mapping[str, Any], column: Any) -> list[Any]:
    """A column's values as JSON that the service encodes to the same integers; None where one is missing.

    Args:
        feature: of a session's ``features``.
        column: an array, perhaps masked.
    """
    hidden, array = np.ma.getmaskarray(column), np.ma.getdata(column)
    if feature["public_keys"] is not None:
        return [None if no else key_text(value) for no, value in zip(hidden, array.tolist())]
    if array.dtype.kind == "M":
        # Days since 1970, as rows have dates.
        hidden = hidden | np.isnat(array)
        array = array.astype("datetime64[us]").astype(np.float64) / 86_400_000_000
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    return [None if no or value != value else value for no, value in zip(hidden, array.tolist())]
