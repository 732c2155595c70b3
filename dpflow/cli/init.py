"""`dpflow init`: a declaration from a file's catalogue and its owner's answers, a budget, and a first
plan.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.catalogue import find_catalogue
from dpflow.cli import plan as plan_command
from dpflow.cli import proposals
from dpflow.cli.console import ConfirmOption, LedgerOption, open_ledger, show_table
from dpflow.core.accounting.amounts import exact_text, parse_exact
from dpflow.core.contract.contribution import TOUCHED
from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.choose_bounds import PROFILE
from dpflow.engine.releases.run_identity import current_principal
from dpflow.errors import InvalidDeclaration, InvalidInput, UnknownName
from dpflow.ledger import GrantProposal
from dpflow.ledger.books.grants import require_confirmation
from dpflow.tables.access.column_roles import ColumnRoles, list_columns, list_tables
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.file_list import SUFFIX, is_list
from dpflow.tables.access.local_files import require_local_place
from dpflow.tables.access.object_stores import is_object

#: One sentence for each thing that only the owner knows.
WHY = {
    "unit": "the column that says whose row it is: one guarantee protects all rows with one value in it",
    "rows": "how many rows of one of them count at most: noise grows with it, and rows above it are left out at random",
    "max_rows": "how many rows none of them exceeds, as everybody knows: what intervals of counts rest on; or none",
    "groups": "in how many groups of a column one of them can have rows: fewer mean less noise; groups above are left out at random",
    "periods": "in how many days, weeks and months one of them can have rows: fewer mean less noise; what is above is left out at random",
    "max_rows_per_group": "how many rows none of them exceeds in one group, or in a day, week and month: shorter total intervals; or none",
    "rows_per_group": "how many rows of one of them count in one group, or in one period",
    "block": "a column such as a day whose values have a budget each: then a unit's rows of one day are protected, not those of all days",
    "bounds": "the range of a number that you know without looking: values outside are clamped, and noise grows with it",
    "within_bounds": "numbers never beyond their range or off its step, as everybody knows: for total intervals of sums and means; or none",
    "dates": "the range of a column of dates that you know without looking: its months, weeks and days are the groups to be shown",
    "keys": "the groups to be shown, known without looking: a key that exists because one person has it tells on that person",
    "profile": "epsilon of a release of how many rows and groups units have, by which later releases choose their bounds; or none",
    "epsilon": "the budget: everything released together tells at most so much about one of them; 1 is a usual start",
    "delta": "the chance, for each of them, that epsilon does not hold: far below one in the number of people",
}


#: Periods of a date that an owner is asked about, and that a profile counts.
PERIODS = ("day", "week", "month")


def command(
    database: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A private DuckDB file, or a list of Parquet files; make one with dpflow load.",
        ),
    ],
    relation: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="The table or view in it, if it has several."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What dpflow calls it; the table's name if left out.")
    ] = None,
    unit: Annotated[str | None, typer.Option(help=f"COLUMN: {WHY['unit']}.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help=f"{WHY['rows']}; the number of --max-rows if left out."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, max=10**9, help=f"{WHY['max_rows']}.")
    ] = None,
    block: Annotated[str | None, typer.Option(help=f"COLUMN: {WHY['block']}.")] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            help=f"COLUMN=LOWER..UPPER or LOWER..UPPER/STEP: {WHY['bounds']}; repeatable."
        ),
    ] = None,
    within_bounds: Annotated[
        list[str] | None,
        typer.Option(
            help=f"COLUMN, with --bounds and --max-rows: {WHY['within_bounds']}; repeatable."
        ),
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option(help=f"COLUMN=KEY,KEY,...: {WHY['keys']}; repeatable.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help=f"COLUMN=NUMBER, or COLUMN:PERIOD=NUMBER of a date such as day:month=12: {WHY['groups']}; repeatable."
        ),
    ] = None,
    rows_per_group: Annotated[
        list[str] | None,
        typer.Option(help=f"As --groups: {WHY['rows_per_group']}; repeatable."),
    ] = None,
    max_rows_per_group: Annotated[
        list[str] | None,
        typer.Option(
            help=f"As --groups, with --max-rows: {WHY['max_rows_per_group']}; repeatable."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column that may be read; repeatable. All but the unit if left out."),
    ] = None,
    epsilon: Annotated[str | None, typer.Option(help=f"{WHY['epsilon']}.")] = None,
    delta: Annotated[str | None, typer.Option(help=f"{WHY['delta']}; 1e-6 if left out.")] = None,
    profile: Annotated[str | None, typer.Option(help=f"EPSILON: {WHY['profile']}.")] = None,
    grant: Annotated[
        bool, typer.Option("--grant/--no-grant", help="Give the table's scope the budget.")
    ] = True,
    first_block: Annotated[
        str | None, typer.Option(help="With --block: one block, for the first release.")
    ] = None,
    dag: Annotated[
        bool, typer.Option("--dag", help="Write an Airflow DAG that checks and releases it, too.")
    ] = False,
    confirm_large: ConfirmOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Declare a table: propose from its catalogue, ask what only its owner knows, grant, plan.

    Reads names and types, never values. Everything is asked in a terminal, or given by options.
    """
    source = _find_source(database)
    relation = _choose_table(source, relation)
    columns = {c.name: c for c in list_columns(source, relation)}
    name = proposals.require_table_name(name or relation.rpartition(".")[2])
    folder = Path()
    catalogue = find_catalogue(folder)
    declaration = folder / f"{name}.yml"
    if declaration.exists() or (catalogue and name in catalogue.tables):
        raise InvalidInput(
            f"{name!r} is declared already, in {declaration}; edit that file, or declare another: --name OTHER"
        )
    dag_file = folder / f"{name}_dag.py"
    if dag and dag_file.exists():
        raise InvalidInput(f"{dag_file} exists; move it away, or leave out --dag")
    asker = _Asker(columns, source, relation)
    proposal = asker.complete(
        name,
        unit,
        rows,
        max_rows,
        block,
        bounds or [],
        within_bounds,
        keys or [],
        groups or [],
        rows_per_group or [],
        max_rows_per_group or [],
        column,
    )
    amounts = asker.complete_budget(epsilon, delta) if grant else None
    profile = asker.complete_profile(profile, amounts)
    asker.require_answers()
    text = proposals.write_declaration(proposal, folder)
    table = _read_declaration(text, folder)
    location = ledger or (catalogue and catalogue.ledger) or proposals.LEDGER_FILE
    listing_file, listing = proposals.add_to_catalogue(folder, name, declaration, location)
    proposals.check_catalogue(listing, listing_file.parent)
    release = folder / f"{name}_first.yml"
    first = _first_release(proposal, amounts, first_block)
    profile_file = folder / f"{name}_profile.yml"
    profile_text = asker.write_profile(proposal, profile, first_block)
    # Granted first: what the ledger refuses must leave no declaration behind.
    if amounts is not None:
        _grant_budget(table, amounts, location, confirm_large)
    files = {folder / proposals.SCHEMA_FILE: proposals.schema_text()}
    files |= {declaration: text, listing_file: listing} | ({release: first} if first else {})
    files |= {profile_file: profile_text} if profile_text else {}
    if dag:
        files[dag_file] = proposals.write_dag(
            name,
            *_choose_first(proposal, amounts),
            proposal.block,
            by_day=proposal.block is not None and columns[proposal.block].kind == "DATE",
        )
    proposals.write_files(files)
    written = [str(file) for file in files if file.name != proposals.SCHEMA_FILE]
    print(f"wrote {', '.join(written)}")
    if first:
        plan_command.command(release, ledger=location)
        print(f"nothing is spent yet; release it with: dpflow release {release}")
        if profile_text:
            plan_command.command(profile_file, ledger=location)
            print(
                f"before it, so that it chooses its bounds by them: dpflow release {profile_file}"
            )
    elif proposal.block:
        print(f"budgets are per {proposal.block}, so a release names the blocks that it reads")
    if amounts is None:
        print(
            f"grant a budget with: dpflow ledger grant {name} --epsilon 1 --delta 1e-6 --table {name}"
        )


