"""What a private table promises: privacy unit, neighbours, contribution bounds, ranges and public keys.

Pure data; `dpflow.tables.access.declarations` reads it from YAML.

A declaration is public. Every sensitivity follows from it and from nothing in the rows, so what it
says is enforced (values are clamped, contributions bounded) or, where only the owner can know it,
listed as a promise: that rows of one person carry the same unit, and that public keys were not
picked by looking at the rows.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    model_validator,
)

from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import (
    ContributionBounds,
    GroupBounds,
    Limit,
    MaxContributions,
    RequestedBounds,
)
from dpflow.core.contract.joins import Join, plain_relation
from dpflow.core.contract.sensitivity import HasSensitivity, S_co
from dpflow.core.contract.server_source import ServerSource, find_kind, read_source
from dpflow.core.contract.strict_models import Strict
from dpflow.errors import PlanRefused, UnknownName

#: Sums stop here, so that BIGINT results cannot wrap. What one unit adds is below it by plan, and a noisy sum that
#: may have reached it is not shown. Single values may be any BIGINT or UBIGINT.
MAX_MAGNITUDE = 2**62
#: What a table protects that is declared generalisation_only: the only scopes in which a release
#: without a privacy guarantee may run.
NOBODY = "nobody (generalisation-only)"


#: The most cells of several columns' public keys.
MOST_CELLS = 10**6


def combine_keys(keys: Iterable[str]) -> str:
    """The key of several columns, as one text: a JSON list of their keys."""
    return json.dumps(list(keys), ensure_ascii=False, separators=(",", ":"))


class PrivacyUnit(Strict):
    """What one guarantee protects: all rows that share ``column``.

    Attributes:
        column: the column that names the unit, such as a person.
        missing: what becomes of rows without a unit: ``drop``, or ``one-unit`` for all of them
            together.
    """

    example = "{column: user_id}"

    column: str
    missing: Literal["drop", "one-unit"] = "drop"


class RequiredCertificates(Strict):
    """Whose certificates a table asks for.

    Attributes:
        file: certificates, as ``dpflow certify`` writes them; a path relative to the declaration. If
            left out, those that came with dpflow.
        keys: verifier keys that are trusted, one at least, as ``dpflow ledger key`` prints them.
    """

    file: Path | None = None
    keys: Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True)
class UnitRows:
    """The rows of a table by privacy unit: what each unit's rows together give is one row, or one for
    each of its keys.

    A row is a function of one unit's rows, so a unit more or less is its rows more or less, and one with other rows
    has other rows here. Contribution bounding holds whatever the rows are: it is done on these rows as on any.

    Attributes:
        rows: the declaration of the rows below.
        where: the condition that these fulfil.
        blocks: those that are read; none if all are.
        keys: row expressions that a unit's rows are grouped by, by the names that they have here.
        features: aggregates of a unit's rows, in the language of `dpflow.tables.language.expressions`;
            each is a column of its own text.
    """

    rows: Table
    where: str | None
    blocks: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    features: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What a charge keeps of them: without it, a question over them would read as one over the rows."""
        below = self.rows.unit_rows
        return {
            "unit": self.rows.privacy_unit.column,
            "where": self.where,
            "blocks": list(self.blocks),
            "keys": dict(self.keys),
            "features": list(self.features),
            "rows": below and below.to_json(),
        }


