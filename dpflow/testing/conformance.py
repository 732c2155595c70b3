"""Checks that every mechanism passes, built-in or third-party.

    for check in conformance_checks(MyMechanism()):
        check.run()

or, in a test module, ``@parametrize_with_checks([MyMechanism()])`` from
`dpflow.testing.pytest_plugin`. A check raises `NotConformant` and says what the contract asks.
Examples come from the standard field names (`dpflow.testing.examples`), or from the author. Each
check is one function whose docstring is the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpflow.core.accounting.events import Event, from_json, to_json
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import (
    DataRequest,
    GroupedSums,
    KeySets,
    SortedValues,
    UnboundedValues,
    group_limit,
    row_limit,
)
from dpflow.errors import InvalidInput
from dpflow.testing.exact_checks import (
    guarantee_holds_exactly,
    randomness_has_a_law,
    tiny_examples,
)
from dpflow.testing.examples import (
    AnyMechanism,
    Example,
    add_computed_columns,
    examples_for,
    plan_mechanism,
    validate_model,
)
from dpflow.testing.generated_checks import GENERATED
from dpflow.testing.harness import Check, NotConformant, require
from dpflow.testing.release_checks import ONE_SHOT
from dpflow.testing.session_checks import SESSION
from dpflow.testing.work import fix_randomness

__all__ = [
    "Check",
    "Example",
    "NotConformant",
    "conformance_checks",
    "interactive_checks",
    "mechanism_checks",
]


def conformance_checks(
    mechanism: AnyMechanism, examples: Sequence[Example] | None = None
) -> Iterator[Check]:
    """All checks for a mechanism of either kind."""
    if isinstance(mechanism, InteractiveMechanism):
        return interactive_checks(mechanism, examples)
    return mechanism_checks(mechanism, examples)


def mechanism_checks(
    mechanism: Mechanism[Any], examples: Sequence[Example] | None = None
) -> Iterator[Check]:
    """The checks of a one-shot mechanism: once for its class, on every example, and on generated
    declarations, parameters and neighbours where its parameters have standard names.
    """
    yield from _bind_rules(mechanism, examples, (*SHARED, *ONE_SHOT))
    for rule in GENERATED:
        yield _bind_rule(f"{mechanism.name}: {rule.__name__}", rule, mechanism)


def interactive_checks(
    mechanism: InteractiveMechanism[Any, Any], examples: Sequence[Example] | None = None
) -> Iterator[Check]:
    """The checks of an interactive mechanism: once for its class, then on every example and its
    queries.
    """
    return _bind_rules(mechanism, examples, (*SHARED, *SESSION))


def _bind_rules(
    mechanism: AnyMechanism,
    examples: Sequence[Example] | None,
    rules: Sequence[Callable[..., None]],
) -> Iterator[Check]:
    about = f"{mechanism.name}: class_describes_itself"
    yield _bind_rule(about, class_describes_itself, mechanism)
    examples = [add_computed_columns(mechanism, example) for example in examples or ()]
    for number, example in enumerate(examples or examples_for(mechanism)):
        for rule in (*rules, guarantee_holds_exactly) if examples else rules:
            name = f"{mechanism.name}: {rule.__name__} [{number} {example.table.neighbours}]"
            yield _bind_rule(name, rule, mechanism, example)
    # Standard parameters plan on tables that are small enough for an enumeration, too.
    for number, example in enumerate(() if examples else tiny_examples(mechanism)):
        name = f"{mechanism.name}: guarantee_holds_exactly [{number} {example.table.neighbours}]"
        yield _bind_rule(name, guarantee_holds_exactly, mechanism, example)


def _bind_rule(name: str, rule: Callable[..., None], *arguments: Any) -> Check:
    """A check whose verdict follows from code alone: its randomness has a seed, and work is counted."""

    def run() -> None:
        with fix_randomness():
            rule(*arguments)

    return Check(name, run)


def class_describes_itself(mechanism: AnyMechanism) -> None:
    """Name, version, summary, citation, and field docs."""
    for name in ("name", "summary", "citation"):
        text = getattr(mechanism, name, None)
        require(
            isinstance(text, str) and text.strip(), f"the class attribute {name} must be a text"
        )
    require(
        mechanism.name.isidentifier(), "name must be one word of letters, digits and underscores"
    )
    require(
        # bool is an int; True would be written to ledgers as version 1
        type(mechanism.version) is int and mechanism.version >= 1,
        "version must be an integer from 1",
    )
    require(
        (mechanism.Params.__doc__ or "").strip(),
        "Params needs a docstring that says what its fields mean",
    )


def params_are_strict(mechanism: AnyMechanism, example: Example) -> None:
    """Parameters refuse unknown fields, are frozen, and survive JSON."""
    params = validate_model(mechanism.Params, example.params)
    require_refusal(
        {**example.params, "no_such_field": 1},
        mechanism,
        example.table,
        "an unknown field must be refused",
    )
    # Assigning the value that is there already: only the act must be refused.
    name = next(iter(type(params).model_fields))
    try:
        setattr(params, name, getattr(params, name))
    except ValidationError:
        pass
    else:
        raise NotConformant(
            "Params must be frozen: derive it from dpflow.core.contract.mechanism.Params"
        )
    stored = json.loads(json.dumps(params.model_dump(mode="json"), allow_nan=False))
    require(
        mechanism.Params.model_validate(stored) == params,
        "parameters must be equal after a JSON round trip",
    )


def event_is_public(mechanism: AnyMechanism, example: Example) -> None:
    """The event is a function of parameters and declaration alone, and survives JSON."""
    params, event = plan_mechanism(mechanism, example.table, example.params)
    require(isinstance(event, Event), "event must return an event of dpflow.core.accounting.events")
    # The ledger stores events as JSON: one that changes on the way is charged otherwise.
    again = from_json(json.loads(json.dumps(to_json(event))))
    require(again == event, "the event must be equal after a JSON round trip")
    # Another path, same declaration: whoever reads the file while planning fails here.
    elsewhere = example.table.model_copy(update={"database": Path("/nowhere/at-all.duckdb")})
    require(
        mechanism.event(params, elsewhere) == event,
        "the event must not depend on the database file",
    )
    require(mechanism.event(params, example.table) == event, "the event must be the same each time")


# True is an int, and 1e-400 rounds to the float 0: neither may pass for an amount.
BAD_EPSILONS: tuple[Any, ...] = (
    *(0, -0.5, math.nan, math.inf, 5e-324, True, None, []),
    *("0", "-1", "nan", "1e-400", ""),
)
BAD_DELTAS: tuple[Any, ...] = ("-1e-9", 1, "1", "1.5", math.nan, "1e-400", False, "")


def bad_amounts_are_errors(mechanism: AnyMechanism, example: Example) -> None:
    """Epsilon and delta must be exact amounts in their legal ranges."""
    for name, values in (("epsilon", BAD_EPSILONS), ("delta", BAD_DELTAS)):
        for value in values if name in mechanism.Params.model_fields else ():
            raw = {**example.params, name: value}
            require_refusal(
                raw, mechanism, example.table, f"{name}: {value!r} must be refused as an amount"
            )


def bad_columns_are_errors(mechanism: AnyMechanism, example: Example) -> None:
    """An unknown column is refused, and so is one without the bounds or public keys that the
    data request needs.
    """
    for name, wrong in _misname_columns(example.params, example.table):
        raw = {**example.params, name: wrong}
        require_refusal(
            raw, mechanism, example.table, f"an unknown column as {name} must be refused"
        )
    for query in example.queries[:1]:
        for name, wrong in _misname_columns(query, example.table):
            what = f"an unknown column as {name} of a query must be refused"
            require_refusal(
                example.params, mechanism, example.table, what, [{**query, name: wrong}]
            )
    for request in _data_requests(mechanism, example):
        bounded, keyed = _required_columns(request)
        for column in bounded:
            table = _strip_column(example.table, column, lower=None, upper=None)
            what = f"{column} without bounds must be refused"
            require_refusal(example.params, mechanism, table, what, example.queries)
        for column in keyed:
            table = _strip_column(example.table, column, public_keys=None)
            what = f"{column} without public keys must be refused"
            require_refusal(example.params, mechanism, table, what, example.queries)


def request_is_within_bounds(mechanism: AnyMechanism, example: Example) -> None:
    """The data request is public and reads no more of one privacy unit than the contribution bounds
    allow.
    """
    for request in _data_requests(mechanism, example):
        require(
            isinstance(request, DataRequest),
            "data_request must return a request of dpflow.core.contract.requests",
        )
        # requests are keys of caches and sets
        hash(request)
        if isinstance(request, GroupedSums | SortedValues | UnboundedValues | KeySets):
            # A column may have limits of its own, above or below the table's.
            bounds = example.table.bounds_for(request.by)
            require(
                1 <= request.groups <= bounds.groups,
                f"groups must be at most {bounds.groups} by the declaration",
            )
        if isinstance(request, GroupedSums | SortedValues | UnboundedValues):
            require(
                1 <= request.rows_per_group <= bounds.rows_per_group,
                f"rows_per_group must be at most {bounds.rows_per_group} by the declaration",
            )
            groups = 1 if request.by is None else group_limit(request) or len(request.keys or ())
            total = row_limit(request) or groups * request.rows_per_group
            require(
                1 <= total <= bounds.rows,
                f"a unit's rows in all groups must be at most {bounds.rows}; pass rows of bounds_for",
            )
    require(
        _data_requests(mechanism, example) == _data_requests(mechanism, example),
        "the data request must be the same each time",
    )


SHARED = (
    params_are_strict,
    event_is_public,
    bad_amounts_are_errors,
    bad_columns_are_errors,
    request_is_within_bounds,
    randomness_has_a_law,
)


def require_refusal(
    raw: Mapping[str, Any],
    mechanism: AnyMechanism,
    table: Table,
    what: str,
    queries: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Planning these parameters, or asking these queries, must raise an `InvalidInput`."""
    try:
        params, _ = plan_mechanism(mechanism, table, raw)
        for query in queries:
            _query_request(mechanism, params, table, query)
    except InvalidInput:
        return
    # Any other error is a refusal by accident: no caller can tell it from a defect.
    except Exception as error:
        raise NotConformant(f"{what} with an InvalidInput, not a {type(error).__name__}") from error
    raise NotConformant(what)


