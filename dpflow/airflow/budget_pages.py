"""The plugin: the budget page inside Airflow, in the navigation and beside DAGs, runs and tasks, and the
listener that notes runs which released nothing.

Every Airflow process imports this file, so it imports no page: `PageApplication` does at the first
request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from dpflow.airflow import run_listener
from dpflow.airflow.links import ROUTE, make_page_path


class PageApplication:
    """The page as an ASGI application, imported when it is first asked."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if self._app is None:
            # In a thread: it takes a second, and other pages go on.
            self._app = await asyncio.to_thread(self._import_page)
        await self._app(scope, receive, send)

    @staticmethod
    def _import_page() -> Any:
        from dpflow.airflow.page_access import create_page

        return create_page()


def _make_view(name: str, destination: str, query: str = "", **more: str) -> dict[str, str]:
    href = make_page_path(f"releases?{query}" if query else "")
    # Each has a route of its own: Airflow leaves out what has another's.
    return {
        "name": name, "href": href, "destination": destination, "url_route": f"dpflow-{destination.replace('_', '-')}", **more
    }  # fmt: skip


class BudgetPagePlugin(AirflowPlugin):
    """The page for who may see plugins; rows of the DAGs that they may read."""

    name = "dpflow"
    # Airflow replaces {DAG_ID} and the others, and quotes what it puts there.
    fastapi_apps = [{"app": PageApplication(), "url_prefix": ROUTE, "name": "dpflow budgets"}]  # noqa: RUF012
    listeners = [run_listener]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        _make_view("Privacy budgets", "nav", category="browse"),
        _make_view("Privacy", "dag", "dag_id={DAG_ID}"),
        _make_view("Privacy", "dag_run", "dag_id={DAG_ID}&run_id={RUN_ID}"),
        _make_view("Privacy", "task", "dag_id={DAG_ID}&task_id={TASK_ID}"),
        _make_view("Privacy", "task_instance", "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}"),
    ]