class Table(Strict):
    """A private table as its owner declares it.

    Attributes:
        name: what plans, scopes and messages call it.
        database: the DuckDB file, or a list of Parquet files (``NAME.files.json``, which ``dpflow
            load --in-place`` writes); a path relative to the declaration's file.
        source: in place of ``database``, rows that a server reads.
        relation: the table or view in that file; the declaration's name if left out.
        privacy_unit: whose rows one guarantee protects.
        neighbours: ``add-remove`` (one unit more or less), or ``replace`` (one unit's rows become
            others; then the number of units is public).
        protects: ``unit`` (all rows of a unit, in every block), or ``unit-block`` (a unit's rows of
            one block; budgets are then per block, and a unit seen in d released blocks has d times
            the loss).
        block: the column whose values are blocks, such as a day.
        contribution_bounds: how much one unit may contribute.
        max_contributions: what no unit exceeds, as everybody knows: what total intervals rest on.
        columns: the columns that may be read, by name; ``join.column`` of a joined relation.
        joins: relations of the same file whose columns are read with the table's.
        holdout: the table is readable through a gate session only.
        cached_partials: keep exact sums of single blocks beside the database for later releases.
            ``checked`` tells by where the rows are stored whether they changed, and answers as
            without a cache. ``sealed`` answers with a block's rows as they were when it was first
            read for this statistic, whatever became of them
            (`dpflow.tables.backends.duckdb_backend.requests.cached_blocks`).
        sealed_version: an integer from 1. Another one reads all sealed blocks again: write it after
            blocks were loaded again. It is public, so decide it by what is loaded and when, never
            by what rows hold.
        generalisation_only: nobody is protected; rows may be handed out or tested without noise.
        backend: who computes answers, by the name of an installed query backend; that of ``source`` if it
            has one.
        require_certified: mechanisms that no certificate of these keys covers are refused.
        trusted_sql: private relations whose own SQL (a view's, or that of computed columns) runs as
            it is. The owner answers for it: it takes each row by itself, and fails on none. What is
            not named here is rewritten or refused (`dpflow.tables.access.owner_views`).
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    database: Path
    source: Annotated[SerializeAsAny[ServerSource] | None, BeforeValidator(read_source)] = None
    relation: str = ""
    privacy_unit: PrivacyUnit
    neighbours: Literal["add-remove", "replace"] = "add-remove"
    protects: Literal["unit", "unit-block"] = "unit"
    block: str | None = None
    contribution_bounds: ContributionBounds
    max_contributions: MaxContributions | None = None
    columns: dict[str, Column]
    joins: tuple[Join, ...] = ()
    holdout: bool = False
    cached_partials: Literal["checked", "sealed"] | None = None
    sealed_version: Annotated[int, Field(ge=1)] = 1
    generalisation_only: bool = False
    backend: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")] = "duckdb"
    require_certified: RequiredCertificates | None = None
    trusted_sql: tuple[str, ...] = ()
    _unit_rows: UnitRows | None = PrivateAttr(default=None)

    @property
    def unit_rows(self) -> UnitRows | None:
        """What the rows are computed of, where there is one for each privacy unit; no file declares it."""
        return self._unit_rows

    def last_count(self, name: str) -> str | None:
        """The last public key of a number of a unit's rows, in whose group are units with more; None for other columns."""
        units = self._unit_rows
        if units is None or name not in units.features or not name.startswith("count("):
            return None
        keys = self.column(name).public_keys
        return keys[-1] if keys else None

    def by_unit(
        self,
        unit_rows: UnitRows,
        columns: Mapping[str, Column],
        bounds: ContributionBounds,
    ) -> Table:
        """The declaration of rows by privacy unit.

        Where a unit's rows of one block are protected, a row here is made of those of several blocks. Neighbours
        differ in what one unit has in one block, so its rows here become others, within the same bounds: noise is
        that for a unit that is replaced. The number of units stays secret, and each block that is read pays.
        """
        changes = {"columns": dict(columns), "contribution_bounds": bounds}
        per_block = {"neighbours": "replace", "cached_partials": None, "sealed_version": 1}
        table = self.model_copy(
            update=changes | (per_block if self.protects == "unit-block" else {"block": None})
        )
        table._unit_rows = unit_rows
        return table

    @model_validator(mode="before")
    @classmethod
    def _read_source(cls, given: Any) -> Any:
        """A source of its own needs no file, and says who computes."""
        if isinstance(given, dict) and given.get("source") is not None:
            if given.get("database", Path()) != Path():
                raise ValueError("give database or source, not both: they are two places of rows")
            kind = find_kind(given["source"])
            reader = {} if kind is None else {"backend": kind.backend}
            return reader | given | {"database": Path()}
        return given

    @model_validator(mode="after")
    def _check_rules(self) -> Table:
        kind = (
            type(self.source) if self.source is not None else ServerSource.kinds.get(self.backend)
        )
        if kind is not None and (self.source is None or self.backend != kind.backend):
            raise ValueError(
                f"backend {kind.backend} is for a source on {kind.system}, and no other backend reads one; take backend out"
            )
        if self.source is not None and (self.cached_partials or self.relation or self.trusted_sql):
            raise ValueError(
                f"cached_partials, relation and trusted_sql are for files, not for a source on {self.source.system}; take them out"
            )
        if self.protects == "unit-block":
            if self.block is None:
                raise ValueError("protects: unit-block needs a block column")
            if self.neighbours != "add-remove":
                raise ValueError(
                    "protects: unit-block is sound under add-remove only: a replaced row may change its block"
                )
        # Adding or removing a unit changes which public values are there, so they would not be
        # public.
        if self.public_columns and self.neighbours != "replace":
            raise ValueError(
                "public columns need neighbours: replace: what a unit's rows hold tells that it is there"
            )
        largest = self.max_contributions
        for name in largest.columns if largest else ():
            if name not in self.columns:
                raise ValueError(
                    f"max_contributions: {UnknownName('declared column', name, self.columns)}"
                )
        for name in largest.within_bounds if largest else ():
            if self.columns[name].lower is None:
                raise ValueError(
                    f"max_contributions: within_bounds names {name!r}, which declares no bounds; add lower and upper to it"
                )
        if len({join.name.casefold() for join in self.joins}) != len(self.joins):
            raise ValueError("two joins have one name")
        private = [self.relation_name, *(j.relation for j in self.joins if j.kind == "unit")]
        for name in self.trusted_sql:
            if plain_relation(name) not in map(plain_relation, private):
                raise ValueError(f"trusted_sql: {UnknownName('private relation', name, private)}")
        for join in self.joins:
            _check_join(join, self)
            if self.source is not None:
                self.source.find_relation(join.relation)
        # Cached sums of a block are truncated within the block alone.
        if self.cached_partials and self.protects != "unit-block":
            raise ValueError(
                "cached_partials need protects: unit-block: a unit that is protected in all blocks is truncated over all of them together"
            )
        if self.sealed_version != 1 and self.cached_partials != "sealed":
            raise ValueError("sealed_version is for cached_partials: sealed; take it out")
        return self

    def __hash__(self) -> int:
        """Equal tables have equal hashes; columns are left to the comparison."""
        return hash((self.name, self.privacy_unit, self.contribution_bounds, self.neighbours))

    @property
    def relation_name(self) -> str:
        """Name of the relation inside the database file."""
        return self.relation or self.name

    @property
    def place(self) -> str:
        """Where the rows are, for people; no credentials."""
        return str(self.database) if self.source is None else self.source.description

    def list_private(self) -> list[str]:
        """Where its private relations are: one text for the spellings of each."""
        own = self._find_place(self.relation_name) if self.source is None else self.source.place
        return [own, *(self._find_place(one.relation) for one in self.joins if one.kind == "unit")]

    def list_public(self) -> list[tuple[str, str]]:
        """Name and place of each dimension of which its owner does not say that everybody may see its rows."""
        dimensions = [one for one in self.joins if one.kind == "dimension" and not one.public]
        return [(one.name, self._find_place(one.relation)) for one in dimensions]

    def _find_place(self, relation: str) -> str:
        if self.source is None:
            return f"{self.database}: {plain_relation(relation)}"
        return self.source.find_relation(relation).place

    def require_file(self, door: str) -> Path:
        """The file that holds the rows. Raises `PlanRefused` where a server has them: ``door``, the
        subject of a sentence, reads files of this machine only.
        """
        if self.source is not None:
            raise PlanRefused(
                f"{door} reads DuckDB and Parquet files of this machine, and table {self.name!r} is on {self.source.system}; "
                f"declare a table over a file for it"
            )
        return self.database

    @property
    def protection_text(self) -> str:
        """What a budget of this table protects, in words."""
        if self.generalisation_only:
            return NOBODY
        where = f" in one {self.block}" if self.protects == "unit-block" else ""
        also = "".join(f" and in {join.relation}" for join in self.joins if join.kind == "unit")
        # Of rows by unit, what is protected is a unit's rows below.
        rows = self._unit_rows.rows if self._unit_rows else self
        if rows is not self and self.protects == "unit-block":
            return rows.protection_text
        known = rows.public_columns
        but = f", {', '.join(known)} known" if known else ""
        if self.trusted_sql:
            but += f", trusting the SQL of {', '.join(self.trusted_sql)}"
        if trusted := self.source and self.source.trust_text:
            but += f", trusting {trusted}"
        return f"all rows of one {self.privacy_unit.column}{where}{also} ({self.neighbours}{but})"

    def sensitivity(self, request: HasSensitivity[S_co]) -> S_co:
        """How far one unit moves the answer to a request."""
        return request.sensitivity(self)

    @property
    def has_public_size(self) -> bool:
        """Whether everybody knows the number of units: they are replaced, and none comes or goes."""
        return self.neighbours == "replace" and self.protects == "unit"

    @property
    def public_columns(self) -> tuple[str, ...]:
        """Columns that the owner declares known."""
        return tuple(name for name, column in self.columns.items() if column.public)

    def trusts_sql(self, relation: str) -> bool:
        """Whether the owner answers for the relation's own SQL."""
        return plain_relation(relation) in map(plain_relation, self.trusted_sql)

    def split_name(self, name: str) -> tuple[str, ...]:
        """A declared column as (join, column), or as (column,) of the table itself."""
        first, dot, rest = name.partition(".")
        return (first, rest) if dot and any(join.name == first for join in self.joins) else (name,)

    def column(self, name: str) -> Column:
        """The declared column. Raises `UnknownName`, or `PlanRefused` for an expression, which has no declaration."""
        try:
            return self.columns[name]
        except KeyError:
            if "(" in name:
                raise PlanRefused(
                    f"{name[:80]!r} is an expression, and a release names declared columns of table {self.name!r}; declare it, such as "
                    f"columns: {{x: {{expression: ..., lower: 0, upper: 100}}}}, or ask in SQL, which computes it"
                ) from None
            raise UnknownName(f"column of table {self.name!r} called", name, self.columns) from None

    def bounded_column(self, name: str) -> Column:
        """The declared column if it has bounds; raises `PlanRefused` if not: no bounds, no plan."""
        column = self.column(name)
        if column.lower is None:
            raise PlanRefused(
                f"column {name!r} of table {self.name!r} declares no bounds, and without bounds no sensitivity is known; "
                f"add lower and upper to its declaration (the mechanism bounds finds some)"
            )
        return column

    def public_keys(self, name: str) -> tuple[str, ...]:
        """The public keys of a column; raises `PlanRefused` if it declares none."""
        column = self.column(name)
        keys = column.public_keys
        if column.parts is not None:
            lists = [self.public_keys(part) for part in column.parts]
            if math.prod(map(len, lists)) > MOST_CELLS:
                raise PlanRefused(
                    f"{name!r} has more than {MOST_CELLS} combinations of public keys; take fewer or coarser columns"
                )
            keys = tuple(map(combine_keys, itertools.product(*lists)))
        if keys is None:
            raise PlanRefused(
                f"column {name!r} of table {self.name!r} declares no public keys; declare public_keys, or use a mechanism that "
                f"selects keys privately, such as private_histogram"
            )
        return keys

    @property
    def largest_text(self) -> str:
        """What nobody exceeds, as JSON; "" where nothing is declared."""
        return "" if self.max_contributions is None else self.max_contributions.model_dump_json()

    def bounds_for(self, by: str | None) -> GroupBounds:
        """What one unit may contribute when rows are grouped by a column, or not at all."""
        bounds = self.contribution_bounds
        if by is None:
            return GroupBounds(1, bounds.rows, bounds.rows)
        groups, rows = self.limits_for(by)
        return GroupBounds.combine(groups.number, rows.number, bounds.rows)

    def with_bounds(
        self, by: str | None, requested: RequestedBounds, source: str = "of this release"
    ) -> Table:
        """The declaration with the contribution bounds of one release, which is grouped by a column or
        not at all; ``source`` says whose they are. Raises `PlanRefused` where ``rows_per_group`` is
        above ``rows``.
        """
        rows = requested.rows or self.contribution_bounds.rows
        if (requested.rows_per_group or 0) > rows:
            raise PlanRefused(
                f"rows_per_group {requested.rows_per_group} is above the {rows} rows of a unit that count; lower it, or raise rows"
            )
        # What follows from the number of rows alone follows from that of the release.
        declared = [
            None if limit.source == "contribution_bounds.rows" else limit
            for limit in (() if by is None else self.limits_for(by))
        ]
        limits = [
            Limit(number, f"{name} {source}") if number else limit
            for name, limit in zip(
                ("groups", "rows_per_group"), declared or (None, None), strict=True
            )
            for number in [getattr(requested, name)]
        ]
        # Other columns have no limits of their own: those of the release are for whatever it groups by.
        columns = {name: column.without_limits() for name, column in self.columns.items()}
        if by is not None:
            columns[by] = columns[by].inherit(*limits)
        bounds = ContributionBounds(
            rows=rows,
            groups=limits[0] and limits[0].number,
            rows_per_group=limits[1] and min(limits[1].number, rows),
        )
        return self.model_copy(update={"columns": columns, "contribution_bounds": bounds})

    def describe_counted_rows(self, by: str | None = None) -> str:
        """Which rows a release by these groups is about: "rows", or those that contribution bounds keep, if not
        everybody knows that they keep all.
        """
        bounds, largest = self.bounds_for(by), self.max_contributions
        if largest is not None and largest.rows <= min(*bounds[1:], *bounds[: by is not None]):
            return "rows"
        rows = f"{bounds.rows:,} row{'s'[: bounds.rows > 1]}"
        where = f" of one {self.block}" if self.protects == "unit-block" else ""
        kept = rows if by is None else bounds.describe()
        return f"rows with each {self.privacy_unit.column} cut at {kept}{where}"

    def largest_contributions(self) -> Table | None:
        """The declaration with what no unit exceeds in place of the contribution bounds, so that both
        follow by the same rules for whatever is computed of a column; None where nothing is declared.
        """
        largest = self.max_contributions
        if largest is None:
            return None
        columns = {
            name: column.without_limits().model_copy(
                update={
                    "groups": largest.groups.get(name),
                    "rows_per_group": largest.rows_per_group.get(name),
                }
            )
            for name, column in self.columns.items()
        }
        bounds = ContributionBounds(rows=largest.rows)
        return self.model_copy(update={"columns": columns, "contribution_bounds": bounds})

    def limits_for(self, by: str) -> tuple[Limit, Limit]:
        """Groups that one unit may reach in a grouping, and its rows in each, with the words of the
        declaration that each comes from.
        """
        bounds, column = self.contribution_bounds, self.column(by)
        groups = column.limit_groups(by) or Limit(
            bounds.max_groups,
            "contribution_bounds.groups" if bounds.groups else "contribution_bounds.rows",
        )
        rows = column.limit_rows(by) or Limit(
            bounds.per_group,
            f"contribution_bounds.{'rows_per_group' if bounds.rows_per_group else 'rows'}",
        )
        return groups, rows

    def stored_form(self) -> dict[str, Any]:
        """The declaration as JSON, without where rows are stored and what changes no answer; every
        digest of a declaration is taken of this form.
        """
        excluded: dict[str, Any] = dict.fromkeys(
            (
                "database",
                "source",
                "cached_partials",
                "sealed_version",
                "backend",
                "require_certified",
                "max_contributions",
            ),
            True,
        )
        excluded["joins"] = {"__all__": {"public"}}
        form = self.model_dump(mode="json", exclude=excluded)
        # Which server's own rules the guarantee rests on.
        form["trusted_server"] = (self.source and self.source.trust_text) or None
        if (units := self._unit_rows) is not None:
            below = {name: getattr(units, name) for name in ("where", "blocks", "keys", "features")}
            form["unit_rows"] = below | {"rows": units.rows.stored_form()}
        return form


