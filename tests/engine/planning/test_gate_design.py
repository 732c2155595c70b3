"""Gates from wishes: the method and epsilon, what the power means, and the nearest that is possible."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from gate_commands import run_gate

from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.gate_power import mean_refusal_probability
from dpflow.core.toolbox.mean_test import splitting_width, transcript_width
from dpflow.engine.planning.gate_design import GateWishes, design_gate, load_gate_file
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.testing.examples import EXAMPLE_TABLE

if TYPE_CHECKING:
    from smallworld import Tiny

REGISTRY = Registry.load()
OPEN_TABLE = EXAMPLE_TABLE.model_copy(update={"generalisation_only": True})
WISHES: dict[str, Any] = {
    "metric": "accuracy",
    "tolerance": "0.05",
    "candidates": 100,
    "units": 3000,
    "question": "claim",
}


def design(table: Table = EXAMPLE_TABLE, **changes: Any) -> Any:
    return design_gate(GateWishes.model_validate(WISHES | changes), table, REGISTRY)


def test_the_cheapest_gate_that_does_it() -> None:
    """It is right as often as was wanted, half its epsilon is not enough, and groups cost more."""
    found = design()
    assert found.chosen.method == "mean, sparse vector" and found.chosen.right >= 0.95
    assert 0.1 < found.chosen.epsilon < 3
    half = str(found.chosen.epsilon / 2)
    with pytest.raises(PlanRefused, match="the nearest that are possible"):
        design(max_epsilon=half)
    others = [one for one in found.options if one.method != "mean, sparse vector"]
    assert others and all(one.right < 0.95 or one.epsilon > found.chosen.epsilon for one in others)
    powers = [y for _, y in found.curve]
    assert powers == sorted(powers) and powers[0] <= 0.05 and dict(found.curve)[0.05] >= 0.95
    assert found.interval > 0.025


@pytest.mark.parametrize(
    ("candidates", "paid", "method"),
    [(10, 5, "Gaussian noise"), (10_000, 50, "sparse vector with a delta"), (1000, 5, "sparse vector")],
)  # fmt: skip
def test_a_delta_lets_the_cheapest_noise_win(candidates: int, paid: int, method: str) -> None:
    """Few questions are for Gaussian noise, many with few failures for a sparse vector; without a
    delta there is one noise.
    """
    asked: dict[str, Any] = {"candidates": candidates, "paid": paid, "max_epsilon": 30}
    found = design(delta="1e-6", **asked)
    means = {one.method: one for one in found.options if one.method.startswith("mean")}
    assert len(means) == 3 and found.chosen is means[f"mean, {method}"]
    assert found.chosen.epsilon == min(o.epsilon for o in means.values() if o.right >= 0.95)
    # More failures than were wished for are no better gate: an analyst learns by each.
    assert all(one.params["failures"] == min(paid, candidates) for one in means.values())
    assert sum(one.method.startswith("mean") for one in design(**asked).options) == 1


def test_no_wish_breaks_the_planner() -> None:
    """One noise may not exist for an epsilon, of equal costs that without a delta is taken, no cost is
    above what was said, and many failures are counted at once.
    """
    wide: dict[str, Any] = {"tolerance": "0.1", "delta": "1e-6"}
    assert design(**wide, max_epsilon=200_000).chosen.epsilon < 1
    easy = design(**wide | {"tolerance": "0.2"}, candidates=1, units=10**6)
    assert "delta" not in easy.chosen.params and easy.chosen.epsilon == min(
        one.epsilon for one in easy.options if one.right >= 0.95
    )
    for most in ("0.421", "0.43", "0.437"):
        assert design(tolerance="0.1", max_epsilon=most).chosen.epsilon <= Fraction(most)
    for most in ("1e-12", "1e-11"):
        with pytest.raises(PlanRefused, match="no gate on"):
            design(**wide | {"delta": "1e-18"}, max_epsilon=most)
    with pytest.raises(PlanRefused, match="no gate on"):
        design(tolerance="0.1", candidates=10**9, paid=10**6)


def test_without_noise_it_is_proven() -> None:
    found = design(OPEN_TABLE)
    assert found.chosen.epsilon is None and found.chosen.guarantee == "proven"
    assert found.chosen.method == "mean, description length"
    duel = design(OPEN_TABLE, question="champion", deviation="0.3", tolerance="0.08")
    assert duel.chosen.params["question"] == "champion" and dict(duel.curve)[0.08] >= 0.95


@pytest.mark.parametrize("question", ["claim", "champion"])
@pytest.mark.parametrize("table", [EXAMPLE_TABLE, OPEN_TABLE])
def test_what_is_called_nearest_is_possible(table: Table, question: str) -> None:
    """Each of the named settings alone, and hardly less is not."""
    wishes = {"tolerance": "0.01", "question": question}
    with pytest.raises(PlanRefused) as refused:
        design(table, **wishes)
    text = str(refused.value)
    tolerance = re.search(r"tolerance ([\d.]+)", text)
    units = re.search(r"([\d,]+) units(?:,|$)", text.partition("each alone")[2])
    assert tolerance and units, text
    design(table, **wishes | {"tolerance": tolerance.group(1)})
    design(table, **wishes | {"units": int(units.group(1).replace(",", ""))})
    with pytest.raises(PlanRefused):
        design(table, **wishes | {"tolerance": str(0.8 * float(tolerance.group(1)))})
    if confidence := re.search(r"confidence (0.\d+)$", text):
        design(table, **wishes | {"confidence": confidence.group(1)})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metric": "squared_loss"}, "has no range"),
        (
            {"metric": "auc", "question": "champion"},
            "no gate plans for champions by auc.* open reusable_holdout",
        ),
    ],
)
def test_other_metrics(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanRefused, match=why):
        design(**changes)


def test_areas_are_for_groups() -> None:
    """No mean, so the median of groups."""
    found = design(metric="auc", tolerance="0.4", units=20_000)
    assert found.chosen.mechanism == "reusable_holdout" and found.interval == 0


@pytest.fixture
def file(tiny: Tiny) -> Path:
    tiny.fill(
        """CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick,
           CASE WHEN i % 4 = 0 THEN 1 - i % 2 ELSE i % 2 END AS guess FROM range(3000) t(i)"""
    )
    bit = {"lower": 0, "upper": 1}
    table = tiny.declare(
        block=None, protects="unit", contribution_bounds={"rows": 1}, holdout=True,
        columns={"sick": bit, "guess": bit},
    )  # fmt: skip
    Ledger(tiny.ledger).grant(
        "gate", 40, 0, filter="basic", table=load_table(table), principal="o", confirm_large=True
    )
    path = tiny.folder / "gate.yml"
    wishes = WISHES | {"metric": "column_agreement"}
    path.write_text(yaml.safe_dump({"name": "g", "table": "visits.yml", "scope": "gate", "gate": wishes}))  # fmt: skip
    return path


def test_wishes_in_a_pipeline(tiny: Tiny, file: Path) -> None:
    """Planned, drawn, written down and submitted to: the written file is the same gate."""
    written, picture = tiny.folder / "written.yml", tiny.folder / "power.svg"
    said = json.loads(run_gate(tiny, "plan", file, "--write", written, "--plot", picture).stdout)
    assert said["method"] == "mean, sparse vector" and len(said["compared"]) > 3
    assert [round(row["too good by"], 4) for row in said["power"]][:2] == [0, 0.0125]
    assert "<svg" in picture.read_text()
    assert load_gate_file(written, REGISTRY)[0] == load_gate_file(file, REGISTRY)[0]
    asked = tiny.folder / "candidates.yml"
    asked.write_text(
        yaml.safe_dump([{"name": "a", "features": ["sick", "guess"], "claim": "0.75"}])
    )
    first = run_gate(tiny, "submit", file, asked)
    assert json.loads(run_gate(tiny, "submit", written, asked).stdout) == json.loads(first.stdout)
    assert len(Ledger(tiny.ledger).releases()) == 1
    with pytest.raises(InvalidInput, match="no power curve without"):
        run_gate(tiny, "plan", written, "--plot", picture)


def test_mistakes_in_wishes_are_sentences(tiny: Tiny, file: Path) -> None:
    whole = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(whole | {"params": {}}))
    with pytest.raises(InvalidDeclaration, match="mechanism and params are found for it"):
        run_gate(tiny, "plan", file)
    for wrong in ({"tolerance": 0}, {"confidence": 1}, {"units": 1}, {"surely": 1}):
        file.write_text(yaml.safe_dump(whole | {"gate": whole["gate"] | wrong}))
        with pytest.raises(InvalidDeclaration, match=f"gate: .*{next(iter(wrong))}"):
            run_gate(tiny, "plan", file)


def test_noise_and_luck_add_up_as_stated() -> None:
    """The closed form is what 200,000 draws of the sum give."""
    rng = np.random.default_rng(1)
    for spread, scales in ((3.0, (4.0, 2.0)), (10.0, (1.0, 0.5)), (0.5, (8.0, 4.0)), (2.0, (5.0,))):
        draws = rng.normal(0, spread, 200_000)
        for scale in scales:
            draws += rng.laplace(0, scale, 200_000)
        for x in (-12.0, -1.0, 0.0, 3.0, 15.0):
            stated = mean_refusal_probability(
                x / 100, 100, spread / 10, tuple(map(Fraction, scales))
            )
            assert abs(float((draws <= x).mean()) - stated) < 0.006


def test_other_ways_to_answer_are_compared() -> None:
    """Without noise only: yes or no says most for few paid answers, and a Ladder for many. Splitting is
    the narrowest of none with two questions or more.
    """
    assert design().widths == {}
    found = design(OPEN_TABLE)
    names = [one.method for one in found.options]
    assert "median of 6 groups of its own" in names and len(names) == len(set(names))
    narrow = found.widths
    assert list(narrow) == ["yes or no, 5 paid", "Ladder", "splitting", "fixed beforehand"]
    assert narrow["fixed beforehand"] < narrow["yes or no, 5 paid"] < narrow["Ladder"]
    wide = design(OPEN_TABLE, candidates=1000, paid=1000, tolerance="0.1").widths
    assert wide["Ladder"] < wide["yes or no, 1000 paid"] < wide["splitting"]
    for units, queries in product((100, 10**4, 10**6), (2, 10, 10**3)):
        most = transcript_width(units, queries, queries, 0.05)
        assert most < splitting_width(units, queries, 0.05)


def test_a_ladder_has_the_steps_that_fit() -> None:
    """A champion that is better by a fifth each time is so five times at most; a session pays for no
    more, however many are wished.
    """
    wishes = {"question": "champion", "tolerance": "0.2", "paid": 50, "units": 20_000}
    found = design(OPEN_TABLE, better_by="0.2", **wishes)
    assert found.chosen.params["failures"] == 5
    assert design(OPEN_TABLE, **wishes).chosen.params["failures"] == 50
    assert (
        design(OPEN_TABLE, better_by="0.2", **{**wishes, "paid": 2}).chosen.params["failures"] == 2
    )
