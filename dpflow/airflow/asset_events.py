"""Loaded and published tables as assets of Airflow: what a task writes into the events of its outlets, and
how a DAG that they trigger reads it.

All of it is public: which blocks the DAG loads, what was asked, charged and published. No number of rows and no
released number is in an event.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow.sdk import Asset

from dpflow.airflow.run_names import EVENT_KEY, list_loads
from dpflow.airflow.task_context import AirflowFailException, name_task_run

log = logging.getLogger(__name__)


def fill_outlet_events(
    outlets: Sequence[Any], context: Mapping[str, Any], releases: Sequence[Mapping[str, Any]]
) -> None:
    """Describe what a task released in the events of its assets.

    An asset that is named as a published table, such as ``flights_daily``, gets the releases of that
    table; any other gets all of the task. Aliases are left to the DAG.

    Args:
        releases: one mapping each, of JSON values, with ``table``, the table it was published in, or None.
    """
    tables = {release["table"] for release in releases}
    for asset in outlets:
        if not isinstance(asset, Asset):
            continue
        of_asset = [r for r in releases if asset.name not in tables or r["table"] == asset.name]
        blocks = {block for release in releases for block in release["blocks"]}
        _write_event(asset, context, blocks, {"releases": of_asset})


def fill_load_events(
    outlets: Sequence[Any], context: Mapping[str, Any], table: str, blocks: Sequence[str]
) -> None:
    """Say in the events of a task's assets which blocks of which table its DAG loads."""
    for asset in outlets:
        if isinstance(asset, Asset):
            load = {"table": table, "blocks": list(blocks)}
            _write_event(asset, context, blocks, {"load": load})


def _write_event(
    asset: Asset, context: Mapping[str, Any], blocks: Collection[str], fields: Mapping[str, Any]
) -> None:
    """Add fields to an asset's event, with the task and the run that they are of."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    task, (identity, map_index) = context["ti"], name_task_run(context, blocks)
    interval = [start.isoformat(), end.isoformat()] if start and end else None
    event = context["outlet_events"][asset]
    about = {"dag": task.dag_id, "task": task.task_id, "map_index": map_index}
    written = {**about, "run": identity, "data_interval": interval, **fields}
    event.extra = {**event.extra, EVENT_KEY: written}


def read_loaded_blocks(context: Mapping[str, Any]) -> list[str]:
    """The blocks that the loads which triggered this run brought, each once and sorted. Map a task over them: Airflow
    gives a run all events that came while it was busy, and what is released is charged once for each load and block.

    Raises:
        AirflowFailException: no event names a block; no retry helps.
    """
    blocks = sorted({block for load in list_loads(context) for block in load.blocks})
    if not blocks:
        raise AirflowFailException(
            "InvalidInput: no asset event of this run says which blocks were loaded; let a load task that names blocks "
            "have the asset as an outlet, and trigger that"
        )
    return blocks


def read_releases(context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the events that triggered this run published: each release once, in the order of the
    events, with the ``dag``, ``task``, ``run`` and ``data_interval`` of who released it.

    An event without these fields, such as one that was made by hand, is left out with a warning.

    Args:
        context: that of a task, as from ``airflow.sdk.get_current_context``.

    Raises:
        AirflowFailException: no event says what was released; no retry helps.
    """
    releases: dict[str, dict[str, Any]] = {}
    bare = 0
    for events in context.get("triggering_asset_events", {}).values():
        for event in events:
            # Who may make events by hand writes what they like.
            written = _read_event(getattr(event, "extra", None))
            bare += not written
            # A task that was cleared tells of the same releases again.
            releases |= {str(release["release_id"]): release for release in written}
    if bare:
        log.warning("%d asset events do not say what was released, and are left out", bare)
    if not releases:
        raise AirflowFailException(
            "InvalidInput: no asset event of this run says what was released; let a release task have the asset as "
            "an outlet, and trigger that, instead of making an event by hand"
        )
    return list(releases.values())


def _read_event(extra: Any) -> list[dict[str, Any]]:
    """The releases of one event, each with what the event says of its run; none where it is not as
    `fill_outlet_events` writes it.
    """
    written = extra.get(EVENT_KEY) if isinstance(extra, Mapping) else None
    if not isinstance(written, Mapping):
        return []
    releases = written.get("releases")
    if not isinstance(releases, list) or not all(
        isinstance(release, Mapping) and isinstance(release.get("release_id"), str)
        for release in releases
    ):
        return []
    run = {name: written.get(name) for name in ("dag", "task", "run", "data_interval")}
    return [{**run, **release} for release in releases]