def _find_source(database: str) -> Path:
    """The file that is meant. Raises `InvalidInput` for objects of a store, which a list names."""
    if is_object(database):
        raise InvalidInput(
            f"objects of a store are read by a list of those that were verified; write it first: "
            f"dpflow load {database} --in-place, then: dpflow init NAME{SUFFIX}"
        )
    require_local_place(database, "the source")
    return Path(database)


def _choose_table(source: Path, relation: str | None) -> str:
    """The table that is meant, or `InvalidInput` with what there is."""
    if source.suffix.lower() in (".parquet", ".pq") or source.is_dir():
        raise InvalidInput(
            f"Parquet files are read by a list of those that were verified; write it first: dpflow load {source} --in-place"
        )
    if source.suffix.lower() in (".csv", ".jsonl", ".gz", ".tsv") or (
        source.suffix.lower() == ".json" and not is_list(source)
    ):
        raise InvalidInput(
            f"{source} is no private source, because one row of such a file can change how all others are read; "
            f"bring it into one first: dpflow load {source}"
        )
    names = list_tables(source)
    if relation is not None:
        if relation not in names:
            raise UnknownName(f"table in {source} called", relation, names)
        return relation
    if len(names) != 1:
        raise InvalidInput(
            f"{source} has {len(names)} tables and views; name one: dpflow init {source} "
            + (" | ".join(names[:20]) or "TABLE (load rows first)")
        )
    return names[0]


