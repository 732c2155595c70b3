"""What a query is asked with: budget, scope, tables, a target error. From its comment, from
arguments, from ``dpflow.yml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dpflow.analyst_sql.parse.text_and_options import OPTIONS, add_option
from dpflow.catalogue import find_catalogue
from dpflow.core.accounting.amounts import Delta, Epsilon, parse_exact
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import describe_problems
from dpflow.engine.releases.request import require_public
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS, ScopeFilters
from dpflow.errors import InvalidAmount, InvalidInput, UnknownName
from dpflow.tables.access.declarations import load_table, require_public_dimensions
from dpflow.tables.public.public_tables import load_public_table
from dpflow.tables.public.published_rows import load_published_rows
from dpflow.tables.public.query_process import RowTable

_LAZY = ConfigDict(defer_build=True)
_EPSILON: TypeAdapter[Fraction] = TypeAdapter(Epsilon, config=_LAZY)
_DELTA: TypeAdapter[Fraction] = TypeAdapter(Delta, config=_LAZY)


@dataclass(frozen=True)
class Target:
    """The error that an answer may have.

    Attributes:
        size: half-width at 95 %, or a part of what it is compared with if ``relative``.
        rows: how many rows a group is taken to have; needed where an error is relative or shrinks
            with the group.
    """

    size: Fraction
    relative: bool
    rows: int | None


@dataclass(frozen=True)
class Settings:
    """All options of one query.

    Attributes:
        epsilon: None if a target is given instead, or nothing yet; 0 if stored answers alone may serve.
        min_units: units that a private key needs to be shown.
        noise: laplace or gaussian; auto: whatever makes errors smaller.
        blocks: those that options name.
        revision: None: any stored answer may serve, and a new one is the first.
        name: of the view in the published file; None: none is made.
        bounds: contribution bounds of this query, in place of the declared ones.
        searches: names of settled searches for clamping bounds, which its sums take.
        asker: whose stored answers may serve, such as a dbt model's; empty: those of all people.
        filters: of the scopes that pay; unknown where there is no delta, whose use hangs on them.
    """

    scope: str
    epsilon: Fraction | None
    delta: Fraction
    target: Target | None
    blocks: tuple[str, ...]
    revision: int | None
    name: str | None
    min_units: int
    noise: str = "auto"
    asker: str = ""
    bounds: RequestedBounds | None = None
    searches: tuple[str, ...] = ()
    filters: ScopeFilters = UNKNOWN_FILTERS

    @property
    def is_free(self) -> bool:
        """Whether stored answers alone may serve, and nothing may be spent."""
        return self.epsilon == 0


def merge_options(comment: Mapping[str, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Options of comment and arguments together; None is not given.

    Raises `InvalidInput` for one that both give, and for an empty list.
    """
    merged = dict(comment)
    for name, value in arguments.items():
        if value is None:
            continue
        if name not in OPTIONS:
            raise UnknownName("option of a query called", name, OPTIONS)
        if isinstance(value, list | tuple):
            # Without it the query would read, and charge, other blocks.
            if not value:
                raise InvalidInput(f"{name} is empty; name at least one, or leave {name} out")
            value = "|".join(map(str, value))
        if not str(value).strip():
            raise InvalidInput(f"{name} is empty; give it a value, or leave {name} out")
        add_option(merged, name, value, "the arguments")
    return merged


def read_settings(options: Mapping[str, str], folder: Path | None = None) -> Settings:
    """Validate options. Raises `InvalidInput`."""
    scope = options.get("scope")
    if scope is None:
        catalogue = find_catalogue(folder)
        scope = catalogue.scope if catalogue is not None else None
    if scope is None:
        raise InvalidInput(
            "no scope was named, so nobody pays; add --scope NAME, -- dp: scope=NAME, or scope: NAME to dpflow.yml"
        )
    epsilon = _read_epsilon(options.get("epsilon"))
    delta = _read_amount(options.get("delta"), _DELTA, "delta") or Fraction(0)
    target = _read_target(options)
    if epsilon is not None and target is not None:
        raise InvalidInput("epsilon and error are both given, and each says the other; give one")
    blocks, searches = _read_names(options, "blocks"), _read_names(options, "bounds")
    if searches and target is not None:
        raise InvalidInput(
            "error and bounds are both given, and which bounds a search gives depends on the price; give an epsilon"
        )
    return Settings(
        scope,
        epsilon,
        delta,
        target,
        blocks,
        _read_whole(options, "revision"),
        options.get("name"),
        _read_whole(options, "min_units") or 1,
        _read_noise(options),
        bounds=_read_bounds(options),
        searches=searches,
    )


def _read_names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = sorted({one.strip() for one in options[name].split("|")}) if name in options else ()
    if "" in names:
        raise InvalidInput(f"{name} has an empty name; write each one's name, or leave {name} out")
    return tuple(names)


