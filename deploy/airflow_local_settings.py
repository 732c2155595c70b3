"""Airflow reads this where it starts: the scheduler imports once what tasks would import each time."""

from dpflow.airflow.preload import preload_tasks

__all__: list[str] = []
preload_tasks("skops.io", "sklearn.linear_model", "sklearn.tree", "pandas", "mlflow")
