"""Reads DAG files into jobs that `dpflow.engine.planning.simulate` can forecast: no scheduler, no
database, no task is run.

A DAG file is imported, as Airflow's own parser does. Its runs come from its timetable, from its
start date (or a given one) to its end date, as if nothing had been skipped. Templates of `release`,
`blocks` and `session` are rendered for each run with what a run's date determines, its run id and
the DAG's params; a template that needs more is an error that says so.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.engine.planning.simulate import Job, PlannedRelease, Run, Task
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS, ScopeFilters
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.extras import require_extra
from dpflow.tables.access.spill import spill_folder

if TYPE_CHECKING:
    from dpflow.airflow.run_values import RunValues
    from dpflow.ledger import Ledger

Context = Mapping[str, Any]
#: Queries of one task whose plans are kept.
_MOST_QUERIES = 1000


def read_dags(
    path: Path,
    *,
    start: dt.datetime | None = None,
    every: dt.timedelta | None = None,
    filters: ScopeFilters = UNKNOWN_FILTERS,
) -> tuple[list[Job], set[Path]]:
    """The DAGs of a file or folder that charge anything, and the release files they read.

    Args:
        start: the first date to plan, for every DAG; by default a DAG's own start date, else now.
        every: how often to assume a DAG runs that has no timetable; by default once.
        filters: say which noise a query's scope can hold.

    Raises:
        InvalidInput: a file that cannot be imported, a template that planning cannot render.
    """
    # Before the import, at which Airflow makes its home directory.
    _use_temporary_home()
    with require_extra("airflow", "a folder of DAGs"):
        try:
            from airflow.dag_processing.dagbag import DagBag
        except ModuleNotFoundError:  # Airflow 3.1, or none
            from airflow.models.dagbag import DagBag

    from dpflow.airflow.run_names import find_zone, list_runs
    from dpflow.airflow.run_values import RunValues

    # DAG files import their neighbours, as under Airflow.
    folder = str(path if path.is_dir() else path.parent)
    sys.path.insert(0, folder)
    try:
        # What files print is no part of a plan; import errors are raised below.
        with contextlib.redirect_stdout(sys.stderr):
            bag = DagBag(path, load_op_links=False)
    finally:
        sys.path.remove(folder)
    for file, trace in bag.import_errors.items():
        lines = [line for line in trace.strip().splitlines() if line.strip()]
        # The last line that names an error: what follows it is the message.
        first = max(
            (
                i
                for i, line in enumerate(lines)
                if re.match(r"[\w.]+(Error|Exception|NotFound)\b", line)
            ),
            default=-1,
        )
        raise InvalidInput(
            f"{file} cannot be read as a DAG file: {' '.join(lines[first:])}; correct it, or try: python {file}"
        )
    files: set[Path] = set()
    jobs = []
    for dag in bag.dags.values():
        values = RunValues(dag)
        find_runs = functools.partial(list_runs, dag, start, every)
        read = (_read_task(operator, files, filters, values, find_runs) for operator in dag.tasks)
        tasks = tuple(task for task in read if task)
        if tasks:
            runs, cadence = find_runs()
            about = dag.dag_id, dag.dag_id, cadence, tasks, runs, bool(dag.catchup)
            jobs.append(Job(*about, find_zone(dag)))
    return sorted(jobs, key=lambda job: job.name), files


def _use_temporary_home() -> None:
    """Keep Airflow from making a home directory and from logging, where nobody configured it."""
    if (
        "airflow" not in sys.modules
        and "AIRFLOW_HOME" not in os.environ
        and not Path("~/airflow/airflow.cfg").expanduser().exists()
    ):
        stack = contextlib.ExitStack()
        os.environ["AIRFLOW_HOME"] = str(stack.enter_context(spill_folder()))
        atexit.register(stack.close)
    # Defaults only: what an owner configured stays.
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")


# --- tasks ------------------------------------------------------------------------------------------------------------


def _read_task(
    operator: Any,
    files: set[Path],
    filters: ScopeFilters,
    values: RunValues,
    find_runs: Callable[[], tuple[Callable[[], Iterator[Run]], str]] | None = None,
) -> Task | None:
    """What a task asks for; None if it charges nothing.

    Args:
        find_runs: of its DAG, as `list_runs`: a service plans the first one of a task that asks it.

    Raises:
        UnknownValue: in a run, what the task is mapped over is not known now.
    """
    # A mapped operator names its class, and the field belongs to the class.
    field = getattr(getattr(operator, "operator_class", type(operator)), "request_field", None)
    if field is None:
        return None
    from dpflow.airflow.service_plans import describe_service_cost

    instances, note = _read_arguments(operator, field, values)
    # A table's own contract is not charged, and a session of a service's own was when that started.
    is_free = field in ("contract", "session") and not note
    if is_free and all(not given.get(field) for given, _ in instances):
        return None
    if note_of_service := describe_service_cost(operator, find_runs, values):
        return Task(operator.task_id, lambda run: [], note_of_service)
    dag, folder = values.dag, Path(values.dag.fileloc).absolute().parent
    makers = []
    for arguments, map_index in instances:
        if field == "sql":
            make = _query_maker(dag, operator, arguments, folder, filters)
        else:
            maker = (
                functools.partial(_contract_maker, filters)
                if field == "contract"
                else _request_maker
            )
            make = maker(dag, operator, arguments.get(field), arguments, folder, files)
        makers.append((make, map_index))

    def list_asks(run: Run) -> list[PlannedRelease]:
        return [
            ask
            for make, map_index in makers
            for ask in make(values.make_context(run.variables, operator, map_index))
        ]

    return Task(operator.task_id, list_asks, note)


def list_downstream(
    operator: Any, context: Context, filters: ScopeFilters
) -> tuple[list[tuple[str, PlannedRelease]], dict[str, str]]:
    """What the tasks below a running task ask for in its run, by task id; and by task id why nobody
    can know now what a task asks for.

    Raises:
        PlanRefused: nothing below charges.
    """
    from dpflow.airflow.run_values import RunValues, UnknownValue

    upstream = {task.task_id for task in operator.get_flat_relatives(upstream=True)}
    values = RunValues(context["dag"], context["ti"], upstream)
    run = Run(dt.datetime.now(dt.UTC), "", context)
    asks, unknown, charges = list[tuple[str, PlannedRelease]](), dict[str, str](), False
    for below in operator.get_flat_relatives(upstream=False):
        try:
            task = _read_task(below, set(), filters, values)
            if task is not None:
                charges = True
                asks += [(task.name, ask) for ask in task.asks(run)]
        except UnknownValue as reason:
            unknown[below.task_id] = str(reason)
    if not charges and not unknown:
        raise PlanRefused(
            f"{operator.task_id!r} cannot tell what this run will spend: no task downstream releases; name "
            "them in releases"
        )
    return asks, unknown


def list_task_plans(operator: Any, context: Context, ledger: Ledger) -> list[str]:
    """A line for each release that a running task asks for: its cost, and whether its run paid it before.

    Raises `PlanRefused` as the task itself would.
    """
    from dpflow.airflow.run_values import RunValues
    from dpflow.airflow.task_context import identify_run
    from dpflow.engine.planning.precheck import PlanInRun, is_paid
    from dpflow.engine.releases.make_plan import make_plan
    from dpflow.engine.releases.release_list import describe_charge
    from dpflow.registry import Registry

    registry, lines = Registry.load(), []
    task = _read_task(operator, set(), ScopeFilters(ledger), RunValues(context["dag"]))
    for ask in [] if task is None else task.asks(Run(dt.datetime.now(dt.UTC), "", context)):
        request = ask.request.model_copy(update={"blocks": ask.blocks})
        run = identify_run(context, ask.blocks)
        plan = make_plan(request, registry, ledger, run, assume_bounds=True)
        asked = PlanInRun(plan, operator.task_id, ask.ordinal)
        lines.append(describe_charge(plan, is_paid=is_paid(asked, ledger, run)))
    return lines


def _read_arguments(
    operator: Any, field: str, values: RunValues
) -> tuple[list[tuple[dict[str, Any], int]], str]:
    """The arguments of each task instance with its map index, as far as they are known, and what is
    not: in a run that raises `UnknownValue` instead.
    """
    from dpflow.airflow.run_values import UnknownValue, plain_value
    from dpflow.airflow.task_query import QUERY_FIELDS

    names = QUERY_FIELDS if field == "sql" else (field, "blocks", "ordinal")
    expand = getattr(operator, "expand_input", None)
    fields = set(operator.template_fields)

    def fill(arguments: Mapping[str, Any], map_index: int) -> dict[str, Any]:
        return {
            name: values.substitute(operator, value, map_index)
            if name in fields
            else plain_value(value)
            for name, value in arguments.items()
            if name in names
        }

    if expand is not None:
        fixed = dict(operator.partial_kwargs)
        try:
            rows = values.expand(operator, expand)
            # A decorated function's instances; of a contract the table may stand alone.
            if field != "contract" and not all(field in fixed | row for row in rows):
                raise UnknownValue("its function says what it releases when it runs")
            return [(fill(fixed | row, n), n) for n, row in enumerate(rows)], ""
        except UnknownValue:
            if values.instance is not None:
                raise
        return _assume_instance(fixed, expand.value, field, "mapped over what only a run knows")
    arguments = {name: getattr(operator, name, None) for name in names}
    # Blocks that were given stay given, whatever their template makes of them.
    if not operator.names_blocks:
        del arguments["blocks"]
    try:
        return [(fill(arguments, n), n) for n in values.count_instances(operator)], ""
    except UnknownValue:
        if values.instance is not None:
            raise
    in_group = operator.get_closest_mapped_task_group() is not None
    place = "in a mapped task group" if in_group else "takes what only a run knows"
    return _assume_instance(arguments, {}, field, place)


def _assume_instance(
    arguments: Mapping[str, Any], mapped: Any, field: str, place: str
) -> tuple[list[tuple[dict[str, Any], int]], str]:
    """One instance that stands for all of a task, where no task has run, and what is not known.

    Args:
        mapped: values by argument, or something that holds arguments.
    """
    from dpflow.airflow.run_values import has_references

    unknown = {name for name, value in arguments.items() if has_references(value)}
    unknown |= set(mapped) if isinstance(mapped, Mapping) else set()
    known = {name: value for name, value in arguments.items() if name not in unknown}
    if "blocks" in unknown:
        # A stand-in that differs from run to run, as the real blocks would.
        known["blocks"] = ["some block of {{ run_id }}"]
    # Whatever else a run decides about a query may change what it charges.
    any_argument = unknown - {"blocks"} or not isinstance(mapped, Mapping)
    if field not in known or (field == "sql" and any_argument):
        return [], f"{place}: privacy cost unknown"
    return [(known, -1)], f"{place}: each instance charges this"


def _request_maker(
    dag: Any,
    operator: Any,
    release: Any,
    arguments: Mapping[str, Any],
    folder: Path,
    files: set[Path],
) -> Callable[[Context], list[PlannedRelease]]:
    """A function from a run's context to what one task instance asks for. What no template changes
    is parsed once.
    """
    # Not at the top: Airflow must not be imported before `_use_temporary_home` was called.
    from dpflow.airflow.task_context import NOT_GIVEN, list_releases, read_request
    from dpflow.engine.releases.release_list import number_equal

    environment = dag.get_template_env()
    fill_release, is_constant = _argument_filler("release", release, environment, operator)
    fill_blocks = _blocks_filler(arguments, environment, operator)
    first_ordinal = int(arguments.get("ordinal") or 0)

    def parse_requests(context: Context) -> list[ReleaseRequest]:
        releases = list_releases(fill_release(context))
        files.update((folder / name).resolve() for name in releases if isinstance(name, str))
        with _name_task(dag, operator):
            return [read_request(release, NOT_GIVEN, folder) for release in releases]

    # One request object for all runs: the forecast plans each object once.
    constant = parse_requests({}) if is_constant else None

    def make_requests(context: Context) -> list[PlannedRelease]:
        requests = constant if constant is not None else parse_requests(context)
        blocks = fill_blocks(context)
        read = [request.blocks if blocks is None else blocks for request in requests]
        ordinals = number_equal(
            [request.model_copy(update={"blocks": own}) for request, own in zip(requests, read)]
        )
        return [
            PlannedRelease(request, own, first_ordinal + ordinal)
            for request, own, ordinal in zip(requests, read, ordinals)
        ]

    return make_requests


def _contract_maker(
    filters: ScopeFilters,
    dag: Any,
    operator: Any,
    contract: Any,
    arguments: Mapping[str, Any],
    folder: Path,
    files: set[Path],
) -> Callable[[Context], list[PlannedRelease]]:
    """As `_request_maker`, for a data contract: what its mode charges in a run.

    Args:
        filters: as in the run, for the shares of the checks depend on them; their ledger says which sessions alarms have
            closed.
    """
    from dpflow.quality.contract_file import join_name, load_contract, parse_contract
    from dpflow.quality.contract_run import list_requests, session_lister

    environment = dag.get_template_env()
    fill_contract, _ = _template_filler(contract, environment, operator)
    fill_blocks = _blocks_filler(arguments, environment, operator)
    # One request object for all runs that ask for the same: the forecast plans each object once.
    requests: dict[str, list[ReleaseRequest]] = {}
    listers: dict[str, Callable[[Sequence[str]], list[ReleaseRequest]]] = {}

    def make_requests(context: Context) -> list[PlannedRelease]:
        filled, blocks = fill_contract(context), fill_blocks(context) or ()
        with _name_task(dag, operator):
            if isinstance(filled, str):
                files.add((folder / filled).resolve())
                read = load_contract(folder / filled)
            elif filled:
                read = parse_contract(filled, folder)
            else:
                return []
            if read.mode == "watch":
                name = f"{read!r}"
                if name not in listers:
                    listers[name] = session_lister(read, filters.ledger)
                listed = [
                    requests.setdefault(f"{one!r}", [one])[0] for one in listers[name](blocks)
                ]
                return [PlannedRelease(session, session.blocks) for session in listed]
        if read.mode != "metered":
            return []
        listed = requests.setdefault(
            f"{read!r}", [one for one, _ in list_requests(read, (), filters)]
        )
        return [
            PlannedRelease(request, blocks, n, join_name([request.name, ",".join(blocks)], blocks))
            for n, request in enumerate(listed)
        ]

    return make_requests


def _query_maker(
    dag: Any,
    operator: Any,
    arguments: Mapping[str, Any],
    folder: Path,
    filters: ScopeFilters,
) -> Callable[[Context], list[PlannedRelease]]:
    """As `_request_maker`, for a query: the releases that answer it in a run."""
    # Not at the top: Airflow must not be imported before `_use_temporary_home` was called.
    from dpflow.airflow.task_query import plan_query
    from dpflow.registry import Registry

    environment, registry = dag.get_template_env(), Registry.load()
    fields = dict(arguments)
    if str(fields["sql"]).endswith(".sql"):
        fields["sql"], _, _ = environment.loader.get_source(environment, fields["sql"])
    query = {name: fields.get(name) for name in ("sql", "parameters")}
    fill, _ = _argument_filler("sql", query, environment, operator)
    fill_blocks = _blocks_filler(fields, environment, operator)
    # The same request objects for all runs that ask the same: the forecast plans each object once.
    requests: dict[str, list[ReleaseRequest]] = {}

    def make_requests(context: Context) -> list[PlannedRelease]:
        filled, blocks = fill(context), fill_blocks(context)
        text = repr((filled["sql"], filled["parameters"]))
        if text not in requests:
            # A query that names its blocks differs from run to run, and runs may have no end.
            if len(requests) >= _MOST_QUERIES:
                requests.clear()
            with _name_task(dag, operator):
                plan = plan_query(
                    {**fields, **filled, "blocks": blocks}, folder, registry, None, filters
                )
            requests[text] = [part.plan.request for part in plan.parts]
        ordinal = int(fields.get("ordinal") or 0)
        return [
            PlannedRelease(request, request.blocks if blocks is None else blocks, ordinal)
            for request in requests[text]
        ]

    return make_requests


@contextlib.contextmanager
def _name_task(dag: Any, operator: Any) -> Iterator[None]:
    """Say which task a mistake is in, and what else it may be where the task does not say who answers it."""
    try:
        yield
    except InvalidInput as error:
        fields = getattr(operator, "partial_kwargs", None) or vars(operator)
        is_open = fields.get("ledger_conn_id") is None
        hint = "; if a service answers it, give that as AIRFLOW_CONN_DPFLOW" if is_open else ""
        raise InvalidInput(f"task {dag.dag_id}.{operator.task_id}: {error}{hint}") from None


def _blocks_filler(
    arguments: Mapping[str, Any], environment: Any, operator: Any
) -> Callable[[Context], tuple[str, ...] | None]:
    """A function from a run's context to the blocks that a task names; None if it names none."""
    from dpflow.airflow.task_context import read_blocks

    if "blocks" not in arguments:
        return lambda context: None
    fill, _ = _argument_filler("blocks", arguments["blocks"], environment, operator)
    return lambda context: read_blocks(fill(context))


