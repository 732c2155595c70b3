"""Counts of units that choose their groups by a histogram of their own rows: for one cost, and truly."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file
from orders_world import REGISTRY

import dpflow
from dpflow import Ledger
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.events import ZCDP, Composed, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import SizeCounts, UnitSizes
from dpflow.core.toolbox.noise import Noise
from dpflow.engine import fail_closed, make_plan, release
from dpflow.engine.releases import execute, own_histogram
from dpflow.engine.releases.release_list import describe_event, release_list
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import PlanRefused
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource

KEYS = [f"k{n}" for n in range(60)]
UNITS = "SELECT key, COUNT(DISTINCT customer) AS n FROM orders GROUP BY key"


class World:
    """2,000 customers in two of sixty keys each, of whom ten are in all; and a ledger."""

    def __init__(self, folder: Path, filter: str = "hybrid") -> None:
        self.file = folder / "orders.duckdb"
        with duckdb_file(self.file) as connection:
            connection.execute(
                "CREATE TABLE orders AS SELECT customer, 'k' || CAST((customer * 7 + n) % 60 AS INTEGER) AS key, n AS cost "
                "FROM range(2000) c(customer), range(60) o(n) WHERE n < 2 OR customer < 10"
            )
        self.table = self.declare()
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        terms: Any = {"principal": "owner", "confirm_large": True, "filter": filter}
        self.ledger.grant("orders", "1000", "1e-3", table=self.table, **terms)

    def declare(self, **changes: Any) -> Table:
        declared: dict[str, Any] = {
            "name": "orders",
            "database": self.file,
            "privacy_unit": {"column": "customer"},
            "contribution_bounds": {"rows": 60},
            "columns": {
                "key": {"public_keys": KEYS, **changes.pop("key", {})},
                "cost": {"lower": 0, "upper": 60},
            },
        }
        return Table.model_validate(declared | changes)

    def plan(self, table: Table | None = None, **params: Any) -> Any:
        request = ReleaseRequest(
            name="units",
            mechanism="count_distinct",
            scope="orders",
            table=table or self.table,
            params={"by": "key", "epsilon": "1", **params},
        )
        return make_plan(request, REGISTRY, self.ledger)

    def ask(self, text: str = UNITS, **options: Any) -> Any:
        return dpflow.sql(
            text,
            tables=[self.table],
            ledger=self.ledger,
            scope="orders",
            **{"epsilon": "1"} | options,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("orders"))


class _Given(Noise):
    """Noise that makes any counts the given ones."""

    given: tuple[int, ...]

    def add_noise(self, exact: Any, source: Any) -> Any:
        return np.array(self.given)


def _log_laplace(scale: float, distance: Any) -> Any:
    q = np.exp(-1 / scale)
    return np.log((1 - q) / (1 + q)) - np.abs(distance) / scale


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_histogram_and_numbers_together_cost_what_is_charged(
    tmp_path: Path, neighbours: str
) -> None:
    """Exactly, over grids of both outputs: one unit in three groups, of which the noisy histogram keeps some;
    its neighbour has none, or a unit in a
    group that nobody listed. With noise for fewer groups than are kept the charge is false.
    """
    with duckdb_file(tmp_path / "tiny.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS u, unnest(['a', 'b', 'c']) AS k")
    table = Table.model_validate(
        {
            "name": "t",
            "database": tmp_path / "tiny.duckdb",
            "privacy_unit": {"column": "u"},
            "neighbours": neighbours,
            "contribution_bounds": {"rows": 3},
            "columns": {"k": {"public_keys": ["a", "b", "c"]}},
        }
    )
    request = ReleaseRequest(
        name="n",
        mechanism="count_distinct",
        scope="t",
        table=table,
        params={"by": "k", "epsilon": "2"},
    )
    plan = own_histogram.apply_histogram(make_plan(request, REGISTRY), Fraction(1), (1, 2, 3))
    assert plan.event.epsilon_delta() == (2, 0)
    sizes = SizeCounts((np.array([3]), np.array([1])), ((np.array([3]), np.array([1])),))
    # Units by groups, and listed groups of the unit that differs.
    one_group = (1, 0, 0) if neighbours == "replace" else (0, 0, 0)
    tables = {"unit": ((0, 0, 1), 3), "neighbour": (one_group, 0)}
    numbers = np.array(list(itertools.product(range(-9, 11, 3), repeat=3)))
    own_scale = float(plan.histogram.noise.scale)

    def list_kept(reached: int, groups: int) -> list[tuple[int, ...]]:
        """What the unit's numbers are, each as likely."""
        keep = list(itertools.combinations(range(reached), min(reached, groups)))
        return [tuple(int(k in one) for k in range(3)) for one in keep]

    def log_law(name: str, counts: Any, groups: int, scale: float) -> Any:
        exact, reached = tables[name]
        first = _log_laplace(own_scale, np.array(counts) - np.array(exact)).sum()
        laws = [
            _log_laplace(scale, numbers - kept).sum(axis=1) for kept in list_kept(reached, groups)
        ]
        return first + np.logaddexp.reduce(laws, axis=0) - np.log(len(laws))

    worst, wrong, chosen = 0.0, 0.0, set()
    for counts in itertools.product(range(-16, 17, 4), repeat=3):
        given = _Given(plan.histogram.noise.event)
        object.__setattr__(given, "given", counts)
        drawn = own_histogram.draw_histogram(
            replace(plan, histogram=replace(plan.histogram, noise=given)), sizes, StreamSource(1)
        )
        bound = own_histogram.bind_groups(plan, drawn)
        groups = bound.table.bounds_for("k").groups
        chosen.add(groups)
        ((_, noise),) = bound.mechanism.choose_release(bound.params, bound.table)[0].noises.items()
        for scale, is_right in ((float(noise.scale), True), (float(noise.scale) / groups, False)):
            laws = [log_law(name, counts, groups, scale) for name in tables]
            ratio = float(np.abs(laws[0] - laws[1]).max())
            worst, wrong = (max(worst, ratio), wrong) if is_right else (worst, max(wrong, ratio))
        request = bound.mechanism.data_request(bound.params, bound.table)
        if counts[0] == 0:
            kept = tuple(PrivateTable(bound.table).answer(request, ()).units.tolist())
            assert kept in list_kept(3, groups)
    assert chosen >= {1, 3}
    assert 1.8 < worst <= 2 + 1e-9 < 2.5 < wrong


