"""`dpflow check`: whether declarations, sources, ledger, anchor, output, extras and Airflow's connection
fit together, and what to do where they do not. Charges nothing and reads no row.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpflow.catalogue import FILE_NAME, Catalogue, find_catalogue, locate_ledger
from dpflow.cli.console import JsonOption, LedgerOption, find_ledger, show_json, show_table
from dpflow.cli.plan_schedule import Wishes, parse_date, parse_last_date, read_jobs
from dpflow.client.local import paying_scopes
from dpflow.core.contract.declaration import Table
from dpflow.engine.planning.missing_runs import check_job_runs, describe_runs
from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, InvalidInput
from dpflow.extras import DISTRIBUTION
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import check_schema
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.public_file import OLDEST_READER, storage_version

State = Literal["ok", "note", "wrong"]
#: How Airflow's connections are called in the environment, and which one operators take.
AIRFLOW_CONNECTION, LEDGER_CONNECTION = "AIRFLOW_CONN_", "dpflow_ledger"


@dataclass(frozen=True)
class ProjectFinding:
    """One thing that was looked at.

    Attributes:
        state: ``note`` is worth knowing and stops nothing; ``wrong`` will refuse something.
        text: what is true, and what to do about it.
    """

    subject: str
    state: State
    text: str


def command(
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Look for days that these DAGs planned and never released: a file or folder."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="With --runs: the first date to look at, such as 2026-01-31, by the start of a data interval."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="With --runs: the last date to look at, to its end; what is due now if left out."
        ),
    ] = None,
) -> None:
    """Say whether declarations, sources, ledger, anchor, extras and Airflow fit together; with
    --runs, days without a release.

    Charges nothing and reads no row. Exit code 1 if something will be refused, or a day is missing.
    """
    if runs is None and (since or until):
        raise InvalidInput("--since and --until say which runs to look for; add --runs DAGS")
    findings = list(
        check_project(ledger) if runs is None else check_runs(runs, ledger, since, until)
    )
    if as_json:
        show_json([vars(finding) for finding in findings])
    else:
        rows = ((f.subject, f.state, f.text) for f in findings)
        show_table("check", ("what", "state", "what is true, what to do"), rows)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def check_project(ledger: str | None) -> Iterator[ProjectFinding]:
    """Everything that is found about the project of the working directory."""
    try:
        catalogue = find_catalogue()
    except DpflowError as error:
        yield ProjectFinding("catalogue", "wrong", str(error))
        return
    if catalogue is None:
        yield ProjectFinding(
            "catalogue",
            "note",
            f"no {FILE_NAME} in this folder or above; dpflow init SOURCE makes one, and commands then need no paths",
        )
        catalogue = Catalogue()
    else:
        yield ProjectFinding("catalogue", "ok", str(catalogue.file))
    tables = dict(_load_tables(catalogue))
    for name, table in tables.items():
        yield from _check_table(name, table)
    book, findings = _open_ledger(ledger)
    yield from findings
    if book is not None:
        yield from _check_scopes(book, catalogue, tables)
    yield from _check_output(catalogue, tables)
    yield from _check_extras()
    yield from _check_airflow(ledger)


def check_runs(
    place: Path, ledger: str | None, since: str | None, until: str | None
) -> Iterator[ProjectFinding]:
    """For each DAG, and release file on a calendar, whether all runs that were due released what they
    planned.
    """
    book = find_ledger(ledger, [place])
    if book is None:
        raise InvalidInput(
            "no ledger was named, and only it knows what was released; name one with --ledger"
        )
    first, last = parse_date("--since", since), parse_last_date("--until", until)
    wishes = Wishes(None, None, None, {}, None, {}, {})
    now, registry = dt.datetime.now(dt.UTC), Registry.load()
    for job in read_jobs(place, wishes, book):
        # A release file has no date of its own to be missed.
        if not job.dag_id:
            continue
        # A date alone is a whole day of the schedule's.
        if first and since and len(since) <= 10:
            first = first.replace(tzinfo=job.zone)
        if last and until and len(until) <= 10:
            last = last.replace(tzinfo=job.zone)
        seen = check_job_runs(job, registry, book, now=now, since=first, until=last)
        subject = f"runs of {job.name}"
        if seen.unknown:
            text = f"{', '.join(seen.unknown)}: only a run knows what it releases, so it was not looked for"
            yield ProjectFinding(subject, "note", text)
        if seen.missing:
            yield ProjectFinding(
                subject,
                "wrong",
                f"of {len(seen.runs)} that were due {len(seen.missing)} are not whole: {describe_runs(seen.missing, job.zone)}; "
                f"run these dates, or clear their tasks: what has a result costs nothing again, but for dates before an edit of "
                f"the schedule's time, which are other runs",
            )
        elif seen.runs:
            yield ProjectFinding(
                subject, "ok", f"{len(seen.runs)} were due, and all released what they planned"
            )
        elif not seen.unknown:
            yield ProjectFinding(subject, "note", f"none was due ({job.cadence})")


def _load_tables(catalogue: Catalogue) -> Iterator[tuple[str, Table | DpflowError]]:
    for name in catalogue.tables:
        try:
            yield name, load_table(name, catalogue.file.parent)
        except DpflowError as error:
            yield name, error


def _check_table(name: str, table: Table | DpflowError) -> Iterator[ProjectFinding]:
    """The declaration, and whether its source has what it names."""
    subject = f"table {name}"
    if isinstance(table, DpflowError):
        yield ProjectFinding(subject, "wrong", str(table))
        return
    refusal = _refusal(partial(check_schema, table))
    if refusal is not None:
        yield ProjectFinding(subject, "wrong", refusal)
        return
    yield ProjectFinding(subject, "ok", f"protects {table.protection_text}; {table.place}")
    if table.source is None and table.database.exists() and table.database.stat().st_mode & 0o044:
        yield ProjectFinding(
            subject,
            "note",
            f"other users of this machine may read the private rows; take that away: chmod go-rwx {table.database}",
        )


def _open_ledger(ledger: str | None) -> tuple[Ledger | None, list[ProjectFinding]]:
    """The ledger if it opens under its anchor, and what is found about both."""
    opened: list[Ledger] = []

    def open_at(place: str, anchor: Path | None) -> None:
        book = Ledger(place, anchor=anchor)
        # Reading holds it against the anchor's mark.
        book.scopes()
        opened.append(book)

    try:
        place, anchor = locate_ledger(ledger)
    except InvalidInput as error:
        return _open_airflow_ledger(str(error))
    refusal = _refusal(lambda: open_at(place, anchor))
    if refusal is not None:
        return None, [ProjectFinding("ledger", "wrong", refusal)]
    book = opened[0]
    findings = [ProjectFinding("ledger", "ok", f"opens; {book!r}")]
    folder = book.anchor_folder
    if "://" not in place and folder.resolve().parent == Path(place).resolve().parent:
        text = (
            f"{folder} is beside the ledger, so a copy of the folder brings an old state back unnoticed; "
            f"keep it elsewhere"
        )
        findings.append(ProjectFinding("anchor", "note", text))
    else:
        findings.append(ProjectFinding("anchor", "ok", f"fits the ledger; {folder}"))
    return book, findings


def _open_airflow_ledger(otherwise: str) -> tuple[Ledger | None, list[ProjectFinding]]:
    """The ledger that only Airflow's connection names; without one ``otherwise`` is what is wrong."""
    variable = AIRFLOW_CONNECTION + LEDGER_CONNECTION.upper()
    opened: list[Ledger] = []
    if variable in os.environ and find_spec("airflow"):
        from dpflow.airflow.connection import LedgerHook

        # What keeps it from opening is said of the connection.
        if _refusal(lambda: opened.append(LedgerHook().get_conn())) is None:
            text = f"opens; {opened[0]!r}, which {variable} names"
            return opened[0], [ProjectFinding("ledger", "ok", text)]
    return None, [ProjectFinding("ledger", "wrong", otherwise)]


