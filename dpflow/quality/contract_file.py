"""Data contracts as people write them: a mode, checks, and what they may cost."""

from __future__ import annotations

import calendar
import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from dpflow.catalogue import fill_request, locate_declaration
from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import (
    Exact,
    Strict,
    describe_problems,
    require_values,
)
from dpflow.core.toolbox.row_checks import RowCheck
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.tables.access.declarations import load_table
from dpflow.yaml_files import load_yaml

Mode = Literal["public", "trusted", "metered", "watch"]
#: Fields that only paid modes take.
PAID = (
    "scope",
    "checks",
    "drift",
    "epsilon",
    "delta",
    "confidence",
    "undecided",
    "revision",
    "rows",
)
#: Fields that only mode trusted takes.
TRUSTED = ("suite",)
#: Fields that only a watch takes.
WATCH = ("alarms", "period", "questions")


class DriftCheck(Strict):
    """How far the shares of a column's public keys may be from those of an earlier release.

    Attributes:
        name: what results call it.
        column: a column with public keys.
        reference: name of a settled release in the same scope that counts all rows by this column, as the table is
            declared now.
        at_most: the total variation distance that is allowed, from 0 to 1. A watch asks of each key
            whether its share moved by more: then the distance is above ``at_most``, too.
        epsilon: the privacy cost of this check, where metered; a watch pays for all checks together.
    """

    example: ClassVar[str] = (
        "{name: mix, column: city, reference: by city, at_most: 0.1, epsilon: 0.1}"
    )

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]
    column: str
    reference: Annotated[str, Field(min_length=1, max_length=200)]
    at_most: Annotated[Exact, Field(ge=0, lt=1)]
    epsilon: Epsilon | None = None


class Contract(Strict):
    """What rows must keep, and how it is found out.

    Attributes:
        name: what results and releases call it.
        table: the declaration's name in ``dpflow.yml``, or its path relative to the contract's file.
        mode: ``public`` (the file's catalogue, no row), ``trusted`` (one bit of the rows, recorded
            and not charged), ``metered`` (noisy numbers, paid on every run) or ``watch`` (sessions,
            paid whole when they are opened).
        suite: a suite or checkpoint of Great Expectations 1 (JSON), relative to the contract's file, which the table's
            owner registered; trusted only. It is run instead of what the declaration promises.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        checks: bounds on the rows (`dpflow.core.toolbox.row_checks`), in paid modes.
        drift: bounds on the distance from an earlier release.
        epsilon: the cost of all ``checks`` together: of each run where metered, of each session
            where watched, drift included.
        delta: allows Gaussian noise, metered only.
        confidence: of one check of a metered contract: its verdict is wrong because of noise with
            no more than the rest.
        rows: about how many rows a run reads, as far as the public knows, metered only. The cost is then
            split so that as many checks as possible can decide, and the plan says which.
        undecided: what a check does that the noise cannot decide: ``fail`` or ``pass``.
        revision: a higher number makes the same run a new, paid one. Metered tasks of Airflow are known by their run
            instead, and pay nothing for it.
        alarms: how many a session of a watch may raise before another one is paid.
        period: which blocks a watch's session names: those of the run, or of its day, ISO week,
            month or year; blocks are then dates.
        questions: for how many a watch's margin is made; all checks of all blocks if left out.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)] = "contract"
    table: Path
    mode: Mode = "trusted"
    suite: Path | None = None
    scope: str = ""
    checks: Annotated[tuple[RowCheck, ...], Field(max_length=100)] = ()
    drift: tuple[DriftCheck, ...] = ()
    epsilon: Epsilon | None = None
    delta: Delta = Fraction(0)
    confidence: Annotated[Exact, Field(ge=0.5, lt=1)] = Fraction(95, 100)
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None
    undecided: Literal["fail", "pass"] = "fail"
    revision: Annotated[int, Field(ge=1)] = 1
    alarms: Annotated[int, Field(ge=1, le=1000)] = 1
    period: Literal["run", "day", "week", "month", "year"] = "month"
    questions: Annotated[int, Field(ge=1, le=10**6)] | None = None

    @model_validator(mode="after")
    def _check_mode(self) -> Contract:
        given = self.model_fields_set
        free = self.mode in ("public", "trusted")
        wrong = [f for f in PAID if free and f in given]
        wrong += [f for f in TRUSTED if self.mode != "trusted" and f in given]
        wrong += [f for f in WATCH if self.mode != "watch" and f in given]
        wrong += [f for f in ("delta", "confidence", "rows") if self.mode == "watch" and f in given]
        # A catalogue default for the scope is no mistake of the contract's author.
        if wrong := [f for f in wrong if f != "scope"]:
            raise ValueError(f"mode {self.mode} takes no {', '.join(wrong)}")
        if free:
            return self
        if not self.checks and not self.drift:
            raise ValueError(f"mode {self.mode} needs checks")
        watches = self.mode == "watch"
        if (watches or bool(self.checks)) != (self.epsilon is not None):
            raise ValueError("checks and epsilon go together: epsilon pays for all checks")
        if any((one.epsilon is None) != watches for one in self.drift):
            raise ValueError(
                "a metered drift check needs an epsilon of its own, and in a watch the session's pays for it"
            )
        names = [*(check.name for check in self.checks), *(check.name for check in self.drift)]
        if len(set(names)) < len(names):
            raise ValueError("name each check once")
        if not self.scope:
            raise ValueError(f"mode {self.mode} needs a scope: which budget pays")
        return self

    @property
    def is_paid(self) -> bool:
        """Whether a run is charged to a budget."""
        return self.mode in ("metered", "watch")

    def load_declaration(self) -> Table:
        """The declared table that it is about."""
        return load_table(self.table)


def parse_contract(data: Mapping[str, Any], folder: Path, what: str = "what is given") -> Contract:
    """Validate a contract; its table is looked for from ``folder``.

    Raises:
        InvalidDeclaration: the message names the field.
        UnknownName: ``dpflow.yml`` names no such table.
    """
    fields = dict(data)
    if not isinstance(fields.get("table"), str | Path):
        raise InvalidDeclaration(f"{what} is not a data contract: table: is missing; add it")
    if fields.get("mode") in ("metered", "watch"):
        scope = fill_request({"table": fields["table"]} | _scope(fields), folder).get("scope")
        fields |= {"scope": scope} if scope else {}
    try:
        contract = Contract.model_validate(fields)
    except ValidationError as error:
        raise InvalidDeclaration(
            f"{what} is not a data contract: {describe_problems(error)}"
        ) from None
    # Behind the names: what is no field is not told to have a value.
    require_values(data, what)
    place = locate_declaration(fields["table"], folder).resolve()
    suite = contract.suite and (folder / contract.suite).resolve()
    return contract.model_copy(update={"table": place, "suite": suite})


def _scope(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"scope": fields["scope"]} if "scope" in fields else {}


def load_contract(path: Path | str) -> Contract:
    """Read a contract's file (YAML). Raises as `parse_contract`, and `InvalidInput` without one."""
    path = Path(path)
    return parse_contract(load_yaml(path, "data contract"), path.parent, str(path))


