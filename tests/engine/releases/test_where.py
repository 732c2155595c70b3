"""A filter is part of a release: of its key, its record and its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dpflow import Ledger, plan, release
from dpflow.engine import load_request, make_plan
from dpflow.errors import PlanRefused
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny


def run(tiny: Tiny, where: str | None, **changes: Any) -> Any:
    """Release the file with a filter, as the file door does it."""
    wanted = make_plan(
        load_request(tiny.file(where=where, params={"epsilon": "0.2"}, **changes)), Registry.load()
    )
    return release(wanted, Ledger(tiny.ledger))


def test_a_filter_selects_rows_and_is_recorded(tiny: Tiny) -> None:
    """The receipt's release reads only the rows that pass; the ledger keeps the condition in its
    canonical form.
    """
    everything, some = (
        run(tiny, None),
        run(tiny, "age BETWEEN 20 AND 29 or city in ('Rome')", name="some"),
    )
    assert not everything.replayed and not some.replayed
    kept = {r.request["name"]: r.request["where"] for r in Ledger(tiny.ledger).releases("visits")}
    canonical = """((("age" >= 20) AND ("age" <= 29)) OR ("city" IN ('Rome')))"""
    assert kept == {"visits": None, "some": canonical}


def test_the_same_condition_in_other_words_is_free(tiny: Tiny) -> None:
    """Spaces and brackets do not make a new release; another condition does."""
    assert not run(tiny, "age>=18").replayed
    assert run(tiny, '( "age" >= 18.0 )  -- adults').replayed
    assert not run(tiny, "age >= 19", revision=2).replayed


def test_a_filter_outside_the_language_costs_nothing(tiny: Tiny) -> None:
    """It is refused when planned, or by the catalog before anything is charged; the budget stays
    whole.
    """
    ledger = Ledger(tiny.ledger)
    for where in ("error(note) = 'x'", "age IN (SELECT 1)"):
        with pytest.raises(PlanRefused, match="breaks the rule"):
            run(tiny, where)
    with pytest.raises(PlanRefused, match="'types'"):
        run(tiny, "note > 3")
    assert not list(ledger.releases("visits"))


def test_the_python_door(tiny: Tiny) -> None:
    """`plan` takes the same condition and shows it."""
    wanted = plan(
        "count",
        tiny.folder / "visits.yml",
        name="n",
        scope="visits",
        blocks=["2020-01-01"],
        where="age>1",
        epsilon="0.1",
    )
    assert wanted.describe()["where"] == '("age" > 1)'
