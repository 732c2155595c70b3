"""What a running task can know of the tasks below it: XComs of finished tasks upstream, and with them the
lengths of mapped tasks and mapped task groups.

A plan without a run knows only what the DAG file says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk.definitions._internal.expandinput import MappedArgument
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions._internal.types import NOTSET, ArgNotSet

from dpflow.errors import PlanRefused

#: States in which a task's XComs are final.
FINISHED = {"success", "failed", "skipped", "upstream_failed", "removed"}
#: What Airflow's context says of one task; that of another task is another one.
OWN_KEYS = (
    *(
        "inlets",
        "outlets",
        "inlet_events",
        "outlet_events",
        "task_state_store",
        "expanded_ti_count",
    ),
    *("asset_state_store", "task_instance_key_str", "task_reschedule_count", "map_index_template"),
)


class UnknownValue(PlanRefused):
    """What a task asks for depends on what is not known now."""


@dataclass(frozen=True)
class ResolvedValue:
    """A value of another task, or of a mapped group: Airflow fills in no template in it."""

    value: Any


class TaskView:
    """The ``ti`` of a task that has not started, for its templates: ids, and XComs that are known.

    Anything else that a template reads of it is undefined.
    """

    def __init__(self, values: RunValues, operator: Any, map_index: int) -> None:
        self._values = values
        self.task, self.task_id, self.map_index = operator, operator.task_id, map_index
        self.dag_id, self.run_id = values.instance.dag_id, values.instance.run_id

    def xcom_pull(
        self, task_ids: Any = None, dag_id: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As Airflow's. Raises `UnknownValue` for a task that is not finished upstream."""
        if dag_id not in (None, self.dag_id) or kwargs.get("run_id") not in (None, self.run_id):
            raise UnknownValue("it reads an XCom of another run")
        names = [task_ids] if isinstance(task_ids, str) else list(task_ids or [self.task_id])
        self._values.require_known(names)
        return self._values.instance.xcom_pull(task_ids, dag_id, *args, **kwargs)

    @property
    def _upstream_map_indexes(self) -> TaskView:
        """Where Airflow's ``XComArg`` looks up which instances of a task belong to this one."""
        return self

    def get(self, task_id: str, default: Any = None) -> Any:
        """The instance in the same mapped group; of another group all instances."""
        group = self._values.dag.get_task(task_id).get_closest_mapped_task_group()
        return self.map_index if group is self.task.get_closest_mapped_task_group() else NOTSET


class RunValues:
    """Values that are known while a task runs, or while a DAG file is read.

    Args:
        dag: the DAG.
        instance: the running task's ``ti``; None where a file is read, and no task has run.
        upstream: ids of the tasks upstream of the running task.
    """

    def __init__(self, dag: Any, instance: Any = None, upstream: Iterable[str] = ()) -> None:
        self.dag, self.instance, self._upstream = dag, instance, frozenset(upstream)

    def require_known(self, task_ids: Iterable[str]) -> None:
        """Raise `UnknownValue` unless these tasks are upstream and have finished."""
        for task_id in dict.fromkeys(task_ids):
            if task_id not in self._upstream:
                raise UnknownValue(f"it needs the XCom of {task_id!r}, which is not upstream")
            states = self.instance.get_task_states(
                dag_id=self.dag.dag_id, task_ids=[task_id], run_ids=[self.instance.run_id]
            )
            of_run = states.get(self.instance.run_id, {}).values()
            if not of_run or not all(str(state) in FINISHED for state in of_run):
                raise UnknownValue(f"it needs the XCom of {task_id!r}, which has not finished")

    def count_instances(self, operator: Any) -> Sequence[int]:
        """The map indexes of an operator: those of its mapped group, else -1. Raises `UnknownValue`."""
        group = operator.get_closest_mapped_task_group()
        return (-1,) if group is None else range(len(self.expand(operator, group._expand_input)))

    def expand(self, operator: Any, expand_input: Any, map_index: int = -1) -> list[dict[str, Any]]:
        """The arguments of each instance that an ``expand`` or ``expand_kwargs`` makes.

        Raises:
            UnknownValue: it maps over what is not known now.
        """
        mapped = expand_input.value
        if isinstance(mapped, Mapping):
            columns = [self._list_values(operator, v, map_index) for v in mapped.values()]
            return [dict(zip(mapped, row, strict=True)) for row in itertools.product(*columns)]
        rows = []
        for row in self._list_values(operator, mapped, map_index):
            if isinstance(row, ResolveMixin):
                row = self._resolve(operator, row, map_index)
            arguments = row.value if isinstance(row, ResolvedValue) else row
            if not isinstance(arguments, Mapping):
                raise UnknownValue(f"it maps over {type(arguments).__name__}, not over arguments")
            if row is not arguments:
                arguments = {name: ResolvedValue(value) for name, value in arguments.items()}
            rows.append(dict(arguments))
        return rows

    def _list_values(self, operator: Any, values: Any, map_index: int) -> list[Any]:
        """The values that one argument is mapped over, in Airflow's order."""
        resolved = isinstance(values, ResolveMixin)
        if resolved:
            values = self._resolve(operator, values, map_index).value
        if isinstance(values, Mapping):
            values = list(values.items())
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise UnknownValue(f"it maps over {type(values).__name__}, which has no length")
        return [ResolvedValue(value) for value in values] if resolved else list(values)

    def substitute(self, operator: Any, value: Any, map_index: int) -> Any:
        """A value of a template field, with those of other tasks in it as `ResolvedValue`."""
        if isinstance(value, ResolveMixin):
            return self._resolve(operator, value, map_index)
        if isinstance(value, ArgNotSet):
            raise UnknownValue("its function says what it releases when it runs")
        if isinstance(value, Mapping):
            return {k: self.substitute(operator, part, map_index) for k, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.substitute(operator, part, map_index) for part in value]
        return value

    def _resolve(self, operator: Any, value: Any, map_index: int) -> ResolvedValue:
        if isinstance(value, MappedArgument):
            of_instance = self.expand(operator, value._input)[map_index][value._key]
            is_resolved = isinstance(of_instance, ResolvedValue)
            return of_instance if is_resolved else ResolvedValue(of_instance)
        self.require_known(task.task_id for task, _ in value.iter_references())
        found = value.resolve({"ti": TaskView(self, operator, map_index)})
        # Sequences of Airflow fetch each element when it is used.
        is_lazy = isinstance(found, Sequence) and not isinstance(found, str | bytes)
        return ResolvedValue(list(found) if is_lazy else found)

    def make_context(
        self, context: Mapping[str, Any], operator: Any, map_index: int
    ) -> Mapping[str, Any]:
        """The context of an instance below, from that of the running task."""
        if self.instance is None:
            return context
        shared = {key: value for key, value in context.items() if key not in OWN_KEYS}
        view = TaskView(self, operator, map_index)
        return shared | {"ti": view, "task_instance": view, "task": operator}


def has_references(value: Any) -> bool:
    """Whether anything in a value comes from another task, a mapped group or a task's own function."""
    if isinstance(value, Mapping):
        return any(map(has_references, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_references, value))
    return isinstance(value, ResolveMixin | ArgNotSet)


def plain_value(value: Any) -> Any:
    """A value of a field without templates."""
    return value.value if isinstance(value, ResolvedValue) else value