def _query_request(
    mechanism: AnyMechanism, params: Any, table: Table, query: Mapping[str, Any]
) -> DataRequest:
    assert isinstance(mechanism, InteractiveMechanism)
    return mechanism.data_request(params, validate_model(mechanism.Query, query), table)


def _data_requests(mechanism: AnyMechanism, example: Example) -> list[DataRequest]:
    """What the mechanism asks for: once, or for every query."""
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    if isinstance(mechanism, Mechanism):
        return [mechanism.data_request(params, example.table)]
    return [_query_request(mechanism, params, example.table, query) for query in example.queries]


def _misname_columns(written: Mapping[str, Any], table: Table) -> Iterator[tuple[str, Any]]:
    """The fields that name columns, with a column that nobody declared."""
    for name, value in written.items():
        parts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if parts and all(isinstance(part, str) and part in table.columns for part in parts):
            yield name, "no_such_column" if isinstance(value, str) else ["no_such_column"]


def _required_columns(request: DataRequest) -> tuple[list[str], list[str]]:
    """The columns whose bounds, and those whose public keys, a request cannot do without."""
    if isinstance(request, SortedValues | UnboundedValues):
        bounded = [request.column] if isinstance(request, SortedValues) else []
        return bounded, [request.by] if request.by is not None else []
    if isinstance(request, GroupedSums):
        keyed = [request.by] if request.by is not None and request.keys is not None else []
        return [column for column, _ in request.values], keyed
    return [], []


def _strip_column(table: Table, column: str, **changed: None) -> Table:
    """The declaration with something taken away from one column."""
    columns = {**table.columns, column: table.columns[column].model_copy(update=changed)}
    return table.model_copy(update={"columns": columns})
