"""What Airflow's provider manager reads: this file imports nothing, so that every Airflow process
starts quickly.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Provider metadata: the connection types of a ledger and of a service, links of tasks and task
    decorators."""
    return {
        "package-name": "dpflow-privacy",
        "name": "dpflow",
        "description": "Differential privacy as a workflow primitive.",
        "versions": ["0.1.0"],
        "extra-links": [
            "dpflow.airflow.links.BudgetPageLink",
            "dpflow.airflow.links.ReceiptLink",
        ],
        "task-decorators": [
            {"name": "dpflow_release", "class-name": "dpflow.airflow.decorators.release_task"},
            {"name": "dpflow_sql", "class-name": "dpflow.airflow.decorators.sql_task"},
        ],
        "connection-types": [
            {
                "connection-type": "dpflow_ledger",
                "hook-class-name": "dpflow.airflow.connection.LedgerHook",
                "hook-name": "dpflow ledger",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "PostgreSQL host, or path of the SQLite file",
                        "schema": "Database",
                    },
                    "placeholders": {"host": "/var/lib/dpflow/ledger.sqlite"},
                },
                "conn-fields": {
                    "anchor": {
                        "label": "Anchor directory (keys and high-water mark)",
                        "schema": {"type": ["string", "null"]},
                    }
                },
            },
            {
                "connection-type": "dpflow",
                "hook-class-name": "dpflow.airflow.connection.ServiceHook",
                "hook-name": "dpflow service",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "port", "extra"],
                    "relabeling": {"host": "Address", "password": "Token"},
                    "placeholders": {"host": "https://dp.example.org"},
                },
            },
        ],
    }
