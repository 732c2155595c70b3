"""Suites of Great Expectations that a table's owner registered in the ledger: they run as they are, over the rows as
they are, and one bit leaves.

An expectation may hold SQL and row conditions, so a suite can ask anything of the rows. Whoever writes DAGs names a
suite; which one may run is the owner's decision, an entry of the ledger that only a login with an owner's rights
writes. It holds for the suite's content, the place of the rows and the column that selects them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.execute import place_names
from dpflow.error_boundary import silence_libraries
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.extras import require_extra
from dpflow.quality.from_suite import read_suites
from dpflow.quality.validate import keeps_expectations, require_checkable

if TYPE_CHECKING:
    from dpflow.ledger import Ledger

#: Fields of an expectation in a saved suite: what it asks, and what is only beside it.
_FIELDS = {"type", "kwargs", "meta", "id", "notes", "description", "rendered_content", "severity", "windows"}  # fmt: skip


def register_suite(
    file: Path, table: Table, ledger: Ledger, *, principal: str, registered: bool = True
) -> str:
    """Let contracts of a table run the suites of a file, or no longer; returns their digest.

    Raises:
        InvalidInput: no suite, or expectations that Great Expectations does not have.
        PlanRefused: a holdout, or rows on a server.
        LedgerUnavailable: this login has no owner's rights.
    """
    _require_own_file(table)
    require_checkable(table, ())
    suites = read_suites(file)
    _build_expectations(suites)
    digest = digest_suites(suites)
    places = place_names(table, None, (), ledger)
    ledger.register_suite(
        digest, places, table.block, table=table.name, registered=registered, principal=principal
    )
    return digest


def check_suite(file: Path, table: Table, blocks: Sequence[str], ledger: Ledger | None) -> bool:
    """True if the rows of the named blocks keep every expectation of a registered suite.

    Exactly one bit of the rows leaves: an expectation that cannot be evaluated on them counts as one that is not
    kept. Nothing else does, as for `dpflow.quality.validate.check`.

    Raises:
        PlanRefused: the owner did not register this suite for these rows; a holdout; rows on a server.
        InvalidInput: no ledger, no suite, or blocks of a table that declares none.
        TableUnreadable, TableBusy: the table cannot be opened.
    """
    _require_own_file(table)
    require_checkable(table, blocks)
    if ledger is None:
        raise InvalidInput("a suite is registered in a ledger; name it")
    suites = read_suites(file)
    digest = digest_suites(suites)
    places = place_names(table, None, (), ledger)
    if not ledger.is_suite_registered(digest, places, table.block):
        raise PlanRefused(
            f"suite {file.name} is not registered for table {table.name!r}; the table's owner looks at it, and runs: "
            f"dpflow contract register {file.name} --table {table.name}"
        )
    expectations = _build_expectations(suites)
    return keeps_expectations(table, blocks, expectations)


def digest_suites(suites: Sequence[Any]) -> str:
    """A digest of what suites expect; names and notes that Great Expectations keeps beside it are left out."""
    asked = [
        [{name: one.get(name) for name in ("type", "kwargs")} for one in suite["expectations"]]
        for suite in suites
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _require_own_file(table: Table) -> None:
    if table.source is not None:
        raise PlanRefused(
            f"table {table.name!r} is on a server, where a suite's SQL could read and write other tables; suites run over "
            "DuckDB and Parquet files, and dpflow contract from-suite names what can be a paid check"
        )


def _build_expectations(suites: Sequence[Any]) -> list[Any]:
    """Great Expectations' own objects. Raises `InvalidInput` for a type that it does not have, or wrong arguments."""
    with silence_libraries(), require_extra("quality", "a data contract"):
        import great_expectations as gx

    expectations: list[Any] = []
    for suite in suites:
        for entry in suite["expectations"]:
            kind = str(entry.get("type"))
            if unknown := sorted({*entry} - _FIELDS):
                raise InvalidInput(
                    f"{kind[:80]!r} of the suite has a field {str(unknown[0])[:80]!r}, which changes nothing; write what is "
                    "expected into kwargs"
                )
            if "$PARAMETER" in str(entry.get("kwargs")):
                raise InvalidInput(f"{kind[:80]!r} has a parameter of a run; write a value")
            try:
                with silence_libraries():
                    built = gx.ExpectationSuite(
                        "suite", expectations=[{"type": kind, "kwargs": dict(entry["kwargs"])}]
                    )
            # Of the file, not of rows: but texts of pydantic and others quote what they were given.
            except Exception:  # noqa: BLE001
                built = None
            if built is None or not built.expectations:
                raise InvalidInput(
                    f"Great Expectations cannot make {kind[:80]!r} of the suite; save the suite with the version that "
                    "is installed here"
                )
            expectations += built.expectations
    return expectations