@pytest.mark.parametrize("delta", [None, "1e-6"])
def test_every_choice_has_the_event_that_is_charged(world: World, delta: str | None) -> None:
    """Noise of each number of groups is within it, and one with another price is refused."""
    law = {} if delta is None else {"delta": delta, "noise": "gaussian"}
    question = world.plan(**law)
    question = question.question or question
    plan = own_histogram.apply_histogram(question, Fraction(3, 20), (1, 2, 3, 4, 6, 61))
    assert isinstance(plan.event, Composed)
    own, rest = plan.event.events
    assert own.epsilon_delta() == (Fraction(3, 20), 0)
    assert isinstance(rest, ZCDP if delta else Pure)
    for groups in (1, 2, 17, 60):
        bound = own_histogram.bind_groups(plan, {"groups": groups})
        event = bound.mechanism.event(bound.params, bound.table)
        if delta is None:
            assert event.epsilon_delta() == rest.epsilon_delta()
        else:
            # Sensitivities are rounded up by one part in 10^12.
            assert event.rho_delta()[0] <= rest.rho_delta()[0] * (1 + Fraction(1, 10**11))
    dearer = replace(plan, params=plan.params.model_copy(update={"epsilon": Fraction(1)}))
    with pytest.raises(PlanRefused):
        own_histogram.bind_groups(dearer, {"groups": 1})


