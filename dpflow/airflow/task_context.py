"""What a task instance is, in dpflow's words: its run identity, its request, its ledger, and how
its failures end.

Every DAG file imports this module, so it imports no engine: see `tests/airflow/test_startup.py`.
"""

from __future__ import annotations

import ast
import datetime as dt
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

try:
    from airflow.sdk.exceptions import AirflowException as AirflowException
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowSensorTimeout as AirflowSensorTimeout
    from airflow.sdk.exceptions import AirflowSkipException as AirflowSkipException
except ImportError:  # Airflow 3.1
    from airflow.exceptions import AirflowException as AirflowException
    from airflow.exceptions import AirflowFailException as AirflowFailException
    from airflow.exceptions import AirflowSensorTimeout as AirflowSensorTimeout
    from airflow.exceptions import AirflowSkipException as AirflowSkipException

try:
    from airflow.sdk.exceptions import AirflowNotFoundException as AirflowNotFoundException
except ImportError:
    from airflow.exceptions import AirflowNotFoundException as AirflowNotFoundException

from dpflow.airflow.run_names import name_run, number_instance
from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, InvalidInput

if TYPE_CHECKING:
    from dpflow.engine.releases.plan import Plan
    from dpflow.engine.releases.request import ReleaseRequest
    from dpflow.engine.releases.run_identity import RunIdentity
    from dpflow.ledger import Ledger

P = ParamSpec("P")
T = TypeVar("T")


def open_ledger(ledger_conn_id: str | None, folder: Path) -> Ledger:
    """The ledger of a task: what comes first of a named connection, the connection
    ``dpflow_ledger``, the environment's DPFLOW_LEDGER, and the nearest ``dpflow.yml``.

    Args:
        ledger_conn_id: a connection by name, and then nothing else will do; None takes the first of
            the others that there is.
        folder: that of the DAG file, from which ``dpflow.yml`` is looked for upward.

    Raises:
        InvalidInput: nobody names a ledger, or there is none at this place.
    """
    from dpflow.airflow.connection import LedgerHook

    hook = LedgerHook() if ledger_conn_id is None else LedgerHook(ledger_conn_id)
    try:
        hook.find_connection()
    except AirflowNotFoundException:
        if ledger_conn_id is None:
            return _open_named_ledger(folder)
    else:
        return hook.get_conn()
    raise InvalidInput(
        f"there is no connection {ledger_conn_id!r}; make one of type {LedgerHook.conn_type!r}, or leave "
        f"ledger_conn_id out to take {LedgerHook.default_conn_name!r}"
    )


def _open_named_ledger(folder: Path) -> Ledger:
    """The ledger of the environment or of ``dpflow.yml``; it must exist, as that of a connection."""
    from dpflow.catalogue import FILE_NAME, locate_ledger
    from dpflow.ledger import Ledger

    try:
        place, anchor = locate_ledger(None, folder)
    except InvalidInput:
        raise InvalidInput(
            f"no ledger was named: there is no connection dpflow_ledger, and no {FILE_NAME} in {folder} "
            f"or above says ledger: FILE; make one of them"
        ) from None
    if "://" not in place:
        require_lasting(Path(place), "ledger")
    if anchor is not None:
        require_lasting(anchor, "anchor")
    return Ledger(place, anchor=anchor, create=False)


def require_lasting(place: Path, subject: str) -> None:
    """Refuse to keep a file where Airflow keeps bundles of DAGs: it removes versions that no run uses any more.

    Raises `InvalidInput`.
    """
    from airflow.dag_processing.bundles.base import get_bundle_storage_root_path

    home = Path(get_bundle_storage_root_path()).resolve()
    if place.resolve().is_relative_to(home):
        raise InvalidInput(
            f"the {subject} {place.name} would be in a bundle of DAGs ({home}), which Airflow replaces and removes; write an "
            "absolute path, or root: FOLDER in dpflow.yml"
        )


def dag_folder(context: Mapping[str, Any]) -> Path:
    """The folder of the running DAG's file."""
    return Path(context["dag"].fileloc).parent