def _argument_filler(
    field: str, value: Any, environment: Any, operator: Any
) -> tuple[Callable[[Context], Any], bool]:
    """As `_template_filler`, of an argument; its days must have a time zone, as in the run."""
    from dpflow.airflow.run_names import require_zone

    fill, is_constant = _template_filler(value, environment, operator)

    def fill_argument(context: Context) -> Any:
        try:
            require_zone(context, lambda one: {field: fill(one)})
        except InvalidInput as error:
            raise InvalidInput(f"task {operator.dag_id}.{operator.task_id}: {error}") from None
        return fill(context)

    return (fill if is_constant else fill_argument), is_constant


def _template_filler(
    value: Any, environment: Any, operator: Any
) -> tuple[Callable[[Context], Any], bool]:
    """A function that fills in a context, and whether it gives the same whatever the context."""
    import jinja2

    from dpflow.airflow.run_values import ResolvedValue, UnknownValue

    if isinstance(value, str) and ("{{" in value or "{%" in value):
        template = environment.from_string(value)

        def fill_template(context: Context) -> Any:
            try:
                return template.render(context)
            except jinja2.UndefinedError as error:
                raise UnknownValue(
                    f"task {operator.task_id!r} uses a template that planning cannot fill in ({error.message}); only dates, "
                    "run_id and params are known before a run"
                ) from None

        return fill_template, False
    if isinstance(value, Mapping):
        parts = {key: _template_filler(part, environment, operator) for key, part in value.items()}
        return lambda context: {key: part(context) for key, (part, _) in parts.items()}, all(
            s for _, s in parts.values()
        )
    if isinstance(value, ResolvedValue):
        return lambda context: value.value, True
    if isinstance(value, list | tuple):
        items = [_template_filler(part, environment, operator) for part in value]
        return lambda context: [part(context) for part, _ in items], all(same for _, same in items)
    return lambda context: value, True
