"""The catalogue ``dpflow.yml``: what a project's tables, ledger, budget and output are called.

It is found upward from a release file, a DAG file or the working directory, as git finds its
repository. Where it is, nobody needs to write a path: a plain name such as ``visits`` means the
declaration that it names. A path stays a path. What a command, a release file or an operator says
itself always wins.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from dpflow.core.contract.strict_models import Strict, describe_problems
from dpflow.errors import InvalidDeclaration, InvalidInput, UnknownName, hide_credentials
from dpflow.yaml_files import load_yaml

#: The file's name; nothing else is looked for.
FILE_NAME = "dpflow.yml"
_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,62}$"
#: What a declaration is called.
TableName = Annotated[str, Field(pattern=_NAME)]


class Output(Strict):
    """Where settled results are copied to, unless a release says otherwise.

    Attributes:
        database: the DuckDB file, made if it is missing; relative to ``dpflow.yml``.
        table: the table in it.
    """

    example = "{database: published.duckdb}"

    database: Path
    table: Annotated[str, Field(pattern=_NAME)] = "releases"


class Catalogue(Strict):
    """The file ``dpflow.yml``. All paths in it are relative to it.

    Attributes:
        root: the folder that ``ledger``, ``anchor`` and ``output`` are relative to instead, where that of the
            file does not last, as in a versioned bundle of DAGs.
        ledger: the ledger: a SQLite file, or a URL such as ``postgresql+psycopg://host/name``
            without a password.
        anchor: the ledger's anchor, if it is not in the default place.
        server: instead of a ledger: the service that holds it, such as ``https://dp.example.org``.
        scope: which budget pays for a release that names none.
        tables: the declarations, by the names that they give themselves.
        public: files of facts that are nobody's data, such as populations, by the names that queries give them:
            CSV, TSV, JSON, JSON lines or Parquet. Queries join them.
        output: where results are copied to, if a release does not say where.
        plugins: a folder of plugins that are one file each, to be tried before they are packaged: commands and Python
            that start below this file run their code. No certificate covers them.
    """

    root: Path | None = None
    ledger: Annotated[str, Field(min_length=1)] | None = None
    anchor: Path | None = None
    server: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = None
    scope: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    tables: dict[TableName, Path] = Field(default_factory=dict)
    public: dict[TableName, Path] = Field(default_factory=dict)
    output: Output | None = None
    plugins: Path | None = None
    _file: Path = PrivateAttr(default=Path(FILE_NAME))

    @property
    def file(self) -> Path:
        """Where it was read."""
        return self._file

    def find_declaration(self, name: str) -> Path:
        """The declaration's file, or `UnknownName` with close matches."""
        if name not in self.tables:
            raise UnknownName(f"table in {self.file} called", name, self.tables)
        return self.tables[name]


def load_catalogue(file: Path) -> Catalogue:
    """Read one catalogue; its paths are absolute afterwards.

    Raises:
        InvalidDeclaration: a field that does not validate, or a password in the ledger's URL.
        InvalidInput: the file cannot be read.
    """
    try:
        read = Catalogue.model_validate(load_yaml(file, "catalogue"))
    except ValidationError as error:
        raise InvalidDeclaration(f"{file} is no catalogue: {describe_problems(error)}") from None
    names = {name.casefold() for name in read.tables}
    if taken := [name for name in read.public if name.casefold() in names]:
        raise InvalidDeclaration(
            f"{file} is no catalogue: {taken[0]!r} stands under tables and under public; rename one of them"
        )
    if read.server and (read.ledger or read.tables):
        raise InvalidDeclaration(
            f"{file} names a service, which holds ledger and tables, and a ledger or tables of its own; name one or the other"
        )
    folder = file.parent.resolve()
    output = read.output
    root = (folder / read.root).resolve() if read.root else folder
    catalogue = read.model_copy(
        update={
            "root": root,
            "ledger": resolve_ledger(read.ledger, root, file),
            "anchor": read.anchor and (root / read.anchor).resolve(),
            "tables": {name: (folder / path).resolve() for name, path in read.tables.items()},
            "public": {name: (folder / path).resolve() for name, path in read.public.items()},
            "plugins": read.plugins and (folder / read.plugins).resolve(),
            "output": output
            and output.model_copy(update={"database": (root / output.database).resolve()}),
        }
    )
    catalogue._file = folder / file.name
    return catalogue


