"""``@task.dpflow_release`` and ``@task.dpflow_sql``: the function says what is released, the operator does it.

What a function returns is known only when it runs: plans and budget checks say so. Airflow finds both through
`dpflow.airflow.provider`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.release import ReleaseOperator
from dpflow.airflow.sql_release import SqlReleaseOperator


class _FunctionOperator(DecoratedOperator, PrivacyOperator):
    """An operator whose ``request_field`` is what a function returns."""

    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs[str(self.request_field)] = SET_DURING_EXECUTION
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )

    def execute(self, context: Any) -> Any:
        """Call the function, then execute the operator with what it returns."""
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        setattr(self, str(self.request_field), self.python_callable(*self.op_args, **kwargs))
        return DecoratedOperator.execute(self, context)


class FunctionReleaseOperator(_FunctionOperator, ReleaseOperator):
    """`ReleaseOperator` of the release, or the list of them, that a function returns."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ReleaseOperator.template_fields,
    )
    custom_operator_name = "@task.dpflow_release"


class FunctionSqlOperator(_FunctionOperator, SqlReleaseOperator):
    """`SqlReleaseOperator` of the query that a function returns."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *SqlReleaseOperator.template_fields,
    )
    custom_operator_name = "@task.dpflow_sql"


def release_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """``@task.dpflow_release``; keywords are those of `ReleaseOperator` without ``release``."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=FunctionReleaseOperator, **kwargs
    )


def sql_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """``@task.dpflow_sql``; keywords are those of `SqlReleaseOperator` without ``sql``."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=FunctionSqlOperator, **kwargs
    )