def _check_join(join: Join, table: Table) -> None:
    """Raises ValueError with the name of the rule that the join breaks."""
    if join.kind == "dimension":
        if join.rows is not None:
            raise ValueError(
                f"join {join.name}: rule unique-key: a dimension has one row a key; take rows out"
            )
        private = (
            table.relation_name,
            *(other.relation for other in table.joins if other.kind == "unit"),
        )
        if plain_relation(join.relation) in map(plain_relation, private):
            raise ValueError(
                f"join {join.name}: rule public-rows: {join.relation} is private in this declaration, and a dimension would show its "
                f"rows to other units'; put the column into the table"
            )
        return
    if join.public:
        raise ValueError(
            f"join {join.name}: rule public-rows: a private relation is not public; take public out"
        )
    if join.left_column != table.privacy_unit.column:
        raise ValueError(
            f"join {join.name}: rule unit-key: a private table joins on the unit, {table.privacy_unit.column!r}, and not on "
            f"{join.left_column!r}; or declare it a dimension if its rows are public"
        )
    # Another column of a private relation is another unit: one person's rows would move others'.
    unit_columns = [(table.relation_name, table.privacy_unit.column)]
    unit_columns += [(j.relation, j.right_column) for j in table.joins if j.kind == "unit"]
    for relation, column in unit_columns:
        same_relation = plain_relation(relation) == plain_relation(join.relation)
        if same_relation and column.casefold() != join.right_column.casefold():
            raise ValueError(
                f"join {join.name}: rule unit-key: the unit of {join.relation} is its column {column!r}, here and in every "
                f"join, and not {join.right_column!r}; join on it"
            )
    if join.rows is None:
        raise ValueError(
            f"join {join.name}: rule multiplicity: say how many rows of a unit are joined; add rows: 1"
        )
    if table.protects == "unit-block":
        raise ValueError(
            f"join {join.name}: rule whole-unit: budgets per block do not protect rows that every block sees; "
            f"protect the unit, or put the column into the table"
        )
