"""What a task shows in Airflow's page: its log, its label among mapped ones, its documentation, and one
line where its template cannot be rendered.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
from airflow_names import AirflowFailException
from airflow_tasks import context, make_release

from dpflow.errors import LedgerUnavailable
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")


def read_log(operator: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a task writes into its log."""
    lines: list[str] = []
    log = logging.Logger("task")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    monkeypatch.setattr(type(operator), "log", log)
    operator.execute(context)
    # Airflow's own line about a call from a test.
    return [line for line in lines if "outside of the Task Runner" not in line]


def test_a_release_says_what_it_paid_and_what_is_left(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked, charged, published, left; a retry says that nothing was charged, and since when. No
    line has the released number.
    """
    from dpflow.airflow import ReleaseOperator

    publish = {"database": "out.duckdb", "table": "visits"}
    operator = ReleaseOperator(task_id="t", release=make_release(publish=publish))
    first = read_log(operator, context(tiny), monkeypatch)
    assert first[0] == (
        "visits (count): asks scope visits, block 2020-01-01, for epsilon 0.5, delta 0"
    )
    published = "published in out.duckdb:visits; release [0-9a-f]+"
    # Whole lines: the released number may be small, and then any line has its digits.
    charged = "charged epsilon 0[.]5, delta 0 to scope visits"
    assert re.fullmatch(f"visits: {charged}; {published}", first[1])
    left = "left in visits, block 2020-01-01: epsilon 0.5 of 1, delta 0.000001; 50 % are used"
    assert first[2:] == [left]
    retry = read_log(operator, context(tiny, try_number=2), monkeypatch)
    time = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} UTC"
    run = "d/t/2020-01-01T00:00:00[+]00:00/2020-01-02T00:00:00[+]00:00"
    stored = (
        f"nothing was charged: {run} paid, and it was settled at {time}; this is its stored result"
    )
    assert re.fullmatch(f"visits: {stored}; {published}", retry[1])
    assert retry[0] == first[0] and retry[2:] == first[2:]


def test_a_line_that_cannot_be_written_fails_no_task(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is read after the release was settled: a ledger that is busy then is no reason
    to fail.
    """
    from dpflow.airflow import ReleaseOperator

    def refuse(ledger: Ledger, scope: str) -> None:
        raise LedgerUnavailable("busy")

    monkeypatch.setattr(Ledger, "remaining", refuse)
    lines = read_log(
        ReleaseOperator(task_id="t", release=make_release()), context(tiny), monkeypatch
    )
    assert lines[-1] == "what is left in visits could not be read: busy"


def test_checks_reports_and_grants_say_what_they_saw(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each, with the numbers of the ledger."""
    from dpflow.airflow import BudgetCheckOperator, BudgetGrantOperator, BudgetReportOperator

    check = BudgetCheckOperator(task_id="c", releases=[make_release()])
    assert read_log(check, context(tiny), monkeypatch) == [
        "releases planned: 1; to pay: 1; they fit"
    ]
    report = BudgetReportOperator(task_id="r", scope="visits")
    assert read_log(report, context(tiny), monkeypatch) == [
        "scope visits: 1 budgets; the fullest is used by 0 %"
    ]
    grant = BudgetGrantOperator(task_id="g", scope="new", epsilon="2", table=None)
    assert read_log(grant, context(tiny), monkeypatch) == ["granted scope new epsilon 2, delta 0"]
    assert read_log(grant, context(tiny), monkeypatch) == [
        "scope new has this grant: nothing was changed"
    ]


def test_a_report_of_many_blocks_is_short(tiny: Tiny) -> None:
    """An XCom for people: the fullest ten, how many are exhausted, and where the others are."""
    from dpflow.airflow import BudgetReportOperator, ReleaseOperator

    first = dt.date(2020, 1, 1)
    days = [str(first + dt.timedelta(days=n)) for n in range(14)]
    for number, part in enumerate((days, days[:3], days[:1])):
        asked = make_release(blocks=part, params={"epsilon": ("0.1", "0.75", "0.15")[number]})
        seen = context(tiny, task_id=f"t{number}")
        ReleaseOperator(task_id=f"t{number}", release=asked).execute(seen)
    report = BudgetReportOperator(task_id="r", scope="visits").execute(context(tiny))
    assert [row["block"] for row in report["budgets"][:3]] == days[:3]
    assert [row["epsilon_spent"] for row in report["budgets"]] == ["1", "0.85", "0.85"] + [
        "0.1"
    ] * 7
    totals = {name: report[name] for name in ("blocks", "exhausted", "nearly_exhausted")}
    assert totals == {"blocks": 14, "exhausted": 1, "nearly_exhausted": 2}
    assert report["page"] == "/dpflow/scope?name=visits"


def test_a_session_says_what_it_asks_and_that_it_goes_on(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paid for once: the first run says what it asks, later ones that nothing is charged."""
    from dpflow.airflow import SessionOperator

    session = make_release(
        name="medians",
        mechanism="stable_median",
        params={"epsilon": "0.25", "groups": 10, "queries": 2},
    )
    operator = SessionOperator(task_id="s", session=session, queries=[])
    first = read_log(operator, context(tiny), monkeypatch)
    assert first[0] == (
        "session medians: asks scope visits for epsilon 0.5, delta 0, once for all that it answers"
    )
    again = read_log(operator, context(tiny, run_id="scheduled__2"), monkeypatch)
    assert again[0] == "session medians goes on: scope visits paid for it before"
    assert again[1:] == first[1:]
    (row,) = Ledger(tiny.ledger).remaining("visits").rows()
    assert row["epsilon_spent"] == "0.5"


def test_a_template_without_a_logical_date_fails_once(tiny: Tiny) -> None:
    """A run that was triggered by hand has no ds. Airflow would try again and fail again."""
    from dpflow.airflow import ReleaseOperator

    strict = jinja2.Environment(undefined=jinja2.StrictUndefined)  # as a DAG's is
    operator = ReleaseOperator(task_id="t", release=make_release(), blocks="{{ ds }}")
    by_hand = context(tiny) | {"logical_date": None}
    with pytest.raises(
        AirflowFailException, match="no logical date.*backfill create.*write run_id"
    ) as failure:
        operator.render_template_fields(by_hand, strict)
    assert "'ds' is undefined" in str(failure.value)
    assert failure.value.__context__ is None
    with pytest.raises(AirflowFailException, match="'nowhere' is undefined; change the template"):
        ReleaseOperator(
            task_id="u", release=make_release(name="{{ nowhere }}")
        ).render_template_fields(context(tiny), strict)
    operator.render_template_fields(context(tiny) | {"ds": "2020-01-01"}, strict)
    assert operator.blocks == "2020-01-01"


def test_a_backfill_runs_the_day_it_names_and_a_trigger_the_day_before() -> None:
    """Airflow's own timetable and table: what the message and the page advise, and what they warn of."""
    import pendulum
    from airflow.models.dagrun import DagRun
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    daily, day = CronDataIntervalTimetable("0 0 * * *", "UTC"), pendulum.datetime(2026, 1, 2)
    backfilled = TimeRestriction(day, day, catchup=True)
    run = daily.next_dagrun_info(last_automated_data_interval=None, restriction=backfilled)
    assert run is not None
    assert (run.data_interval.start, run.logical_date) == (day, day)
    triggered = daily.infer_manual_data_interval(run_after=day)
    assert triggered.start == day.subtract(days=1)
    unique = {
        tuple(c.columns.keys())
        for c in DagRun.__table__.constraints
        if "unique" in str(type(c)).lower()
    }
    assert ("dag_id", "logical_date") in unique


def test_an_error_names_the_block_that_templates_became(tiny: Tiny) -> None:
    from dpflow.airflow import ReleaseOperator

    operator = ReleaseOperator(
        task_id="t", release=make_release(scope="nobody"), blocks=["2020-01-01"]
    )
    with pytest.raises(AirflowFailException, match="this task asks for block 2020-01-01"):
        operator.execute(context(tiny))


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"release": make_release()}, "visits 2020-01-01"),
        ({"release": "releases/daily.yml", "blocks": "{{ run_id }}"}, "daily scheduled__1"),
        (
            {"release": [make_release(blocks=[]), make_release(name="more", blocks=[])]},
            "visits, more",
        ),
        ({"release": make_release(name="n" * 300)}, "n" * 100),
    ],
)
def test_a_mapped_task_is_called_by_what_it_releases(
    tiny: Tiny, arguments: dict[str, Any], label: str
) -> None:
    """Not 0 to 3; a DAG's own template wins, and a task that is not mapped has none."""
    from dpflow.airflow import ReleaseOperator

    def render(map_index: int, **more: Any) -> dict[str, Any]:
        seen = context(tiny, map_index=map_index) | {"run_id": "scheduled__1"} | more
        ReleaseOperator(task_id="t", **arguments).render_template_fields(seen)
        return seen

    mapped = render(3)
    assert mapped["map_index_template"] == "{{ dpflow_label }}"
    assert mapped["dpflow_label"] == label
    assert render(3, map_index_template="mine")["map_index_template"] == "mine"
    assert "map_index_template" not in render(-1)


def test_every_operator_documents_its_tasks() -> None:
    """The first paragraph of its class, unless a DAG has a text of its own."""
    from dpflow import airflow

    for name in airflow.__all__:
        operator = getattr(airflow, name)
        assert issubclass(operator, airflow.base_operator.PrivacyOperator), name
    task = airflow.BudgetReportOperator(task_id="r", scope="visits")
    assert task.doc_md.startswith("Return what remains in a scope, per block")
    assert airflow.BudgetReportOperator(task_id="s", scope="v", doc_md="Mine").doc_md == "Mine"
