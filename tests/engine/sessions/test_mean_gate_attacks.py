"""What was tried against gates: numbers that nobody paid for, and labels that say more than is proven."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from holdout_gates import grant_people, open_session

from dpflow import Session
from dpflow.engine.sessions.candidate import Candidate, Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from smallworld import Tiny

#: Of 2,000 people 777 have a value in ``other``.
ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, i % 2 AS guess,
       CASE WHEN i < 777 THEN 1 - i % 2 END AS other
FROM range(2000) t(i)
"""
COLUMNS = {
    "sick": {"lower": 0, "upper": 1, "missing": 0},
    "guess": {"lower": 0, "upper": 1, "missing": 0},
    "other": {"lower": 0, "upper": 1},
}


def open_gate(tiny: Tiny, table: dict[str, Any], mechanism: str = "gate", **params: Any) -> Session:
    grant_people(tiny, ROWS, COLUMNS, **table)
    given = {"failures": 2, "metric": "column_agreement"} | params
    return open_session(tiny, mechanism, **given)


def make_candidate(session: Session, column: str) -> Candidate:
    fields = session.fill_metric({"name": column, "claim": 0, "features": ["sick", column]})
    return load_candidate(Submission.model_validate(fields))


@pytest.mark.parametrize("turned", [False, True])
def test_a_champions_missing_values_are_no_public_number(tiny: Tiny, turned: bool) -> None:
    """Under replace the number of people is public, and that of those with a value in the champion's
    columns is not: it was divided by, and stood in the answer's noise. Nor is anything proven of all people.
    """
    session = open_gate(tiny, {"neighbours": "replace"}, epsilon="20", question="champion")
    names = ("other", "guess") if turned else ("guess", "other")
    answer = session.challenge(*(make_candidate(session, name) for name in names))
    assert "noise" not in answer and answer["guarantee"] == "unproven"
    assert "may lack a value in other" in answer["because"]


def test_exact_verdicts_tell_no_second_number_of_units(tiny: Tiny) -> None:
    """A proof counts transcripts of yes and no. How many people have a value in other columns would
    be one more text, so it decides nothing that is said.
    """
    exact = {"method": "description_length", "threshold": "0.02"}
    session = open_gate(tiny, {"generalisation_only": True}, **exact)
    said = {
        column: judge(session, {"name": column, "claim": "0.8", "features": ["sick", column]})
        for column in ("other", "guess")
    }
    assert said["guess"]["guarantee"] == "proven" and "interval" in said["guess"]
    assert said["other"]["guarantee"] == "unproven" and "interval" not in said["other"]
    assert "may lack a value in other" in said["other"]["because"]


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(
    "table", [{}, {"neighbours": "replace"}, {"generalisation_only": True}], ids=str
)
@pytest.mark.parametrize("first", ["other", "guess"])
def test_a_number_of_other_units_is_in_no_answer(
    tiny: Tiny, table: dict[str, Any], rows: int, first: str
) -> None:
    """Where a unit may have several rows nobody asked which columns may be missing: the first question's
    2,000 units stood for the 777 of another one, and its proven interval was false.
    """
    noise = {"epsilon": "20", "count_epsilon": "1", "threshold": "0.02"}
    if "generalisation_only" in table:
        noise.pop("count_epsilon")
    session = open_gate(tiny, table | {"contribution_bounds": {"rows": rows}}, **noise)
    said = {
        column: judge(session, {"name": column, "claim": "0.5", "features": ["sick", column]})
        for column in (first, *{"guess", "other"} - {first})
    }
    other = said["other"]
    assert other["guarantee"] == "unproven" and not {"interval", "noise", "score"} & set(other)
    assert "may lack a value in other" in other["because"]


