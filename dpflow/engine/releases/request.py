"""What a user asks for: a release file, an operator's argument or a Python call, validated into one
model.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, InstanceOf, ValidationError, WithJsonSchema

from dpflow.catalogue import fill_request, locate_declaration
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import (
    Strict,
    describe_problems,
    leave_out_empty,
    require_values,
)
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused
from dpflow.tables.access.declarations import load_table
from dpflow.yaml_files import load_yaml


def block_text(value: Any) -> str:
    """A block key as text: YAML reads 2013-01-01 as a date. Raises ValueError for anything that names
    none.
    """
    # A datetime is a date, too, so it is asked first.
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date | int | str) and not isinstance(value, bool):
        return str(value)
    raise ValueError("a block is a text, an integer or a date")


def _as_tuple(value: Any) -> Any:
    """One name may be written without a list."""
    return (value,) if isinstance(value, str) else value


def _read_place(value: Any) -> Any:
    """The path of a declaration, or a declaration that was made in Python."""
    if isinstance(value, str | Path | Table):
        return Path(value) if isinstance(value, str) else value
    raise ValueError("must be a path, such as visits.yml")


Block = Annotated[str, BeforeValidator(block_text), Field(min_length=1, max_length=200)]


class Publish(Strict):
    """Where a settled result is copied to: a DuckDB file and a table in it.

    Attributes:
        database: the file, made if it is missing; relative to the release file.
        table: the table; synthetic data go to a table named after the release, ``NAME_synthetic``.
    """

    database: Path
    table: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")] = "releases"


class ReleaseRequest(Strict):
    """One release, or one session to be opened.

    Attributes:
        name: which release this is outside Airflow: the same name, revision and content again is
            free.
        mechanism: a name that ``dpflow reference`` lists.
        table: the declaration's name in ``dpflow.yml``, or its path relative to the release file; in
            Python also the declaration itself, such as one with computed columns.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        params: the mechanism's parameters.
        blocks: the blocks that are read and charged, where budgets are per block.
        where: a condition on declared columns; only rows that fulfil it are read
            (`dpflow.tables.language.conditions` has the language).
        contribution_bounds: how much one unit contributes to this release, where that differs from the
            declaration: ``{groups: 12, rows_per_group: 3}``.
        bounds: names of settled releases of the mechanism `bounds`, whose bounds the columns take
            (`dpflow.engine.releases.released_bounds`).
        revision: a higher number makes the same request a new, paid release. A task of Airflow is known by its run
            instead, and pays nothing for it.
        publish: where the result is copied to; the output of ``dpflow.yml`` if left out.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    mechanism: str
    table: Annotated[
        Path | InstanceOf[Table],
        BeforeValidator(_read_place),
        WithJsonSchema({"type": "string", "format": "path"}),
    ]
    scope: Annotated[str, Field(min_length=1, max_length=200)]
    params: dict[str, Any] = Field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    where: Annotated[str, Field(min_length=1)] | None = None
    bounds: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], BeforeValidator(_as_tuple)
    ] = ()
    contribution_bounds: RequestedBounds | None = None
    revision: Annotated[int, Field(ge=1)] = 1
    publish: Publish | None = None

    def load_declaration(self) -> Table:
        """The declared table, read if the request has only its path."""
        return self.table if isinstance(self.table, Table) else load_table(self.table)


def parse_request(data: dict[str, Any], base: Path, what: str = "the request") -> ReleaseRequest:
    """Validate a request; relative paths are taken from ``base``, where the search for
    ``dpflow.yml`` begins.

    Raises:
        InvalidDeclaration: the message names the field; also one that is written and says nothing,
            such as ``where: null``.
        UnknownName: ``dpflow.yml`` names no such table.
    """
    # Left out they read more, or all: a condition or list that lost its content does not.
    require_values(data, what, may_be_empty=("params", "publish"))
    filled = fill_request(data, base)
    try:
        request = ReleaseRequest.model_validate(filled)
    except ValidationError as error:
        raise InvalidDeclaration(f"{what} is not a release: {describe_problems(error)}") from None
    # Resolved now: a later change of the working directory must not move the file.
    table, publish = filled["table"], request.publish
    if not isinstance(table, Table):
        table = locate_declaration(table, base).resolve()
    if publish is not None:
        publish = publish.model_copy(update={"database": (base / publish.database).resolve()})
    return request.model_copy(update={"table": table, "publish": publish})


def list_request_fields(stored: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """What a release file has of a stored request: written to a file, it is the same question, or is refused where
    only SQL asks it.

    Args:
        stored: what the ledger keeps of a request.
        scope: the budget that paid.
    """
    # A stored place of publication names its file only.
    names = [name for name in ReleaseRequest.model_fields if name != "publish"]
    # No file has rows by privacy unit. Without them it would ask the rows themselves.
    names += ["unit_rows"]
    fields = {**stored, "scope": scope}
    return dict(leave_out_empty({name: fields[name] for name in names if name in fields}))


def load_request(path: Path | str) -> ReleaseRequest:
    """Read a release file (YAML). Raises `InvalidInput` or `InvalidDeclaration`."""
    path = Path(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory; give one release file")
    return parse_request(load_yaml(path, "release file"), path.parent, str(path))


def require_public(file: Path | str, table: Table, what: str) -> None:
    """Raises `PlanRefused` if what should be public is in a private table's file, in one that its
    list names, or in the folder that a server reads, under whatever name; an object of a store by its URL.

    It is read without a charge, and whoever may see it could see the rows beside it.
    """
    # A stored answer is given without the code that reads rows.
    from dpflow.tables.access.file_list import is_in_folder, is_private_file

    if (source := table.source) is None:
        is_private = is_private_file(file, table.database)
    else:
        joined = [source.find_relation(one.relation) for one in table.joins if one.kind == "unit"]
        is_private = any(is_in_folder(file, one) for one in (source, *joined))
    if is_private:
        raise PlanRefused(
            f"{what} are public, and these are in the private table's file; put them into a file of their own"
        )
