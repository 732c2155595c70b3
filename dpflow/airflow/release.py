"""`ReleaseOperator`: one differentially private release per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator

from dpflow.airflow.connection import LedgerHook
from dpflow.airflow.task_context import failures, occasion


def requested(
    release: Mapping[str, Any] | str, blocks: Sequence[str] | str | None, folder: Path
) -> Any:
    """The request an operator's arguments describe; paths are relative to the DAG file's folder."""
    from dpflow.core.contract.declaration import load_yaml
    from dpflow.engine.releases.request import parse_request

    what = "what the task is given"
    if isinstance(release, str):
        what, path = release, folder / release
        data, folder = load_yaml(path, "release file"), path.parent
    else:
        data = dict(release)
    if blocks:
        data["blocks"] = [blocks] if isinstance(blocks, str) else list(blocks)
    return parse_request(data, folder, what)


def dag_folder(context: Mapping[str, Any]) -> Path:
    """The folder of the running DAG's file."""
    return Path(context["dag"].fileloc).parent


class ReleaseOperator(BaseOperator):
    """Charge, draw, settle and publish one release, exactly once whatever Airflow retries.

    :param release: a release as a mapping, or the path of a release file relative to the DAG file
    (templated).
    :param blocks: the blocks it reads, instead of those in ``release``, e.g. ``"{{
        data_interval_start | ds }}"`` (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger``.
    :param ordinal: number among equal releases of one run, when the same one is wanted twice.
    :param spend_again: pay for a new release although this task released something else in this run
    before.

    Charges the release's scope when the task first runs; a retry, clear or backfill of the same
    interval costs nothing. Returns a receipt: release id, price, what it protects, whether it was
    replayed. Never the result.
    """

    template_fields: Sequence[str] = ("release", "blocks")
    request_field = "release"  #: the argument that says what is charged; `dpflow plan` reads it
    ui_color = "#d7e8f5"

    def __init__(
        self,
        *,
        release: Mapping[str, Any] | str,
        blocks: Sequence[str] | str | None = None,
        ledger_conn_id: str = "dpflow_ledger",
        ordinal: int = 0,
        spend_again: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.release = release
        self.blocks = blocks
        self.ledger_conn_id = ledger_conn_id
        self.ordinal = ordinal
        self.spend_again = spend_again

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the release; see the class."""
        from dpflow.engine import declared, make_plan, release
        from dpflow.registry import Registry

        with failures():
            registry, when = Registry.load(), occasion(context, self.ordinal)
            request = requested(self.release, self.blocks, dag_folder(context))
            ledger = LedgerHook(self.ledger_conn_id).get_conn()
            plan = make_plan(request, registry, declared(request, ledger, when))
            return release(
                plan, ledger, registry, occasion=when, spend_again=self.spend_again
            ).to_json()