class _Asker:
    """Takes answers from options, asks for the others in a terminal, and collects those that are
    missing where nobody can be asked.
    """

    def __init__(self, columns: dict[str, ColumnRoles], source: Path, relation: str) -> None:
        self._columns, self._what = columns, f"{source}:{relation}"
        self._asks = sys.stdin.isatty() and sys.stdout.isatty()
        self._missing: list[str] = []
        if self._asks:
            rows = [(c.name, c.kind.lower()) for c in columns.values()]
            show_table(f"columns of {self._what}", ("column", "type"), rows)

    def complete(
        self,
        name: str,
        unit: str | None,
        rows: int | None,
        max_rows: int | None,
        block: str | None,
        bounds: Sequence[str],
        within_bounds: Sequence[str] | None,
        keys: Sequence[str],
        groups: Sequence[str],
        rows_per_group: Sequence[str],
        max_rows_per_group: Sequence[str],
        column: Sequence[str] | None,
    ) -> proposals.Proposal:
        """All that a declaration needs."""
        usable = [c.name for c in self._columns.values() if c.is_key]
        if not usable:
            raise InvalidInput(
                f"{self._what} has no column that can name a privacy unit; it takes a whole number, text, date, UUID, "
                f"decimal, ENUM or truth value that is the same in all rows of one person"
            )
        unit = unit or self._ask("unit", "--unit COLUMN", self._guess_unit(usable))
        if unit:
            self._require_column(unit, "privacy unit", usable)
        if max_rows is None and rows is None and self._asks:
            answer = self._ask("max_rows", "", "none", _parse_maximum)
            max_rows = _parse_maximum(str(answer))
        if rows is None and (self._asks or max_rows is None):
            option = "--rows N (or --max-rows N)"
            answer = self._ask("rows", option, str(max_rows or ""), _parse_count)
            rows = int(answer or 1)
        rows = rows or max_rows or 1
        if block is None and self._asks and any(c.is_date for c in self._columns.values()):
            block = self._ask("block", "", "none")
            block = None if block == "none" else block
        if block is not None:
            self._require_column(block, "block", usable)
        chosen = list(column or [n for n in self._columns if n not in (unit, block)])
        for one in chosen:
            self._require_column(one, "column", self._columns)
        ends = {
            c: proposals.parse_bounds(v) for c, v in self._parse_pairs("--bounds", bounds).items()
        }
        shown = {c: _parse_keys(v) for c, v in self._parse_pairs("--keys", keys).items()}
        for one in chosen:
            # The type says what there is.
            if self._columns[one].kind == "BOOLEAN":
                shown.setdefault(one, ("false", "true"))
            elif self._asks:
                self._ask_about(self._columns[one], ends, shown)
        if (within_bounds or max_rows_per_group) and not max_rows:
            raise InvalidInput(
                "--within-bounds and --max-rows-per-group say nothing without --max-rows N; add it"
            )

        def read_within(answer: str) -> Sequence[str]:
            names = () if answer == "none" else _parse_keys(answer)
            for name in names:
                self._require_column(name, "number within bounds", numbers)
            return names

        numbers = [one for one in ends if one in self._columns and not self._columns[one].is_date]
        if within_bounds is None and self._asks and max_rows and numbers:
            about = f"one of {', '.join(numbers)}"
            within_bounds = read_within(
                str(self._ask("within_bounds", "", "none", read_within, about))
            )
        within_bounds = read_within(",".join(within_bounds or ()))
        # Type and bounds are both public, and whole numbers would ruin a column of shares.
        ends = {
            c: proposals.add_step(given) if self._columns[c].is_real else given
            for c, given in ends.items()
        }
        reach = self._parse_limits("--groups", groups)
        in_each = self._parse_limits("--rows-per-group", rows_per_group)
        largest = self._parse_limits("--max-rows-per-group", max_rows_per_group)
        for one in chosen if self._asks and rows > 1 else ():
            if one not in reach and len(shown.get(one, ())) > 1:
                limit = min(len(shown[one]), rows)
                about = f"{one}, of {len(shown[one])}"
                answer = self._ask("groups", "", str(limit), _parse_count, about)
                # All of its groups are no limit, and a profile may choose one.
                if (number := _parse_count(str(answer))) < limit:
                    reach[one] = number
            elif one not in reach and self._columns[one].is_date:
                answer = self._ask("periods", "", "none", _parse_periods, one)
                if periods := _parse_periods(str(answer)):
                    reach[one] = periods
                if max_rows is not None and one not in largest:
                    answer = self._ask("max_rows_per_group", "", "none", _parse_periods, one)
                    if periods := _parse_periods(str(answer)):
                        largest[one] = periods
        chosen += [c for c in (*ends, *shown, *reach, *in_each, *largest) if c not in chosen]
        return proposals.Proposal(
            name,
            Path(self._what.rpartition(":")[0]),
            self._what.rpartition(":")[2],
            unit or "",
            rows,
            block,
            list(dict.fromkeys(chosen)),
            ends,
            shown,
            reach,
            in_each,
            max_rows,
            within_bounds,
            largest,
        )

    def _ask_about(
        self,
        column: ColumnRoles,
        bounds: dict[str, tuple[str, ...]],
        keys: dict[str, tuple[str, ...]],
    ) -> None:
        """The bounds of a number, or the public keys of another column, unless they are given."""
        if column.name in bounds or column.name in keys or not (column.is_number or column.is_key):
            return
        question = "keys" if not column.is_number else "dates" if column.is_date else "bounds"
        answer = self._ask(question, "", "none", about=f"{column.name} ({column.kind.lower()})")
        if answer in (None, "none"):
            return
        if column.is_number:
            bounds[column.name] = proposals.parse_bounds(str(answer))
        else:
            keys[column.name] = _parse_keys(str(answer))

    def complete_budget(self, epsilon: str | None, delta: str | None) -> tuple[str, str] | None:
        """Epsilon and delta."""
        epsilon = epsilon or self._ask("epsilon", "--epsilon E (or --no-grant)", "1")
        delta = delta or (self._ask("delta", "", "1e-6") if self._asks else "1e-6")
        return (epsilon, delta or "0") if epsilon else None

    def complete_profile(self, profile: str | None, amounts: tuple[str, str] | None) -> str | None:
        """Epsilon of a contribution profile, a tenth of the budget by default in a terminal; None for none."""
        if profile is None and self._asks and amounts is not None:
            tenth = exact_text(parse_exact("epsilon", amounts[0]) / 10)
            profile = self._ask("profile", "", tenth)
        return None if profile in (None, "none") else exact_text(parse_exact("profile", profile))

    def write_profile(
        self, proposal: proposals.Proposal, epsilon: str | None, first_block: str | None
    ) -> str | None:
        """The text of a release of the profile: of columns with keys, and of days, weeks and months; None
        without an epsilon, or where blocks are needed and none was named.
        """
        if epsilon is None or (proposal.block and first_block is None):
            return None
        groupings: list[str] = []
        for name in proposal.columns:
            column = self._columns[name]
            if column.is_date and re.fullmatch(r"[A-Za-z_]\w*", name):
                groupings += [f"date_trunc('{period}', {name})" for period in PERIODS]
            elif name in proposal.keys or (column.is_key and not column.is_number):
                groupings.append(name)
        params = {"epsilon": epsilon, "groupings": groupings}
        return proposals.write_release(proposal.name, PROFILE, params, first_block)

    def require_answers(self) -> None:
        """Raises `InvalidInput` with everything that nobody said, so that one more try is enough."""
        if self._missing:
            raise InvalidInput(
                f"only the owner of {self._what} knows what is missing; run it in a terminal, or add:\n"
                + "\n".join(self._missing)
                + f"\nits columns: {', '.join(f'{c.name} {c.kind}' for c in self._columns.values())}"
            )

    def _ask(
        self,
        question: str,
        option: str,
        default: str,
        check: Callable[[str], Any] | None = None,
        about: str = "",
    ) -> str | None:
        if not self._asks:
            self._missing.append(f"  {option}: {WHY[question]}")
            return None
        print(f"\n{question}{' of ' + about if about else ''}: {WHY[question]}")
        while True:
            answer = str(
                typer.prompt(
                    f"{question}{' of ' + about if about else ''}", default=default or None
                )
            )
            try:
                if check:
                    check(answer)
                elif question in ("bounds", "dates") and answer != "none":
                    proposals.parse_bounds(answer)
                return answer
            except InvalidInput as error:
                print(error)

    def _guess_unit(self, usable: Sequence[str]) -> str:
        """A default by its name alone."""
        words = (
            "person",
            "user",
            "patient",
            "customer",
            "member",
            "client",
            "account",
            "household",
            "id",
        )
        return next((n for word in words for n in usable if word in n.lower()), "")

    def _require_column(self, name: str, role: str, usable: Any) -> None:
        if name not in self._columns:
            raise UnknownName(f"column of {self._what} called", name, self._columns)
        if name not in usable:
            raise InvalidInput(
                f"column {name!r} is a {self._columns[name].kind} and cannot be a {role}; take one of {', '.join(usable)}"
            )

    def _parse_limits(self, option: str, values: Sequence[str]) -> dict[str, proposals.Limits]:
        """Numbers by column, or by column and period."""
        limits: dict[str, proposals.Limits] = {}
        for value in values:
            place, _, number = value.rpartition("=")
            name, colon, period = place.rpartition(":")
            if not colon or place in self._columns:
                limits |= {
                    c: _parse_count(n) for c, n in self._parse_pairs(option, [value]).items()
                }
                continue
            if period not in TOUCHED:
                raise UnknownName("period called", period, TOUCHED)
            self._require_column(name, "column", self._columns)
            known = limits.get(name, {})
            if isinstance(known, int):
                raise InvalidInput(
                    f"{option} gives {name} a number and periods; write either, such as {option} {name}:month=12"
                )
            limits[name] = {**known, period: _parse_count(number)}
        return limits

    def _parse_pairs(self, option: str, values: Sequence[str]) -> dict[str, str]:
        pairs = {}
        for value in values:
            name, equals, rest = value.partition("=")
            if not equals or not rest:
                raise InvalidInput(
                    f"{option} {value[:60]!r} has no COLUMN=VALUE; write it as {option} 'age=...'"
                )
            self._require_column(name, "column", self._columns)
            pairs[name] = rest
        return pairs


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise InvalidInput(
            f"{text[:40]!r} is no number of rows or groups; write a whole number, such as 4"
        )
    return int(text)