class NotGiven(Enum):
    """The default of an argument that may be left out, where empty and None are mistakes."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
#: What to do where a template made a text of a list.
LIST_AS_TEXT = (
    "a template makes one text of a list; pass a task's result itself, or set render_template_as_native_obj=True "
    "in the DAG"
)
#: What an operator's ``blocks`` may be.
Blocks = Sequence[str] | str | NotGiven


def read_blocks(blocks: Any) -> tuple[str, ...]:
    """The blocks that an argument names: one, or those of a list. Scalars become texts.

    Raises:
        InvalidInput: it names none, such as a template that renders to ``""``, ``None`` or ``[]``, or it is the
            text of a list: other blocks than the run's would be charged.
    """
    from dpflow.engine.releases.request import block_text

    is_list = isinstance(blocks, Iterable) and not isinstance(blocks, str | bytes | Mapping)
    names = list(blocks) if is_list else [blocks]
    try:
        texts = tuple(block_text(name).strip() for name in names)
    except ValueError:
        texts = ()
    if any(map(is_collection_text, texts)):
        raise InvalidInput(
            f"blocks is {str(blocks)[:80]!r} in this run, which names no block: {LIST_AS_TEXT}"
        )
    # A template makes the text None of a variable without a value.
    if not texts or not all(texts) or "None" in texts:
        raise InvalidInput(
            f"blocks is {str(blocks)[:80]!r} in this run, which names no block; correct the template, or leave "
            f"blocks out"
        )
    return texts


def is_collection_text(text: str) -> bool:
    """Whether a text is what a template makes of a list, tuple, set, mapping or iterator."""
    text = text.strip()
    if re.fullmatch(r"\[.*\]|\{.*\}|<.* object at 0x\w+>", text, re.DOTALL):
        return True
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    collections = ast.List | ast.Tuple | ast.Set | ast.Dict
    # Such as set(), dict_keys(['a']) and a sequence of mapped tasks' results.
    if isinstance(node, ast.Call):
        return not node.keywords and all(isinstance(one, collections) for one in node.args)
    return text.startswith("(") and isinstance(node, ast.Tuple)


def read_switch(name: str, value: Any) -> bool:
    """A truth value, or the text of one that a template became. Raises `InvalidInput` for anything else."""
    if isinstance(value, bool):
        return value
    texts = {"true": True, "false": False}
    if isinstance(value, str) and value.strip().lower() in texts:
        return texts[value.strip().lower()]
    raise InvalidInput(f"{name} is {str(value)[:40]!r} in this run; write true or false")


def list_releases(release: Any) -> list[Any]:
    """The releases of an operator's ``release``: one by itself, or those of a list. Raises
    `InvalidInput` for anything else, such as None from a template.
    """
    if isinstance(release, str | Mapping):
        return [release]
    if not isinstance(release, Iterable):
        raise InvalidInput(
            f"a release is a mapping, a file or a list of these, and here it is {str(release)[:80]!r}; correct the template"
        )
    return list(release)


def read_fields(
    release: Mapping[str, Any] | str, blocks: Any, folder: Path
) -> tuple[dict[str, Any], Path]:
    """The fields of the release that an operator's arguments describe, and what paths in them are
    relative to. Raises `InvalidInput` for a file that cannot be read, or blocks that name none.

    Args:
        release: the fields of a release file, or the path of one.
        blocks: the blocks to read, instead of those in ``release``; or `NOT_GIVEN`.
        folder: what paths are relative to.
    """
    from dpflow.yaml_files import load_yaml

    if isinstance(release, str):
        path = folder / release
        fields, folder = dict(load_yaml(path, "release file")), path.parent
    else:
        fields = dict(release)
        # Of a mapping they are templates, too.
        if blocks is NOT_GIVEN:
            blocks = fields.get("blocks", NOT_GIVEN)
    # The operator's blocks are those of the run; a file's are for runs outside Airflow.
    if blocks is not NOT_GIVEN:
        fields["blocks"] = read_blocks(blocks)
    return fields, folder


def read_request(release: Mapping[str, Any] | str, blocks: Any, folder: Path) -> ReleaseRequest:
    """The request that an operator's arguments describe, which are those of `read_fields`. Raises
    `InvalidInput` as that, and for fields that are no request.
    """
    from dpflow.engine.releases.request import parse_request

    fields, base = read_fields(release, blocks, folder)
    source = str(folder / release) if isinstance(release, str) else "what the task is given"
    return parse_request(fields, base, source)


def name_task_run(context: Mapping[str, Any], blocks: Collection[str] | None) -> tuple[str, int]:
    """What makes a running task's run the same run again, and the map index of its instance in there.

    It is the logical date with its data interval if the run has one, else the partition key, else the run
    of the load that brought the blocks, else the run id; of a run by hand whose param ``day`` names a day,
    that of the schedule's run of this day. Airflow changes map_index, clear_number, try number, run type and
    task-instance ids between tries, so none of them is in it.

    Args:
        blocks: those that the task reads; None where they are unknown.

    Raises:
        InvalidInput: as `dpflow.airflow.run_names.name_load`.
    """
    partition_key, instance = getattr(context["dag_run"], "partition_key", None), context["ti"]
    name = name_run(context, partition_key, instance.run_id, blocks)
    return name, number_instance(instance.map_index, context, name, blocks or ())


def find_run_interval(context: Mapping[str, Any]) -> dt.datetime | None:
    """The start of a running task's interval, in UTC and without a zone; None for a run of none."""
    from dpflow.core.contract.published_release import find_interval

    partition_key = getattr(context["dag_run"], "partition_key", None)
    name = name_run(context, partition_key, context["ti"].run_id)
    return find_interval(name, dt.datetime.now(dt.UTC).replace(tzinfo=None))