def join_name(parts: Sequence[str], blocks: Sequence[str]) -> str:
    """The name of what a contract releases or asks, by its parts, none of which need be there. A long one is cut, and
    a digest tells it from others that begin alike.
    """
    name = " ".join(filter(None, parts))
    if len(name) <= 200:
        return name
    return (
        f"{name[:150]} and {len(blocks)} blocks, {hashlib.sha256(name.encode()).hexdigest()[:16]}"
    )


def list_period(block: str, period: str) -> list[str]:
    """The blocks of the period that a block is in, as dates in order.

    Raises `InvalidInput` for a block that is no date.
    """
    try:
        day = dt.date.fromisoformat(block)
    except ValueError:
        raise InvalidInput(
            f"a watch by {period} needs blocks that are dates, and {block[:80]!r} is none; take period: run"
        ) from None
    # 20200101 is a date, too, but no block of the period is called so.
    if block != str(day):
        raise InvalidInput(
            f"a watch by {period} calls its blocks as {str(day)!r}, and {block!r} is another name; write it so"
        )
    if period == "week":
        first = last = day.toordinal() - day.weekday()
        last += 6
    elif period == "month":
        days = calendar.monthrange(day.year, day.month)[1]
        first, last = day.replace(day=1).toordinal(), day.replace(day=days).toordinal()
    elif period == "year":
        first, last = dt.date(day.year, 1, 1).toordinal(), dt.date(day.year, 12, 31).toordinal()
    else:
        first = last = day.toordinal()
    # The last week of the calendar is short, and so is its first one.
    first, last = max(first, dt.date.min.toordinal()), min(last, dt.date.max.toordinal())
    return [str(dt.date.fromordinal(n)) for n in range(first, last + 1)]


def require_blocks(contract: Contract, table: Table, blocks: Sequence[str]) -> None:
    """Raises `InvalidInput` where the blocks of a run do not fit the contract and its table."""
    if blocks and table.block is None:
        raise InvalidInput(
            f"table {table.name!r} declares no block column, so no block of it can be checked"
        )
    if contract.mode == "watch" and not blocks:
        raise InvalidInput(
            "a watch answers once for each block, and would tell later runs of all rows what it told the first; name the "
            "run's blocks, or take mode: metered"
        )