def _read_bounds(options: Mapping[str, str]) -> RequestedBounds | None:
    names = {"groups": "groups", "rows_per_group": "rows_per_group", "rows_per_unit": "rows"}
    requested = {field: _read_whole(options, name) for name, field in names.items()}
    if not any(requested.values()):
        return None
    try:
        return RequestedBounds.model_validate(requested)
    except ValidationError as error:
        raise InvalidInput(f"bounds of this query: {describe_problems(error)}") from None


def _read_noise(options: Mapping[str, str]) -> str:
    noise = options.get("noise", "auto").lower()
    if noise not in ("auto", "laplace", "gaussian"):
        raise InvalidInput(
            f"noise {noise[:40]!r} is none; write noise=laplace, noise=gaussian, or leave it out for the smaller errors"
        )
    return noise


def _read_epsilon(text: str | None) -> Fraction | None:
    return Fraction(0) if text == "0" else _read_amount(text, _EPSILON, "epsilon")


def _read_amount(text: str | None, kind: TypeAdapter[Fraction], name: str) -> Fraction | None:
    if text is None:
        return None
    try:
        return kind.validate_python(text)
    except (ValidationError, InvalidAmount):
        raise InvalidInput(
            f"{name} {text[:40]!r} is no legal amount; write a decimal, such as {name}={'0.5' if name == 'epsilon' else '1e-6'}"
        ) from None


def _read_whole(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or not 1 <= int(text) <= 10**9:
        raise InvalidInput(f"{name} is a whole number from 1, and not {text[:40]!r}; correct it")
    return int(text)


def _read_target(options: Mapping[str, str]) -> Target | None:
    text, rows = options.get("error"), _read_whole(options, "rows")
    if text is None:
        if rows is not None:
            raise InvalidInput(
                "rows goes with error: how many rows a group is taken to have; add error"
            )
        return None
    relative = text.endswith("%")
    try:
        size = parse_exact("an error", text.removesuffix("%").strip())
    except InvalidAmount:
        size = Fraction(0)
    if not size > 0:
        raise InvalidInput(
            f"error {text[:40]!r} is no positive number; write error=100 or error=5%"
        )
    if relative and rows is None:
        raise InvalidInput(
            "error in per cent is of what a group holds, which nobody may look at; say how many rows you expect a "
            "group to have, such as error=5%, rows=10000"
        )
    return Target(size / 100 if relative else size, relative, rows)


def find_public_table(
    name: str,
    tables: Sequence[Table | Path | str] = (),
    folder: Path | None = None,
    public: Mapping[str, Path] | None = None,
) -> RowTable | None:
    """The public table that is called so, or the answer that the output of ``dpflow.yml`` was given under that name, in
    any case; None if there is none. A declared table comes before a published answer.

    Args:
        tables: private tables, of which it may be no file; those of ``dpflow.yml`` if there are none.
        public: files by name, and then no answers; those of ``dpflow.yml`` if left out, unless other tables than its
            are given.

    Raises:
        InvalidInput: it cannot be read, or a declaration cannot.
        PlanRefused: it is a private table's file.
    """
    catalogue = find_catalogue(folder) if public is None and not tables else None
    if public is None:
        public = {} if catalogue is None else catalogue.public
    private = tables if catalogue is None else list(catalogue.tables.values())
    for known, file in public.items():
        if known.casefold() == name.casefold():
            _require_public(file, private, f"rows of {known}", folder)
            return load_public_table(file)
    if catalogue is None or catalogue.output is None:
        return None
    if name.casefold() in {known.casefold() for known in catalogue.tables}:
        return None
    _require_public(catalogue.output.database, private, "published answers", folder)
    return load_published_rows(catalogue.output.database, name)


def _require_public(
    file: Path, tables: Sequence[Table | Path | str], what: str, folder: Path | None
) -> None:
    for one in tables:
        require_public(
            file, one if isinstance(one, Table) else load_table(one, folder or Path()), what
        )


def make_finder(
    tables: Sequence[Table | Path | str], folder: Path | None = None
) -> Callable[[str], Table]:
    """What finds a declared table by the name that SQL has for it, in any case.

    Args:
        tables: declarations, or their files; those of ``dpflow.yml`` if there are none.
    """
    loaded: dict[str, Table] = {}
    for named in tables:
        table = named if isinstance(named, Table) else load_table(named, folder or Path())
        if table.name.casefold() in loaded:
            raise InvalidInput(
                f"two tables are called {table.name!r}; give one of them another name"
            )
        loaded[table.name.casefold()] = table
    for table in loaded.values():
        require_public_dimensions(table, loaded.values())

    def find_table(name: str) -> Table:
        if name.casefold() in loaded:
            return loaded[name.casefold()]
        catalogue = None if loaded else find_catalogue(folder)
        names = (
            list(catalogue.tables) if catalogue is not None else [t.name for t in loaded.values()]
        )
        same = [one for one in names if one.casefold() == name.casefold()]
        if len(same) == 1 and catalogue is not None:
            return load_table(same[0], catalogue.file.parent)
        raise UnknownName("declared table", name, names)

    return find_table