def test_a_challenger_with_values_where_the_champion_is_bad_proves_nothing(tiny: Tiny) -> None:
    """It is better by far on the people with a value in both, and worse on all."""
    session = open_gate(tiny, {}, epsilon="20", question="champion")
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute(
            "UPDATE visits SET guess = CASE WHEN hash(person) % 5 > 0 THEN sick ELSE 1 - sick END, "
            "other = CASE WHEN hash(person) % 5 = 0 THEN sick END"
        )
    answer = session.challenge(make_candidate(session, "other"), make_candidate(session, "guess"))
    assert answer["verdict"] == "yes" and answer["guarantee"] == "unproven"


@pytest.mark.parametrize("fills", [False, True])
def test_a_value_that_is_missing_changes_no_guarantee(tiny: Tiny, fills: bool) -> None:
    """Whether a verdict is proven follows from declarations, for it is a text that rows must not decide. A
    person without a value has the metric's default.
    """
    own = {"sql": "avg(sick + 0 * other)", "range": [0, 1], "default": 0, "better": "higher"}
    metric, table = {"estimator": own}, {"generalisation_only": True}
    session = open_gate(tiny, table, epsilon="20", threshold="0.02", metric=metric)
    if fills:
        with duckdb.connect(str(tiny.database)) as connection:
            connection.execute("UPDATE visits SET other = coalesce(other, 1 - sick)")
    said = judge(session, {"name": "a", "claim": "0.5" if fills else "0.194"})
    assert (said["verdict"], said["guarantee"]) == ("yes", "proven"), said


def test_exact_groups_tell_no_second_number_of_units(tiny: Tiny) -> None:
    """The same of the median of groups, whose tolerance is a function of it."""
    exact = {"method": "description_length", "groups": 1000, "queries": 3, "failures": 1}
    session = open_gate(tiny, {"generalisation_only": True}, "reusable_holdout", **exact, rho="0.24", alpha="0.2")  # fmt: skip
    said = [
        judge(session, {"name": column, "claim": "0.01", "features": ["sick", column]})
        for column in ("guess", "other")
    ]
    assert "2000 units" in said[0]["because"] or "tolerance" in said[0]
    assert "other columns may be missing" in said[1]["because"]


@pytest.mark.parametrize("claim", ["7", "-0.01", "1e9", "-1e9"])
def test_a_claim_that_no_score_reaches_is_refused(tiny: Tiny, claim: str) -> None:
    """It would be a certain no, and paid for."""
    session = open_gate(tiny, {}, threshold="0.02", epsilon="20", count_epsilon="1")
    with pytest.raises(InvalidInput, match="outside of the metric's range"):
        judge(session, {"name": "a", "claim": claim, "features": ["sick", "guess"]})
    assert session.remaining()["queries_left"] == 100
    pair = [make_candidate(session, name) for name in ("guess", "other")]
    with pytest.raises(InvalidInput, match="smaller better_by"):
        session.challenge(pair[0], pair[1], Fraction(2))


def test_rows_that_change_meanwhile_prove_nothing(tiny: Tiny) -> None:
    """Whoever changes rows meanwhile has seen verdicts, so they are no fresh ones."""
    exact = {"method": "description_length", "threshold": "0.02"}
    session = open_gate(tiny, {"generalisation_only": True}, **exact)
    first = judge(session, {"name": "a", "claim": "0.81", "features": ["sick", "guess"]})
    assert first["guarantee"] == "proven"
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET guess = 1 - guess WHERE person = 'p7'")
    later = judge(session, {"name": "b", "claim": "0.82", "features": ["sick", "guess"]})
    assert later["guarantee"] == "unproven" and "rows" in later["because"]
    assert "interval" in first and "interval" not in later
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET guess = 1 - guess WHERE person = 'p7'")
    # Rows that came back were others meanwhile.
    last = judge(session, {"name": "c", "claim": "0.83", "features": ["sick", "guess"]})
    assert last["guarantee"] == "unproven"
    again = judge(session, {"name": "a", "claim": "0.81", "features": ["sick", "guess"]})
    assert again == first
