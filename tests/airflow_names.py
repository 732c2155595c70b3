"""What tests of operators need of Airflow, from where the installed version has it: 3.1 had not yet
moved it into its SDK.
"""

from __future__ import annotations

try:
    from airflow.dag_processing.dagbag import DagBag as DagBag
    from airflow.sdk import CronDataIntervalTimetable as CronDataIntervalTimetable
    from airflow.sdk.bases.skipmixin import SkipMixin as SkipMixin
    from airflow.sdk.exceptions import AirflowException as AirflowException
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowRescheduleException as AirflowRescheduleException
    from airflow.sdk.exceptions import DownstreamTasksSkipped as DownstreamTasksSkipped
    from airflow.sdk.exceptions import TaskDeferred as TaskDeferred
except ImportError:
    from airflow.exceptions import AirflowException as AirflowException
    from airflow.exceptions import AirflowFailException as AirflowFailException
    from airflow.exceptions import AirflowRescheduleException as AirflowRescheduleException
    from airflow.exceptions import DownstreamTasksSkipped as DownstreamTasksSkipped
    from airflow.exceptions import TaskDeferred as TaskDeferred
    from airflow.models.dagbag import DagBag as DagBag
    from airflow.providers.standard.utils.skipmixin import SkipMixin as SkipMixin
    from airflow.timetables.interval import CronDataIntervalTimetable as CronDataIntervalTimetable