def test_numbers_are_nearer_and_total_intervals_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same question without a histogram, at the same price."""
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    own = World(tmp_path)
    plan = own.plan()
    assert plan.histogram is not None and plan.privacy_cost() == ("1", "0")
    with duckdb_file(own.file) as connection:
        truth = dict(
            connection.execute(
                "SELECT key, count(DISTINCT customer) FROM orders GROUP BY key"
            ).fetchall()
        )
    frame = own.ask().to_pandas(intervals=True).set_index("key")
    before = own.ask(groups=60, rows_per_unit=60).to_pandas(intervals=True).set_index("key")
    exact = np.array([truth[key] for key in frame.index])
    assert np.median(np.abs(frame["n"] - exact)) < np.median(np.abs(before["n"] - exact)) / 2
    assert (frame["n_noise_high"] - frame["n_noise_low"]).max() < (
        before["n_noise_high"] - before["n_noise_low"]
    ).min() / 2
    held = (frame["n_low"] <= exact) & (exact <= frame["n_high"])
    assert held.mean() >= 0.9
    # By the noise that the document names: at most so many are in more groups.
    record = (
        own.ledger.find(RunIdentity.of_request(plan.request).key(plan)) or own.ledger.releases()[0]
    )
    document = record.result["document"]["own_histogram"]
    assert document["groups"] < 60 and document["limit_above"] >= 10


def test_a_stored_answer_is_free_and_has_its_own_intervals(world: World) -> None:
    """Whatever chooses bounds later; and what was paid is the question's price."""
    spent = world.ledger.remaining("orders").rows()[0]["epsilon_spent"]
    first = world.ask(revision=5)
    paid = Fraction(world.ledger.remaining("orders").rows()[0]["epsilon_spent"]) - Fraction(spent)
    assert paid == 1 and any("own histogram" in note for note in first.notes)
    again = world.ask(revision=5)
    assert again.free and again.notes == first.notes
    assert again.to_arrow(True).equals(first.to_arrow(True))
    assert world.ask().to_arrow(True).equals(first.to_arrow(True))


def test_explain_says_what_it_costs_and_how_fine_it_is(world: World) -> None:
    options: Any = {
        "tables": [world.table],
        "ledger": world.ledger,
        "scope": "orders",
        "epsilon": "1",
    }
    told = dpflow.plan_sql(UNITS, **options, revision=9).explain(world.ledger)
    stage = next(one for one in told["stages"] if "histogram" in one)
    assert "0.15 of epsilon 1 pays for a histogram of groups per customer (resolution " in stage
    (column,) = (one for one in told["columns"] if one["column"] == "n")
    assert "at most +- " in column["noise"] and column["half_width_95"] is None
    assert told["releases"][0]["epsilon"] == "1"
    assert "histogram" in world.plan().describe()["contributions"]


def test_where_it_is_not_taken(world: World, tmp_path: Path) -> None:
    """Where groups are declared or asked for, where rows are counted, too, where an error is asked for, where little
    could be gained, and where a profile counts the groups.
    """
    assert world.plan().histogram is not None
    assert world.plan(world.declare(key={"groups": 12})).histogram is None
    assert (
        world.plan(world.declare(contribution_bounds={"rows": 60, "groups": 50})).histogram is None
    )
    assert world.plan(world.declare(contribution_bounds={"rows": 10})).histogram is None
    few = world.declare(key={"public_keys": KEYS[:12]})
    assert world.plan(few).histogram is None
    options: Any = {
        "tables": [world.table],
        "ledger": world.ledger,
        "scope": "orders",
        "revision": 20,
    }
    for text, terms in (
        (UNITS.replace("AS n", "AS n, COUNT(*) AS m"), {"epsilon": "1"}),
        (UNITS, {"error": "100"}),
        (UNITS, {"epsilon": "1", "groups": 30}),
    ):
        assert dpflow.plan_sql(text, **options, **terms).parts[0].plan.histogram is None
    own = World(tmp_path)
    assert own.plan().histogram is not None
    request = ReleaseRequest(
        name="contributions of orders",
        mechanism="contributions",
        scope="orders",
        table=own.table,
        params={"epsilon": "2"},
    )
    release(make_plan(request, REGISTRY, own.ledger), own.ledger, REGISTRY)
    counted = own.plan()
    assert counted.chosen is not None and counted.histogram is None
    # The profile counts the key and not an expression of it.
    by = "CASE WHEN cost > 5 THEN key ELSE key || '' END"
    request = own.plan().request
    by_expression = request.model_copy(update={"params": {**request.params, "by": by}})
    assert make_plan(by_expression, REGISTRY, own.ledger).histogram is None