def resolve_ledger(place: str | None, folder: Path, file: Path) -> str | None:
    """Where a file says that the ledger is: a URL, or a path from the file's folder. Raises
    `InvalidDeclaration` for a URL with a password.
    """
    if place is None or "://" not in place:
        return place and str((folder / place).resolve())
    # The file is made to be shared and committed.
    if re.search(r"://[^/@]*:[^/@]*@", place):
        raise InvalidDeclaration(
            f"{file} holds the ledger's password, and it is a file to share; take the password out of "
            f"the URL, and put it into PGPASSWORD or ~/.pgpass"
        )
    return place


def find_catalogue(folder: Path | None = None) -> Catalogue | None:
    """The nearest ``dpflow.yml`` upward from a folder, else from the working directory; None
    without one. Raises like `load_catalogue`.
    """
    file = find_file(folder)
    return None if file is None else load_catalogue(file)


def find_file(folder: Path | None = None) -> Path | None:
    """The nearest ``dpflow.yml`` upward from a folder, else from the working directory, unread."""
    for start in (folder, Path()):
        if start is None:
            continue
        here = start.resolve()
        for upward in (here, *here.parents):
            if (upward / FILE_NAME).is_file():
                return upward / FILE_NAME
    return None


def locate_ledger(place: str | None, folder: Path | None = None) -> tuple[str, Path | None]:
    """Where the ledger is, and its anchor if somebody says where that is.

    Args:
        place: what the caller was told; DPFLOW_LEDGER if None, else what ``dpflow.yml`` says.
        folder: where the search for ``dpflow.yml`` begins.

    Raises:
        InvalidInput: nobody says it.
    """
    place = place or os.environ.get("DPFLOW_LEDGER")
    catalogue = find_catalogue(folder)
    if catalogue and catalogue.ledger and place in (None, "", catalogue.ledger):
        return catalogue.ledger, catalogue.anchor
    if place:
        return place, None
    if server := find_server(folder):
        raise InvalidInput(
            f"{hide_credentials(server)} holds the ledger, and this works on the ledger itself; its owner runs it there, with --ledger FILE"
        )
    raise InvalidInput(
        "no ledger was named; give --ledger FILE, set DPFLOW_LEDGER, or write ledger: FILE into "
        f"{FILE_NAME}; name the same one for every run"
    )


def find_server(folder: Path | None = None) -> str | None:
    """The service that is asked in place of a ledger: DPFLOW_SERVER, else what ``dpflow.yml`` says; None
    where neither names one.

    Args:
        folder: where the search for ``dpflow.yml`` begins.
    """
    if server := os.environ.get("DPFLOW_SERVER"):
        return server
    catalogue = find_catalogue(folder)
    return None if catalogue is None else catalogue.server


def is_table_name(text: str) -> bool:
    """Whether this is a name for the catalogue: a path has a point or a slash."""
    return re.match(_NAME, text) is not None


def locate_declaration(table: Path | str, folder: Path) -> Path:
    """The file of a declaration that is given by its name or by its path.

    Args:
        table: a `Path` is a path; a plain name is one of the catalogue, if there is one.
        folder: what a path is relative to, and where the search for the catalogue begins.

    Raises:
        UnknownName: the catalogue has no such name.
        InvalidInput: a plain name, and neither a catalogue nor such a file.
    """
    if isinstance(table, str) and is_table_name(table):
        catalogue = find_catalogue(folder)
        if catalogue is not None:
            return catalogue.find_declaration(table)
        if not (folder / table).exists():
            raise InvalidInput(
                f"there is no table {table!r}, because no {FILE_NAME} in {folder.resolve()} or above names "
                f"one; give the path of its declaration, or make both with: dpflow init SOURCE"
            )
    return folder / table


def fill_request(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The fields of a release, with the scope and the output of the catalogue where it names none.
    ``publish: null`` publishes nowhere.
    """
    if "scope" in fields and "publish" in fields:
        return fields
    catalogue = find_catalogue(folder)
    if catalogue is None:
        return fields
    defaults: dict[str, Any] = {}
    if catalogue.scope is not None:
        defaults["scope"] = catalogue.scope
    if catalogue.output is not None:
        defaults["publish"] = catalogue.output.model_dump()
    return defaults | fields
