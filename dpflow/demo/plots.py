"""The report's plots, as inline SVG: no script, no network, readable in any browser."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

#: One colour per kind of thing, readable for the colour-blind (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#777777"
Published = list[dict[str, Any]]
Truth = dict[tuple[str, str, str], float]


def number(text: str) -> float:
    """A rational written as text, as a float for drawing."""
    return float(Fraction(text))


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    return figure, axes


def _svg(figure: Any) -> str:
    from markupsafe import Markup
    from matplotlib import pyplot

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    body = text.getvalue()
    return Markup(body[body.index("<svg") :])  # noqa: S704  matplotlib escapes what it draws


def truth(csv: Path, days: Iterable[str]) -> Truth:
    """The true values, from the public file and outside dpflow: possible only because this data set
    is public.
    """
    import pandas

    columns = ["year", "month", "day", "carrier", "dest", "arr_delay", "air_time", "tailnum"]
    frame = pandas.read_csv(csv, usecols=columns)
    frame["block"] = pandas.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    frame = frame[frame["block"].isin(list(days)) & frame["tailnum"].notna()]
    parts = {
        ("flights by carrier", "carrier"): frame.groupby(["block", "carrier"]).size(),
        ("mean arrival delay by carrier", "carrier"): frame.groupby(["block", "carrier"])[
            "arr_delay"
        ].mean(),
        ("flights by destination", "dest"): frame.groupby(["block", "dest"]).size(),
    }
    found: Truth = {}
    for (name, _), part in parts.items():
        for place, value in part.items():
            block, key = cast("tuple[str, str]", place)
            found[name, block, key] = float(value)
    for day, median in frame.groupby("block")["air_time"].median().items():
        found["median air time", str(day), ""] = float(median)
    return found


def burn_down(releases: list[Any], granted: float) -> str:
    """Epsilon charged to every day, by release, under what was granted."""
    spent: dict[str, dict[str, float]] = defaultdict(dict)
    for stored in releases:
        for block in stored.blocks:
            spent[stored.request["name"]][block] = float(Fraction(stored.request["epsilon"]))
    days = sorted({day for by_day in spent.values() for day in by_day})
    figure, axes = _figure(9, 3)
    bottom = [0.0] * len(days)
    for (name, by_day), colour in zip(
        sorted(spent.items()), (BLUE, ORANGE, GREEN, RED), strict=False
    ):
        heights = [by_day.get(day, 0.0) for day in days]
        axes.bar(range(len(days)), heights, bottom=bottom, label=name, color=colour, width=0.7)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.axhline(granted, color="black", linestyle="--", linewidth=1, label="granted to each day")
    axes.set_xticks(range(len(days)), [day[5:] for day in days], rotation=45)
    axes.set_ylabel("epsilon spent")
    axes.set_ylim(0, granted * 1.5)
    axes.legend(ncols=3, fontsize=8, loc="upper center", frameon=False)
    return _svg(figure)


def series(published: Published, true: Truth) -> list[tuple[str, str]]:
    """For every release, its largest keys over the days: released value, error band, true value."""
    by_release: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in published:
        if row["value"] is not None:
            by_release[row["release"]][row["group_key"]][row["block"]] = row
    return [(name, _lines(name, keys, true)) for name, keys in sorted(by_release.items())]


def _lines(name: str, keys: dict[str, dict[str, dict[str, Any]]], true: Truth) -> str:
    # the keys with the most days first, then the smallest error, then by size: nothing here looks
    # at the truth
    def weight(key: str) -> tuple[int, float, float]:
        rows = keys[key].values()
        return (
            len(rows),
            -sum(r["error_95"] or 0 for r in rows) / len(rows),
            sum(abs(r["value"]) for r in rows),
        )

    shown = sorted(keys, key=weight, reverse=True)[:4]
    days = sorted({day for key in shown for day in keys[key]})
    place = {day: i for i, day in enumerate(days)}
    figure, axes = _figure(9, 3.2)
    for key, colour in zip(shown, (BLUE, ORANGE, GREEN, RED), strict=False):
        rows = [keys[key][day] for day in sorted(keys[key])]
        xs, ys = [place[r["block"]] for r in rows], [r["value"] for r in rows]
        bands = [r["error_95"] or 0.0 for r in rows]
        axes.plot(xs, ys, color=colour, label=key or name, linewidth=1.5)
        low, high = (
            [y - b for y, b in zip(ys, bands, strict=True)],
            [y + b for y, b in zip(ys, bands, strict=True)],
        )
        axes.fill_between(xs, low, high, color=colour, alpha=0.18)
        known = [(place[r["block"]], true.get((name, r["block"], key))) for r in rows]
        dots = [(x, y) for x, y in known if y is not None]
        axes.plot(
            *zip(*dots, strict=True), "o", color=colour, markersize=3.5, markerfacecolor="white"
        )
    axes.set_xticks(range(len(days)), [day[5:] for day in days], rotation=45)
    axes.set_ylabel(name)
    axes.legend(ncols=4, fontsize=8, frameon=False, loc="best")
    return _svg(figure)


def gate(verdicts: list[dict[str, Any]]) -> str:
    """Every claim in the order of submission, coloured by verdict, shaped by how it was made."""
    figure, axes = _figure(9, 3.2)
    for kind, marker in (("honest", "o"), ("freedman", "^")):
        for word, colour in (("yes", GREEN), ("no", RED), ("exhausted", GREY)):
            points = [
                (i, number(v["claim"]))
                for i, v in enumerate(verdicts)
                if (v["kind"], v["verdict"]) == (kind, word)
            ]
            if points:
                label = f"{kind}: {word}"
                axes.plot(
                    *zip(*points, strict=True), marker, color=colour, label=label, markersize=6
                )
    best = [(i, number(v["claim"])) for i, v in enumerate(verdicts) if v["promoted"]]
    if best:
        axes.plot(
            *zip(*best, strict=True),
            "o",
            color="none",
            markeredgecolor="black",
            markersize=11,
            label="alias moved",
        )
    axes.set_xlabel("candidate, in order of submission")
    axes.set_ylabel("claimed accuracy")
    axes.legend(ncols=4, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return _svg(figure)