KILLED = """
import sys, os
from pathlib import Path
sys.path[:0] = sys.argv[2].split(os.pathsep)
from dpflow import Ledger, fault_points
import importlib.util as load
spec = load.spec_from_file_location('tests', sys.argv[3])
tests = load.module_from_spec(spec)
spec.loader.exec_module(tests)
world = tests.World.__new__(tests.World)
world.file = Path(sys.argv[1]) / "orders.duckdb"
world.table = world.declare()
world.ledger = Ledger(Path(sys.argv[1]) / "ledger.sqlite")
fault_points.armed = "histogram.after:kill"
world.ask()
"""


@pytest.mark.own_session
def test_a_kill_between_both_draws_pays_once(tmp_path: Path) -> None:
    """kill -9 after the histogram and before the numbers: the next try takes a new histogram for the same charge, and
    nothing of the first is kept.
    """
    own = World(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path), ":".join(sys.path), __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (record,) = own.ledger.releases()
    assert record.state == "reserved" and record.result is None
    assert record.request["own_histogram"]["epsilon"] == "0.15"
    assert "counts" not in json.dumps(record.request)
    answer = own.ask()
    (record,) = own.ledger.releases()
    assert record.state == "settled" and record.result is not None
    assert own.ledger.remaining("orders").rows()[0]["epsilon_spent"] == "1"
    assert any("own histogram" in note for note in answer.notes)


def test_a_retry_draws_by_what_was_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the histogram that a first try charged, though none would be taken now; and without, though one would."""
    own = World(tmp_path)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for revision, taken in ((1, True), (2, False)):
        with monkeypatch.context() as patch:
            patch.setattr(execute, "_draw_and_settle", stop)
            if not taken:
                patch.setattr(own_histogram, "MAX_WIDTH", Fraction(0))
            with pytest.raises(KeyboardInterrupt):
                own.ask(revision=revision)
        with monkeypatch.context() as patch:
            if taken:
                patch.setattr(own_histogram, "MAX_WIDTH", Fraction(0))
            answer = own.ask(revision=revision)
        assert any("own histogram" in note for note in answer.notes) == taken
        assert own.ask(revision=revision).to_arrow(True).equals(answer.to_arrow(True))
    assert own.ledger.remaining("orders").rows()[0]["epsilon_spent"] == "2"


def test_notes_say_what_holds_of_the_answer(tmp_path: Path) -> None:
    """What is cut; and of what total intervals hold, where a column has one: not what rests on the limits of several
    histograms, each of which may fail.
    """
    own = World(tmp_path)
    assert any("total intervals" in note for note in own.ask().notes)
    for text in (
        f"SELECT SUM(n) AS s, AVG(n) AS a, MAX(n) AS m FROM ({UNITS})",
        f"SELECT a.n + b.m AS s FROM ({UNITS}) a JOIN (SELECT key, COUNT(DISTINCT customer) AS m FROM orders "
        "WHERE cost > 0 GROUP BY key) b USING (key)",
    ):
        answer = own.ask(text)
        is_stated = "SUM(n)" in text
        assert {column.total for column in answer.columns} == {
            "stated" if is_stated else "no interval"
        }
        assert any("total intervals" in note for note in answer.notes) == is_stated
        cuts = [note for note in answer.notes if "own histogram" in note]
        assert cuts and all("noise intervals leave out what that cuts" in note for note in cuts)
        assert not any("rows_per_group" in note for note in cuts)


def test_a_certified_scope_pays_for_no_histogram(tmp_path: Path) -> None:
    """Though the plan was made before the scope asked for certificates."""
    own = World(tmp_path, filter="basic")
    plan = own.plan()
    assert plan.histogram is not None
    keys = [own.ledger.signer.public_text]
    terms: Any = {"principal": "owner", "confirm_large": True, "filter": "basic"}
    own.ledger.grant("orders", "1000", "1e-3", table=own.table, certified_by=keys, **terms)
    with pytest.raises(PlanRefused, match="no certificate covers the histogram"):
        release(plan, own.ledger, REGISTRY)
    assert own.ledger.releases() == [] and own.plan().histogram is None


def test_less_epsilon_keeps_the_law(world: World) -> None:
    """With 0.85 of epsilon 4 Gaussian noise of 12 groups would be less, which a basic scope does not hold."""
    table = world.declare(contribution_bounds={"rows": 12})
    question = world.plan(table, epsilon="4", delta="1e-6")
    rest = question.params.model_copy(update={"epsilon": Fraction(17, 5)})
    laws = [question.mechanism.choose_release(one, table)[0].law for one in (question.params, rest)]
    assert question.histogram is None and laws == ["laplace", "gaussian"]
    own = own_histogram.apply_histogram(question, Fraction(3, 5), (1, 2, 13))
    assert isinstance(own.event, Composed) and own.event.events[1] == Pure(Fraction(17, 5))


def test_an_event_states_no_width_of_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a histogram fixes it, nor where a retry has a profile that its charge had not; then a retry that was
    charged by a profile has its width.
    """
    own = World(tmp_path)
    request = own.plan().request

    def make(request: ReleaseRequest) -> dict[str, Any]:
        run = RunIdentity.of_request(request)
        ((plan, receipt),) = release_list([request], lambda *_: run, own.ledger, REGISTRY)
        widths = {row.half_width_95 for row in receipt.result.rows if row.measure}
        return {"said": describe_event(plan, receipt)["half_width_95"], "drawn": widths}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(execute, "_draw_and_settle", stop)
        make(request)
    profile = {"name": "contributions of orders", "mechanism": "contributions"}
    change = request.model_copy(update=profile | {"params": {"epsilon": "4"}})
    release(make_plan(change, REGISTRY, own.ledger), own.ledger, REGISTRY)
    assert make_plan(request, REGISTRY, own.ledger).histogram is None
    assert make(request)["said"] is None
    chosen = make(request.model_copy(update={"revision": 2}))
    assert {chosen["said"]["count_distinct"]} == chosen["drawn"]