def _parse_maximum(text: str) -> int | None:
    return None if text.strip() == "none" else _parse_count(text)


def _parse_periods(text: str) -> dict[str, int]:
    """Numbers of days, weeks and months, as ``30, 20, 12``; none for ``none``."""
    if text.strip() == "none":
        return {}
    numbers = [_parse_count(part.strip()) for part in text.split(",")]
    if len(numbers) != len(PERIODS):
        raise InvalidInput("write three numbers, of days, weeks and months, such as 30, 20, 12")
    return dict(zip(PERIODS, numbers, strict=True))


def _parse_keys(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _read_declaration(text: str, folder: Path) -> Table:
    """Read it as a release will, before anything is written under its name."""
    trial = folder / ".declaration.part.yml"
    try:
        trial.write_text(text, encoding="utf-8")
        return load_table(trial)
    except OSError:
        raise InvalidInput(
            f"{folder.resolve()} cannot be written; run it in a folder of yours"
        ) from None
    except InvalidDeclaration as error:
        said = str(error).partition(": ")[2]
        raise InvalidDeclaration(
            f"these answers declare no table: {said}; give other ones, nothing was written"
        ) from None
    finally:
        trial.unlink(missing_ok=True)


def _first_release(
    proposal: proposals.Proposal, amounts: tuple[str, str] | None, first_block: str | None
) -> str | None:
    """A count, by the first column with public keys, for a tenth of the budget; None where blocks
    are needed and none was named.
    """
    if proposal.block and first_block is None:
        return None
    return proposals.write_release(proposal.name, *_choose_first(proposal, amounts), first_block)


def _choose_first(
    proposal: proposals.Proposal, amounts: tuple[str, str] | None
) -> tuple[str, dict[str, str]]:
    """Mechanism and parameters of a first release: a tenth of the budget for a count."""
    epsilon = exact_text(
        parse_exact("epsilon", amounts[0]) / 10 if amounts else parse_exact("", "0.1")
    )
    by = next(iter(proposal.keys), None)
    if by is None:
        return "count", {"epsilon": epsilon}
    return "histogram", {"by": by, "epsilon": epsilon}


def _grant_budget(table: Table, amounts: tuple[str, str], ledger: str, confirm_large: bool) -> None:
    """Give the table's own scope its budget, and say what that promises."""
    # Before the ledger is made, which a refusal must not leave behind.
    require_confirmation(*amounts, confirm_large)
    terms: Any = {"table": table, "confirm_large": confirm_large}
    book = open_ledger(ledger, create=True)
    told = book.grant(table.name, *amounts, principal=current_principal(), **terms)
    rule = (told.terms if isinstance(told, GrantProposal) else told).filter
    print(
        f"granted scope {table.name!r} epsilon {amounts[0]}, delta {amounts[1]} ({rule.name}): everything that is released from it "
        f"together protects {table.protection_text}"
    )