def _check_scopes(
    book: Ledger, catalogue: Catalogue, tables: dict[str, Table | DpflowError]
) -> Iterator[ProjectFinding]:
    """Whether each table has a budget, and the default scope is one."""
    names = {scope.scope: scope for scope in book.scopes()}
    if catalogue.scope is not None and catalogue.scope not in names:
        yield ProjectFinding(
            "scope",
            "wrong",
            f"{FILE_NAME} pays from scope {catalogue.scope!r}, which has no budget; dpflow ledger grant {catalogue.scope} "
            f"--epsilon 1 --delta 1e-6 --table TABLE",
        )
    for name in (name for name, scope in names.items() if scope.closed):
        yield ProjectFinding(
            f"scope {name}",
            "wrong",
            "closed: entries were lost that may have charged it; its owner grants it again, knowing what may be spent: "
            f"dpflow ledger grant {name}",
        )
    for name, table in tables.items():
        if isinstance(table, DpflowError):
            continue
        payers = paying_scopes(book, table)
        if payers:
            yield ProjectFinding(f"budget of {name}", "ok", f"paid from {', '.join(payers)}")
        else:
            yield ProjectFinding(
                f"budget of {name}",
                "wrong",
                f"no scope protects {table.protection_text}; its owner grants one: dpflow ledger grant {name} --epsilon 1 "
                f"--delta 1e-6 --table {name}",
            )
        if catalogue.scope in names and len(tables) == 1 and catalogue.scope not in payers:
            scope = names[str(catalogue.scope)]
            yield ProjectFinding(
                "scope",
                "wrong",
                f"scope {scope.scope!r} of {FILE_NAME} protects {scope.protects or 'nothing named'}, and {name} declares "
                f"{table.protection_text}; name a scope that was granted for this declaration",
            )


