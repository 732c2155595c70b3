"""What an experiment hands over, and how it becomes a numbered figure and a section of
docs/research/experiments.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs" / "research"

#: One colour per curve, readable for the colour-blind (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#777777", "#000000")


@dataclass(frozen=True)
class Bound:
    """One thing that must hold: what was promised, what was found."""

    promise: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Found:
    """An experiment's outcome: a table, the curves of its figure (label to points), and the bounds."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    curves: dict[str, list[tuple[Any, float]]]  # points of numbers, or of names and numbers
    bounds: tuple[Bound, ...]

    @property
    def broken(self) -> list[str]:
        """Bounds that do not hold, in words."""
        return [f"{bound.promise}: {bound.found}" for bound in self.bounds if not bound.holds]


@dataclass(frozen=True)
class Experiment:
    """``run(runs)`` repeats the simulation with seeds 0 to runs-1; ``runs`` of `make experiments`,
    ``small`` of the tests.

    ``number`` is that of its figure, unique among all papers.
    """

    number: int
    name: str
    title: str
    setting: str
    axes: tuple[str, str]
    run: Callable[[int], Found] = field(repr=False)
    runs: int = 10
    small: int = 2
    logarithmic: str = ""


def draw(experiment: Experiment, found: Found) -> str:
    """Write the figure; returns its path from docs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 3.8), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    dashes = iter(("--", ":", "-.") * len(found.curves))
    for (label, points), colour in zip(found.curves.items(), COLOURS * 2):
        predicted = label.startswith("predicted")
        style = (
            {"linestyle": next(dashes), "color": "#777777"}
            if predicted
            else {"marker": "o", "color": colour}
        )
        axes.plot(*zip(*points), label=label, markersize=4, **style)
    if "x" in experiment.logarithmic:
        axes.set_xscale("log")
    if "y" in experiment.logarithmic:
        axes.set_yscale("log")
    if any(isinstance(x, str) for points in found.curves.values() for x, _ in points):
        axes.tick_params("x", rotation=90, labelsize=8)
    axes.set_xlabel(experiment.axes[0])
    axes.set_ylabel(experiment.axes[1])
    axes.legend(fontsize=8, frameon=False)
    place = Path("figures") / f"{experiment.number:02d}-{experiment.name}.svg"
    (DOCS / place.parent).mkdir(exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": experiment.name}):
        figure.savefig(DOCS / place, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return place.as_posix()


def section(experiment: Experiment, found: Found, figure: str) -> str:
    """The experiment in Markdown."""
    bounds = [
        f"- {b.promise}: {b.found} ({'holds' if b.holds else '**does not hold**'})"
        for b in found.bounds
    ]
    lines = [
        f"## Figure {experiment.number}. {experiment.title}",
        "",
        experiment.setting,
        "",
        f"![{experiment.title}]({figure})",
        "",
        *_table(found.columns, found.rows),
        "",
        *bounds,
        "",
    ]
    return "\n".join(lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    return [f"| {' | '.join(line)} |" for line in ([*columns], ["---"] * len(columns), *cells)]


def bound(
    promise: str, found: float, least: float | None = None, most: float | None = None
) -> Bound:
    """A bound on a number."""
    holds = (least is None or found >= least) and (most is None or found <= most)
    return Bound(promise, f"{found:.3f}", holds)
