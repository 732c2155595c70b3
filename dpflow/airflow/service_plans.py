"""What tasks that ask a service would be charged there, before any of them runs: the service plans, and nobody here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpflow.airflow.open_service import open_service
from dpflow.airflow.task_context import AirflowException
from dpflow.catalogue import is_table_name
from dpflow.errors import AccessRefused, DpflowError, InvalidInput, ServiceUnavailable

if TYPE_CHECKING:
    from dpflow.airflow.run_values import RunValues
    from dpflow.engine.planning.simulate import Run


def describe_service_cost(
    operator: Any,
    find_runs: Callable[[], tuple[Callable[[], Iterator[Run]], str]] | None,
    values: RunValues,
) -> str:
    """The cost of a task at its service in its first run, or that it is unknown, in a sentence; "" for a task that
    works beside the ledger.

    Args:
        find_runs: of its DAG, as `dpflow.airflow.run_names.list_runs`; None in a run.

    Raises:
        UnknownValue: in a run, since another ledger pays.
        InvalidInput: the service refuses the request.
    """
    from dpflow.airflow.run_values import UnknownValue

    kind = getattr(operator, "operator_class", type(operator))
    # Only a `ServiceTask` has it.
    if not hasattr(kind, "costless_fields"):
        return ""
    fields: Mapping[str, Any] = getattr(operator, "partial_kwargs", None) or vars(operator)
    try:
        client = open_service(
            operator.task_id, fields.get("service_conn_id"), fields.get("ledger_conn_id")
        )
    except InvalidInput as error:
        client, reason = None, str(error)
    else:
        if client is None and (find_runs is None or not _names_service(kind, fields, values)):
            return ""
        reason = "it names what only a service has; make the connection dpflow"
    if find_runs is None:
        raise UnknownValue("it asks a service, whose ledger pays")
    if client is None:
        return f"privacy cost unknown: {reason}"
    try:
        run = next(find_runs()[0](), None)
        lines = [] if run is None else _ask_plans(operator, run, values)
    except (UnknownValue, ServiceUnavailable, AccessRefused) as error:
        return f"privacy cost unknown: {error}"
    except DpflowError as error:
        raise InvalidInput(f"task {values.dag.dag_id}.{operator.task_id}: {error}") from None
    return (
        f"the first run at {client.server}: {'; '.join(lines)}. Later runs are not forecast there"
    )


def _names_service(kind: type, fields: Mapping[str, Any], values: RunValues) -> bool:
    """Whether a request is a name that only a service can know."""
    name = fields.get(str(getattr(kind, "request_field", "")))
    folder = Path(values.dag.fileloc).absolute().parent
    return isinstance(name, str) and is_table_name(name) and not (folder / name).exists()


def _ask_plans(operator: Any, run: Run, values: RunValues) -> list[str]:
    """What the service says of every instance of a task in a run. Raises `UnknownValue` where only a run knows."""
    from dpflow.airflow.run_values import UnknownValue, has_references

    is_mapped = hasattr(operator, "expand_input")
    instances = [operator]
    if is_mapped:
        rows = values.expand(operator, operator.expand_input)
        instances = [operator.unmap(row) for row in rows]
    lines = []
    for number, instance in enumerate(instances):
        names = [name for name in instance.template_fields if name not in instance.costless_fields]
        if any(has_references(getattr(instance, name)) for name in names):
            raise UnknownValue("it takes what only a run knows")
        task = instance.prepare_for_execution()
        task.template_fields = names
        view = SimpleNamespace(
            dag_id=values.dag.dag_id,
            task_id=task.task_id,
            run_id=run.variables["run_id"],
            map_index=number if is_mapped else -1,
        )
        context = {**run.variables, "ti": view, "task_instance": view, "task": task}
        try:
            task.render_template_fields(context, values.dag.get_template_env())
        except AirflowException:
            raise UnknownValue("it takes what only a run knows") from None
        lines += task.list_plans(context)
    return lines