@pytest.mark.parametrize("crashed", [False, True])
def test_a_target_error_is_not_answered_by_a_wider_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    """Of the same question at the same price, whether it was drawn or only charged: by every customer in all groups."""
    own = World(tmp_path)
    with duckdb_file(own.file) as connection:
        connection.execute(
            "CREATE OR REPLACE TABLE orders AS SELECT customer, 'k' || CAST(n AS INTEGER) AS key, n AS cost "
            "FROM range(3000) c(customer), range(60) o(n)"
        )
    options: Any = {"tables": [own.table], "ledger": own.ledger, "scope": "orders", "error": "100"}
    (part,) = dpflow.plan_sql(UNITS, **options).parts
    assert part.plan.histogram is None
    epsilon = exact_text(part.plan.params.epsilon)  # type: ignore[attr-defined]

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    if crashed:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(execute, "_draw_and_settle", stop)
            own.ask(epsilon=epsilon)
    else:
        own.ask(epsilon=epsilon)
    spent = own.ledger.remaining("orders").rows()[0]["epsilon_spent"]
    for ask in (dpflow.sql, dpflow.plan_sql):
        with pytest.raises(PlanRefused, match="another revision"):
            ask(UNITS, **options)
    assert own.ledger.remaining("orders").rows()[0]["epsilon_spent"] == spent
    frame = dpflow.sql(UNITS, **options, revision=2).to_pandas(intervals=True)
    assert (frame["n_noise_high"] - frame["n_noise_low"]).max() <= 200
    # What is stored within the target serves.
    assert dpflow.sql(UNITS, **options, revision=2).free


def test_both_requests_read_one_open_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody can write the file between them."""
    seen: list[tuple[str, Any]] = []
    answer = PrivateTable.open_answer

    def watch(self: PrivateTable, request: Any, blocks: Any) -> Any:
        seen.append((type(request).__name__, self._backend._held))
        return answer(self, request, blocks)

    monkeypatch.setattr(PrivateTable, "open_answer", watch)
    world.ask(revision=30)
    assert [name for name, _ in seen] == ["UnitSizes", "GroupedSums"]
    assert seen[0][1] is not None and seen[0][1] is seen[1][1]


def test_a_failed_draw_has_no_histogram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may depend on rows, so it is settled without a number and stays paid."""
    own = World(tmp_path)

    def fail(*_: Any) -> None:
        raise ValueError("a row")

    with monkeypatch.context() as patch:
        patch.setattr(own_histogram, "count_bins", fail)
        answer = own.ask()
    assert any("failed after it was charged" in note for note in answer.notes)
    (record,) = own.ledger.releases()
    assert record.result is not None and "document" not in record.result
    assert own.ledger.remaining("orders").rows()[0]["epsilon_spent"] == "1"