def identify_run(
    context: Mapping[str, Any], blocks: Collection[str] = (), ordinal: int = 0, part: str = ""
) -> RunIdentity:
    """The run identity of a running task, which `name_task_run` names.

    Args:
        blocks: those that the task reads.
        part: which of several releases of one task instance; each has a slot of its own.
    """
    from dpflow.engine.releases.run_identity import RunIdentity

    instance = context["ti"]
    name, map_index = name_task_run(context, blocks)
    return RunIdentity.of_task(
        instance.dag_id,
        instance.task_id,
        name,
        dag_principal(instance.dag_id),
        map_index=map_index,
        ordinal=ordinal,
        part=part,
    )


def identify_session(plan: Plan, dag_id: str) -> RunIdentity:
    """A session is opened by whatever run comes first, and known by its name; this run's DAG opens
    or asks it.
    """
    from dpflow.engine.releases.run_identity import RunIdentity

    return RunIdentity.of_request(plan.request, dag_principal(dag_id))


def dag_principal(dag_id: str) -> str:
    """Who spends, for the history."""
    return f"airflow:{dag_id}"


def push_result(operator: BaseOperator, context: Mapping[str, Any], value: Any) -> None:
    """Store now what a task returns: Airflow skips other tasks by an exception, and with that the
    task returns nothing.
    """
    if operator.do_xcom_push:
        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)


def _name_place(operator: Any, context: Mapping[str, Any], text: str) -> str:
    """The blocks that an operator's templates became, where its error does not name them, and the run's data
    interval.
    """
    blocks = _name_blocks(operator, text)
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if not hasattr(operator, "blocks") or start is None or end is None or start == end:
        return blocks and f"; this task asks for {blocks}"
    interval = f"the data interval {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
    return (
        f"; this task asks for {blocks}, and its run has {interval}"
        if blocks
        else f"; its run has {interval}"
    )


def _name_blocks(operator: Any, text: str) -> str:
    blocks = getattr(operator, "blocks", None) or ()
    names = [blocks] if isinstance(blocks, str) else list(map(str, blocks))
    if not names or all(name in text for name in names):
        return ""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"block {shown}" if len(names) == 1 else f"blocks {shown}"


def _find_context(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The context of a call of ``execute``, which Airflow passes by name."""
    return kwargs["context"] if "context" in kwargs else (*args, {})[1]


def map_failures(execute: Callable[P, T]) -> Callable[P, T]:
    """Map the errors of an operator's ``execute`` to Airflow's: what a retry cannot help fails at
    once, the rest is tried again.

    Airflow logs what a task raises, with all that led to it: so errors end here
    (`dpflow.error_boundary`). It names the task's blocks, which come from templates, and the run's interval. A
    task that is to plan only ends before it is executed.
    """

    def execute_unless_planned(*args: P.args, **kwargs: P.kwargs) -> T:
        operator: Any = args[0]
        if getattr(operator, "plan_only", False):
            operator.plan_instead(_find_context(args, kwargs))
        return execute(*args, **kwargs)

    @functools.wraps(execute)
    def call_mapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return contain_errors(
                lambda: execute_unless_planned(*args, **kwargs), passing=(AirflowException,)
            )
        except DpflowError as error:
            kind = AirflowException if error.retryable else AirflowFailException
            text = f"{type(error).__name__}: {error}"
            text += _name_place(args[0], _find_context(args, kwargs), text)
        # Outside the handler, so that it has no context.
        raise kind(text)

    return call_mapped