def _check_output(
    catalogue: Catalogue, tables: dict[str, Table | DpflowError]
) -> Iterator[ProjectFinding]:
    """Whether results can be published where the catalogue says."""
    if catalogue.output is None:
        return
    file = catalogue.output.database
    private = [t.database for t in tables.values() if isinstance(t, Table) and t.source is None]
    place = file if file.exists() else next(p for p in file.parents if p.exists())
    if file in private:
        text = f"{file} is a private file, and published results are for everybody; name another"
        yield ProjectFinding("output", "wrong", text)
    elif not os.access(place, os.W_OK):
        yield ProjectFinding(
            "output", "wrong", f"{place} cannot be written; name another file, or change who may"
        )
    else:
        text = f"{file}, table {catalogue.output.table!r}"
        version = storage_version(file)
        if version:
            text += f"; readable by DuckDB {version} and later"
        is_new = version not in ("", OLDEST_READER)
        if is_new:
            text += "; published files are made for 1.2 and later: move this one away, then write another: dpflow publish"
        yield ProjectFinding("output", "note" if is_new else "ok", text)


def _check_extras() -> Iterator[ProjectFinding]:
    """Which optional packages are here."""
    try:
        distribution = metadata.metadata(DISTRIBUTION)
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield ProjectFinding(
            "extras",
            "note",
            f"{DISTRIBUTION} is not installed as a distribution; install its wheel",
        )
        return
    missing = []
    for extra in distribution.get_all("Provides-Extra") or []:
        names = [
            r.partition(";")[0] for r in required if f"extra == '{extra}'" in r.replace('"', "'")
        ]
        if not all(map(_is_installed, names)):
            missing.append(extra)
    text = (
        "all are here"
        if not missing
        else (
            f"not here: {', '.join(missing)}; what needs one says so: pip install '{DISTRIBUTION}[NAME]'"
        )
    )
    yield ProjectFinding("extras", "ok" if not missing else "note", text)


def _is_installed(requirement: str) -> bool:
    name = requirement.strip()
    for sign in "[<>=!~ (":
        name = name.partition(sign)[0]
    # An extra that is made of others names the distribution itself.
    if name == DISTRIBUTION:
        return True
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _check_airflow(ledger: str | None) -> Iterator[ProjectFinding]:
    """Whether Airflow's connections to ledgers open, and name the same ledger; asked only where Airflow is
    set up, because asking makes it set itself up.
    """
    named = sorted(
        name.removeprefix(AIRFLOW_CONNECTION).lower()
        for name in os.environ
        if name.startswith(AIRFLOW_CONNECTION)
    )
    if not ("AIRFLOW_HOME" in os.environ or named) or not find_spec("airflow"):
        return
    try:
        location: str | None = locate_ledger(ledger)[0]
    except DpflowError:
        location = None
    for name in dict.fromkeys((LEDGER_CONNECTION, *named)):
        subject = "Airflow" if name == LEDGER_CONNECTION else f"Airflow's {name}"
        finding = _check_connection(name, subject, location)
        if finding is not None:
            yield finding


def _check_connection(name: str, subject: str, location: str | None) -> ProjectFinding | None:
    """What is found about a connection; nothing of one to something else than a ledger."""
    from dpflow.airflow.connection import LedgerHook, ledger_target

    connections: list[Any] = []
    missing = _refusal(lambda: connections.append(LedgerHook.get_connection(name)))
    if missing is not None:
        text = f"Airflow has no connection {name}; add one of type dpflow_ledger whose host is the ledger's file"
        return ProjectFinding(subject, "note", text)
    if name != LEDGER_CONNECTION and connections[0].conn_type != LedgerHook.conn_type:
        return None
    targets: list[str] = []
    refusal = _refusal(lambda: targets.append(ledger_target(connections[0])))
    if refusal is None and location is not None:
        same = targets[0] == location or Path(targets[0]).resolve() == Path(location).resolve()
        if not same:
            return ProjectFinding(
                subject,
                "wrong",
                f"its connection {name} names another ledger, and two ledgers spend one table's budget twice; "
                "name the same in both",
            )
    refusal = refusal or _refusal(lambda: LedgerHook(name).get_conn().scopes())
    if refusal is not None:
        return ProjectFinding(subject, "wrong", f"its connection {name}: {refusal}")
    which = (
        "names this ledger"
        if location
        else "opens a ledger, which no command finds by itself: set DPFLOW_LEDGER"
    )
    return ProjectFinding(subject, "ok" if location else "note", f"its connection {name} {which}")


def _refusal(action: Callable[[], Any]) -> str | None:
    """What an action refuses with, or None."""
    try:
        contain_errors(action)
    except DpflowError as error:
        return str(error)
    return None