def test_a_filter_that_holds_no_gaussian_noise(tmp_path: Path) -> None:
    """The law is that which the scope holds, though the plan was made without it."""
    own = World(tmp_path, filter="basic")
    plan = own.plan(delta="1e-6")
    receipt = release(plan, own.ledger, REGISTRY)
    assert receipt.result.rows[0].value is not None
    assert plan.histogram is None or "gaussian" not in str(plan.event)


@pytest.mark.parametrize("blocks", [("0",), ("0", "1")])
def test_a_unit_counts_once_in_each_block(tmp_path: Path, blocks: tuple[str, ...]) -> None:
    """Where it is protected in each block it is in the histogram of each, so one block's rows move that by one, and each
    block pays once. A sum of blocks is no number of units, and is refused.
    """
    file = tmp_path / "orders.duckdb"
    with duckdb_file(file) as connection:
        connection.execute(
            "CREATE TABLE orders AS SELECT d AS day, customer, 'k' || CAST((customer * 7 + n) % 60 AS INTEGER) AS key "
            "FROM range(2) b(d), range(2000) c(customer), range(60) o(n) WHERE n < 2 OR customer < 10"
        )
        truth = dict(
            connection.execute(
                "SELECT key, count(DISTINCT (customer, day)) FROM orders WHERE day < ? GROUP BY key",
                [len(blocks)],
            ).fetchall()
        )
    own = World.__new__(World)
    own.file = file
    columns = {"key": {"public_keys": KEYS}, "day": {}}
    own.table = own.declare(protects="unit-block", block="day", columns=columns)
    sizes = PrivateTable(own.table).answer(UnitSizes(("key",)), blocks)
    assert [*zip(*map(list, sizes.groups[0]))] == [(2, 1990 * len(blocks)), (60, 10 * len(blocks))]
    own.ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    own.ledger.grant(
        "orders", "1000", "1e-3", table=own.table, principal="owner", confirm_large=True
    )
    request = ReleaseRequest(
        name="units",
        mechanism="count_distinct",
        scope="orders",
        table=own.table,
        params={"by": "key", "epsilon": "4"},
        blocks=blocks,
    )
    if len(blocks) > 1:
        with pytest.raises(PlanRefused, match="each would count once in every day"):
            make_plan(request, REGISTRY, own.ledger)
        return
    receipt = release(make_plan(request, REGISTRY, own.ledger), own.ledger, REGISTRY)
    assert "own_histogram" in receipt.result.document
    rows = [row for row in receipt.result.rows if row.measure == "count_distinct"]
    groups = receipt.result.document["own_histogram"]["groups"]
    assert groups < 60 and len(rows) == 60
    assert np.median([abs(row.value - truth[row.key]) for row in rows]) < 30
    assert receipt.result.totals is not None
    spent = own.ledger.remaining("orders").rows()
    assert {row["epsilon_spent"] for row in spent if row["epsilon_spent"] != "0"} == {"4"}


def test_where_keys_are_private_nothing_is_taken(world: World) -> None:
    """Which groups there are is in the rows, so no number of groups bounds what is cut; the plan says what noise is for."""
    columns = {"key": {}, "cost": {"lower": 0, "upper": 60}}
    table = world.declare(columns=columns)
    request = world.plan().request
    params = {"by": "key", "epsilon": "1", "delta": "1e-6", "measures": ["count_distinct"]}
    private = request.model_copy(
        update={"mechanism": "private_aggregates", "table": table, "params": params}
    )
    plan = make_plan(private, REGISTRY, world.ledger)
    assert plan.histogram is None
    assert "60 groups" in plan.describe()["contributions"]
    assert "so noise is made for 60" in plan.undeclared_groups()


def test_a_condition_leaves_fewer_groups_to_choose_from(world: World) -> None:
    """A histogram has bins for the groups that a condition leaves, and none is taken where these are few."""
    few, many = ", ".join(map(repr, KEYS[:5])), ", ".join(map(repr, KEYS[:40]))
    request = world.plan().request
    plans = [
        make_plan(request.model_copy(update={"where": f"key IN ({keys})"}), REGISTRY, world.ledger)
        for keys in (few, many)
    ]
    assert plans[0].histogram is None
    assert plans[1].histogram is not None and plans[1].histogram.starts[-1] <= 40
