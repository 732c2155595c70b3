"""A release before it is paid for: frozen, hashable, made without touching data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from pydantic import BaseModel

from dpflow.core.accounting.amounts import exact_text, to_units_up
from dpflow.core.accounting.events import (
    Event,
    to_json,
)
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import GroupBounds, RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.gate import Gate
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.requests import UnboundedValues, UnitSizes
from dpflow.core.contract.results import ErrorBound
from dpflow.core.toolbox.aggregate import MeasureMechanism
from dpflow.core.toolbox.noise import Noise
from dpflow.engine.releases.clamped_features import (
    describe_clamped_features,
    describe_clamped_rows,
)
from dpflow.engine.releases.grid_check import describe_coarse
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.result_table import write_html
from dpflow.tables.language.conditions import parse_condition

#: Where a plan has no number for the error.
IN_RESULT = "depends on the rows; part of the result"
#: Of an epsilon that is computed for a report; rounded up, so it never promises too much.
EPSILON_STEP = Fraction(1, 10**6)


@lru_cache(maxsize=256)
def _prove_epsilon(event: Event, delta: Fraction) -> Fraction:
    """The least epsilon proved at ``delta``, rounded up to the step of reports. Plans, charges and receipts say it
    of the same event.
    """
    return to_units_up(event.epsilon_at(delta) or Fraction(0), EPSILON_STEP) * EPSILON_STEP


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON: of public things only."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


@dataclass(frozen=True)
class Candidate:
    """Contribution bounds in words, the half-widths of their noise at 95 % by measure, and what a profile expects them
    to cut of one group in the mean; empty without one.
    """

    bounds: str
    half_width_95: Mapping[str, float]
    cut: Mapping[str, float]

    def describe(self) -> str:
        """All of it on one line."""
        widths = ", ".join(
            f"{name} +- {print_bound(width, upper=True)}"
            for name, width in self.half_width_95.items()
        )
        cuts = ", ".join(f"{number:.3g} {noun}" for noun, number in self.cut.items())
        expected = f"; expected cut of a group {cuts}" if cuts else ""
        return f"{self.bounds}: noise {widths or 'see the note'}{expected}"


@dataclass(frozen=True)
class ChosenBounds:
    """Contribution bounds that a released profile chose, apart from those that a person asks for.

    Attributes:
        profile: id of the release.
    """

    bounds: RequestedBounds
    profile: str

    def to_json(self) -> dict[str, Any]:
        """What a charge keeps, and `from_json` reads."""
        return {"profile": self.profile, **self.bounds.model_dump()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChosenBounds:
        """The bounds of a charge."""
        numbers = {name: number for name, number in data.items() if name != "profile"}
        return cls(RequestedBounds.model_validate(numbers), str(data["profile"]))


@dataclass(frozen=True)
class OwnHistogram:
    """The histogram of groups per unit that a count of units takes of its own rows first
    (`dpflow.engine.releases.own_histogram`).

    Attributes:
        epsilon: its privacy cost, which is part of the release's.
        law: of the noise of the numbers that follow, fixed before anything is drawn.
        starts: the least number of groups of each bin.
        noise: of one bin.
    """

    epsilon: Fraction
    law: str
    starts: tuple[int, ...]
    noise: Noise

    @property
    def resolution(self) -> int:
        """How far the number of units above any number of groups may be from the truth, at 95 %."""
        return self.noise.sum_half_width(len(self.starts))

    def to_json(self) -> dict[str, Any]:
        """What a charge keeps."""
        return {
            "epsilon": exact_text(self.epsilon),
            "noise": self.law,
            "starts": list(self.starts),
        }


@dataclass(frozen=True, repr=False)
class Plan:
    """A validated release or session.

    Attributes:
        event: its privacy guarantee for one declared privacy unit.
        error_bound: the half-width of its noise interval, or None if that depends on the rows.
        version_independent_digest: digest of everything but the mechanism's version. Of the
            declaration it holds what the plan depends on (`dpflow.engine.releases.make_plan.make_plan`).
        digest: the same with the mechanism's version; part of the exactly-once key.
        declared: what it depends on of the declaration: ``bounds`` of contributions, and digests of what
            chooses ``rows`` and of each of the ``columns`` that it uses (`measures_same_rows`); empty for a session.
        chosen: the contribution bounds that a profile chose. Digests do not depend on them.
        candidates: bounds that a profile compared, its choice first; none where they are read from a charge.
        key_share: of the grouping's public keys the share that the condition may leave a row; the table has no others.
        sums_epsilons: whether a filter that pays adds up epsilons as events state them
            (`ScopeFilters.sum_epsilons`).
        question: the plan with the declared bounds; None where none were chosen.
        histogram: what it takes first, at a share of its epsilon; ``params`` have the rest. The table has the most
            groups that it may choose, and those that it chose where ``chosen_groups``.
    """

    request: ReleaseRequest
    table: Table
    mechanism: Mechanism[Any] | InteractiveMechanism[Any, Any] = field(compare=False)
    params: BaseModel = field(compare=False)
    event: Event = field(compare=False)
    error_bound: ErrorBound | None = field(compare=False)
    version_independent_digest: str
    digest: str
    declared: dict[str, Any] = field(default_factory=dict, compare=False)
    chosen: ChosenBounds | None = field(default=None, compare=False)
    candidates: tuple[Candidate, ...] = field(default=(), compare=False)
    key_share: float = field(default=1.0, compare=False)
    sums_epsilons: bool = field(default=False, compare=False)
    question: Plan | None = field(default=None, compare=False)
    histogram: OwnHistogram | None = field(default=None, compare=False)
    chosen_groups: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        epsilon, delta = self.privacy_cost()
        return (
            f"Plan({self.request.name!r}: {self.mechanism.name} of {self.table.name}, epsilon {epsilon}, "
            f"delta {delta}, from scope {self.request.scope!r})"
        )

    def _repr_html_(self) -> str:
        epsilon, delta = self.privacy_cost()
        about = {
            "mechanism": self.mechanism.name,
            "table": self.table.name,
            "protects": self.table.protection_text,
            "scope": self.request.scope,
            "blocks": ", ".join(self.request.blocks),
            "where": self.request.where or "",
            "cost": f"epsilon {epsilon}, delta {delta}",
        }
        widths = self.error_bound.half_width if self.error_bound else {}
        noise = ", ".join(
            f"{measure} +- {print_bound(width, upper=True)}" for measure, width in widths.items()
        )
        about["95 % noise interval"] = noise or IN_RESULT
        lines = [(name, text) for name, text in about.items() if text]
        return write_html(f"plan {self.request.name}", (), lines)

    @property
    def charged_blocks(self) -> tuple[str, ...]:
        """The blocks whose budgets pay: those it reads if the declaration protects per block, else
        none by name.
        """
        return self.request.blocks if self.table.protects == "unit-block" else ()

    @property
    def read_blocks(self) -> tuple[str, ...]:
        """The blocks that it reads, sorted; of rows made one for each unit, those that they are made of. None if all are."""
        blocks, units = set(self.request.blocks), self.table.unit_rows
        while units is not None:
            blocks |= set(units.blocks)
            units = units.rows.unit_rows
        return tuple(sorted(blocks))

    @property
    def has_delta(self) -> bool:
        """Whether the parameters ask for a delta."""
        return bool(getattr(self.params, "delta", None))

    def privacy_cost(self) -> tuple[str, str]:
        """Epsilon and delta as exact text: what the event states, or at the delta it asks for where a scope of
        Renyi divergences pays and that proves less. An event without an epsilon has one at its delta, else at 1e-9.
        """
        exact, own_delta = self.event.epsilon_delta(), getattr(self.params, "delta", None)
        if exact is None or (own_delta and not exact[1] and not self.sums_epsilons):
            delta = own_delta or Fraction(1, 10**9)
            proved = _prove_epsilon(self.event, delta)
            if exact is None or proved < exact[0]:
                exact = (proved, delta)
        return exact_text(exact[0]), exact_text(exact[1])

    def describe(self) -> dict[str, Any]:
        """What a person wants to know before spending."""
        epsilon, delta = self.privacy_cost()
        return {
            "mechanism": f"{self.mechanism.name} (version {self.mechanism.version})",
            "table": self.table.name,
            "protects": self.table.protection_text,
            "scope": self.request.scope,
            "blocks": ", ".join(self.request.blocks) or "(none)",
            "where": self.request.where or "(all rows)",
            "bounds": self._describe_bounds(),
            "contributions": "; ".join(
                filter(
                    None,
                    (self.describe_contributions(), self.undeclared_groups()),
                )
            ),
            "epsilon": epsilon,
            "delta": delta,
            "guarantee": to_json(self.event),
            "half_width_95": (self.error_bound and self.error_bound.half_width)
            or ("none proven; see the note" if self.error_bound else IN_RESULT),
            "note": self.error_bound.note if self.error_bound else self._session_note(),
            "candidates": "; ".join(self.describe_candidates()),
            "digest": self.digest,
        }

    def _describe_bounds(self) -> str:
        """The searches that find them, or the declared bounds of the columns that the request
        names.
        """
        if self.request.bounds:
            return self.describe_clamping() or ", ".join(map(repr, self.request.bounds))
        coarse = self.coarse_grids()
        used_columns = set(iterate_texts(self.params.model_dump(mode="json")))
        ranges = [
            f"{name} from {column.grid_value(low)} to {column.grid_value(high)}{coarse.get(name, '')}"
            for name, column in self.table.columns.items()
            if name in used_columns and column.lower is not None
            for low, high in [column.grid_bounds()]
        ]
        return ", ".join(ranges) or "(none needed)"

    def describe_clamping(self) -> str:
        """Bounds that searches found, and how many rows are beyond them; "" where none was searched, or a
        forecast assumes them.
        """
        coarse = self.coarse_grids()
        return "; ".join(
            f"{name} from {column.grid_value(low)} to {column.grid_value(high)}{coarse.get(name, '')}: {column.clamping}"
            for name, column in self.table.columns.items()
            if column.clamping
            for low, high in [column.grid_bounds()]
        )

    def describe_contributions(self) -> str:
        """How much one unit counts, and which words of the declaration say so."""
        by = getattr(self.params, "by", None)
        bounds = self.table.bounds_for(by if by in self.table.columns else None)
        unit = self.table.privacy_unit.column
        if self._read_kind is UnitSizes:
            return f"all rows of each {unit} count"
        if by not in self.table.columns:
            origin = f" (rows chosen by profile {self.chosen.profile[:8]})" if self.chosen else ""
            rows = f"{bounds.rows} row{'' if bounds.rows == 1 else 's'}"
            return f"one {unit} counts with at most {rows}{origin}"
        groups, in_each = self.table.limits_for(by)
        if self.chosen_groups:
            # Units are counted, so how many rows they have in a group says nothing.
            cut = groups.number < len(self.table.public_keys(by))
            return (
                f"one {unit} counts in at most {groups.number} group{'s' * (groups.number > 1)} ({groups.source})"
                f"{'; noise intervals leave out what that cuts' if cut else ''}"
            )
        sources = dict.fromkeys((groups.source, in_each.source))
        text = f"one {unit} counts in at most {bounds.describe()} ({'; '.join(sources)})"
        return "; ".join(filter(None, (text, self.describe_histogram())))

    def describe_histogram(self) -> str:
        """What a release measures of its own rows first, at which share of its cost; "" where it does not."""
        own = self.histogram
        if own is None or self.chosen_groups:
            return ""
        unit, whole = self.table.privacy_unit.column, (self.question or self).params
        return (
            f"{exact_text(own.epsilon)} of epsilon {exact_text(whole.epsilon)} pays for a histogram of groups per {unit} "  # type: ignore[attr-defined]
            f"(resolution {own.resolution}), which takes fewer groups where few {unit}s reach more"
        )

    def describe_candidates(self) -> list[str]:
        """Contribution bounds with their noise and cut, those of the plan first; none where a request fixes them, or
        fewer rows and groups would not lower the noise.
        """
        return [one.describe() for one in self.candidates or self._halve_bounds()]

    def _halve_bounds(self) -> list[Candidate]:
        """Without a profile: the declared bounds, half and a quarter of them."""
        mechanism, by = self.mechanism, getattr(self.params, "by", None)
        is_open = isinstance(mechanism, MeasureMechanism) and not (self.chosen or self.histogram)
        if not is_open or self.request.contribution_bounds or self.table.unit_rows:
            return []
        assert isinstance(mechanism, MeasureMechanism)
        by = by if by in self.table.columns else None
        found: dict[tuple[float, ...], Candidate] = {}
        for part in (1, 2, 4):
            bounds = (max(1, one // part) for one in self.table.bounds_for(by))
            groups, in_each, rows = bounds
            requested = RequestedBounds(groups=groups, rows_per_group=in_each, rows=rows)
            table = self.table.with_bounds(by, requested)
            widths = dict(mechanism.error_bound(self.params, table).half_width)
            words = table.bounds_for(by).describe()
            if widths:
                found.setdefault(tuple(widths.values()), Candidate(words, widths, {}))
        return [*found.values()] if len(found) > 1 else []

    def undeclared_groups(self) -> str:
        """What to declare where noise is made for as many groups as a unit has rows, because nobody said
        in how many it can be; "" where fewer groups would not mean less noise.
        """
        by, table, mechanism = getattr(self.params, "by", None), self.table, self.mechanism
        if by not in table.columns or not isinstance(mechanism, Mechanism) or self.histogram:
            return ""
        groups, _ = table.limits_for(by)
        if groups.number == 1 or groups.source != "contribution_bounds.rows":
            return ""
        one_group = mechanism.error_bound(
            self.params, table.with_bounds(by, RequestedBounds(groups=1))
        )
        if one_group == self.error_bound:
            return ""
        unit, number = table.privacy_unit.column, groups.number
        if not any(
            table.columns[one].public_keys is None for one in table.columns[by].parts or (by,)
        ):
            number = min(number, len(table.public_keys(by)))
        return (
            f"nobody declared how many groups of {by} one {unit} can be in, so noise is made for {number}; "
            f"for less noise declare groups of the column (contribution_bounds.groups for several), or fix groups for "
            f"this release"
        )

    def describe_last_group(self) -> str:
        """What the last group is, where units are grouped by how many rows they have: those are listed up to
        the declared number; "" elsewhere.
        """
        by, rows = getattr(self.params, "by", None), self.table.unit_rows
        if rows is None or not isinstance(by, str) or by not in self.table.columns:
            return ""
        listed = {
            name: self.table.last_count(name) for name in self.table.columns[by].parts or (by,)
        }
        last = [f"{key} of {name}" for name, key in listed.items() if key is not None]
        unit = self.table.privacy_unit.column
        groups = f"group{'s' * (len(last) > 1)} {' and '.join(last)}"
        return (
            f"{groups}: each {unit} with as many or more (contribution_bounds.rows)" if last else ""
        )

    def describe_clamped_features(self) -> str:
        """What is clamped of numbers that are made of each unit's rows; "" where nothing is
        (`dpflow.engine.releases.clamped_features`).
        """
        texts = self.params.model_dump(mode="json")
        columns, by = self.table.columns, texts.pop("by", None)
        keys = {
            key
            for name in {*iterate_texts(by)} & {*columns}
            for key in columns[name].parts or (name,)
        }
        values = sorted({*iterate_texts(texts)} & {*columns} - keys)
        added = describe_clamped_rows(self.table, self.request.where, values, sorted(keys))
        features = describe_clamped_features(self.table, self.bounded_columns("by"))
        return "; ".join(filter(None, (features, added)))

    @cached_property
    def _read_kind(self) -> type[Any] | None:
        """Of the statistic that is read; None of a session, which reads its own."""
        if not isinstance(self.mechanism, Mechanism):
            return None
        return type(self.mechanism.data_request(self.params, self.table))

    def bounded_columns(self, *leave_out: str) -> dict[str, Column]:
        """The columns with bounds that the parameters name, but for some of them, unless the mechanism
        reads values as they are.
        """
        if self._read_kind is UnboundedValues:
            return {}
        values = self.params.model_dump(mode="json", exclude=set(leave_out))
        used, columns = set(iterate_texts(values)), self.table.columns.items()
        return {
            name: column for name, column in columns if name in used and column.lower is not None
        }

    def coarse_grids(self) -> dict[str, str]:
        """For value columns of few grid points whose step nobody declared, and those of dates, a warning
        that values are rounded to them; labels and keys are left out, and values that are read as they are.
        """
        warnings = {}
        for name, column in self.bounded_columns("label", "by").items():
            if column.holds_dates:
                warnings[name] = " (times are rounded to days)"
                continue
            if warning := describe_coarse(column):
                warnings[name] = warning
        return warnings

    def _session_note(self) -> str:
        if isinstance(self.mechanism, InteractiveMechanism):
            return str(self.mechanism.note(self.params, self.table))
        return ""

    def measures_same_rows(self, request: Mapping[str, Any]) -> bool:
        """Whether a charge's public request took rows as this plan does, of whichever blocks: under the same
        condition, of a table declared alike, each unit's rows cut as is declared. It may use more columns.
        """
        stored = request.get("declared", {"columns": {}})
        return (
            request.get("where") == self.request.where
            and not {"chosen_bounds", "own_histogram"} & request.keys()
            and self.declared["columns"].items() <= stored["columns"].items()
            and self.declared | {"columns": None} == stored | {"columns": None}
        )

    def ledger_entry(self) -> dict[str, Any]:
        """What the ledger's history keeps of the request; all of it was known before a row was read."""
        sealed = self.table.cached_partials == "sealed"
        place, widths = (
            self.request.publish,
            # What its own histogram chooses is not known yet.
            self.error_bound.half_width if self.error_bound and not self.histogram else {},
        )
        finite = {measure: width for measure, width in widths.items() if math.isfinite(width)}
        computed = list_computed(self.request.where, self.table)
        units = self.table.unit_rows
        return {
            "name": self.request.name,
            "mechanism": self.mechanism.name,
            "version": self.mechanism.version,
            "params": (self.question or self).params.model_dump(mode="json"),
            "table": self.table.name,
            "protects": self.table.protection_text,
            "blocks": list(self.request.blocks),
            # Another declaration may have another column under these blocks.
            **({"block": self.table.block} if self.request.blocks else {}),
            "where": self.request.where,
            **({"unit_rows": units.to_json()} if units else {}),
            **({"computed": computed} if computed else {}),
            "bounds": list(self.request.bounds),
            **(
                {"contribution_bounds": requested.model_dump(exclude_none=True)}
                if (requested := self.request.contribution_bounds)
                else {}
            ),
            # Whoever reads the result later sees whether the declaration of then was that of now.
            **({"declared": dict(self.declared)} if self.declared else {}),
            **({"chosen_bounds": self.chosen.to_json()} if self.chosen else {}),
            **({"own_histogram": self.histogram.to_json()} if self.histogram else {}),
            "epsilon": self.privacy_cost()[0],
            "delta": self.privacy_cost()[1],
            # For pages, which have no registry: what a gate is asked at most.
            **(
                {"gate": dict(self.mechanism.limits(self.params))}
                if isinstance(self.mechanism, Gate)
                else {}
            ),
            # Of sealed blocks, so that who audits sees which version of them was read.
            **({"sealed_version": self.table.sealed_version} if sealed else {}),
            # For who reads receipts without a key: how wide the noise is, and where the values are.
            **({"half_width_95": finite} if finite else {}),
            **({"publish": f"{place.database.name}:{place.table}"} if place else {}),
        }


def digest_declaration(form: Mapping[str, Any], bounds: GroupBounds) -> dict[str, Any]:
    """What a plan depends on of the declaration, as `Plan.declared` has it."""
    rest = {k: v for k, v in form.items() if k not in ("columns", "contribution_bounds")}
    columns = {name: digest_column(column) for name, column in form["columns"].items()}
    return {"bounds": list(bounds), "rows": digest(rest)[:16], "columns": columns}


def digest_column(form: Mapping[str, Any]) -> str:
    """A column's stored form, in short. Limits of columns are in the bounds of a grouping, too."""
    return digest({k: v for k, v in form.items() if k not in ("groups", "rows_per_group")})[:16]


def list_computed(where: str | None, table: Table) -> dict[str, str]:
    """The computed columns that a condition reads, and what they are computed from, which another declaration may
    change.
    """
    names = [] if where is None else sorted(parse_condition(where, table).column_names())
    computed = {}
    for name in names:
        column = table.columns.get(name)
        names += [] if column is None else column.parts or ()
        if column is not None and (column.parts or column.expression):
            computed[name] = column.expression or ", ".join(column.parts or ())
    return computed


def iterate_texts(value: Any) -> Iterator[str]:
    """Every text in JSON, names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from iterate_texts(inner)
