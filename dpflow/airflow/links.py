"""Where the budget page is inside Airflow, and the links of a task to it: a worker writes them when the
task has run.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

#: Below Airflow's own address.
ROUTE = "/dpflow"


def airflow_path() -> str:
    """The path of Airflow's address, such as ``/airflow`` behind a proxy; "" for none."""
    address = conf.get("api", "base_url", fallback="") or ""
    return "".join(f"/{part}" for part in urlsplit(address).path.split("/") if part)


def make_page_path(page: str) -> str:
    """Where a page is, below Airflow's host."""
    return f"{airflow_path()}{ROUTE}/{page}"


def make_scope_path(scope: str) -> str:
    """Where the page of a scope is."""
    return make_page_path(f"scope?{urlencode({'name': scope})}")


def make_task_path(dag_id: str, run_id: str, task_id: str) -> str:
    """Where Airflow shows a task of a run, or the DAG if no run is known; whatever characters its ids
    have.
    """
    dag, run, task = (quote(part, safe="") for part in (dag_id, run_id, task_id))
    of_run = f"/runs/{run}/tasks/{task}" if run and task else ""
    return f"{airflow_path()}/dags/{dag}{of_run}"


class BudgetPageLink(BaseOperatorLink):
    """The budget page: the scope of a task that is about one, else what the task charged; all scopes where it
    charged nothing.
    """

    name = "Privacy budget"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address below Airflow's host; ids are quoted, whatever characters they have."""
        scope = getattr(operator, "scope", None)
        if isinstance(scope, str) and scope:
            return make_scope_path(scope)
        return _list_task_releases(ti_key) if _has_released(operator) else make_page_path("")


class ReceiptLink(BaseOperatorLink):
    """The receipt of a task's release; for several of them their list. No link where there is none."""

    name = "Privacy receipt"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """As `BudgetPageLink.get_link`."""
        release_id = getattr(operator, "receipt_id", None)
        if release_id is None:
            return _list_task_releases(ti_key) if _has_released(operator) else ""
        return make_page_path(f"release?{urlencode({'id': release_id})}")


def _has_released(operator: Any) -> bool:
    """Whether a task that has run noted a release (`PrivacyOperator.note_release`)."""
    return bool(getattr(operator, "_release_notes", ()))


def _list_task_releases(ti_key: Any) -> str:
    ids = {"dag_id": ti_key.dag_id, "run_id": ti_key.run_id, "task_id": ti_key.task_id}
    return make_page_path(f"releases?{urlencode(ids)}")
