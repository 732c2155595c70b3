"""The report's plots, as inline SVG: no script, no network, readable in any browser and theme."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

#: One colour per kind of thing, readable for the colour-blind (Okabe and Ito), on white and black.
BLUE, ORANGE, GREEN, RED, GREY = "#2f8fd0", "#e69f00", "#009e73", "#e0662a", "#888888"
PALETTE = (BLUE, ORANGE, GREEN, RED)
#: Text and axes are drawn in this colour, which becomes the page's own text colour.
INK = "#010203"
PANELS, COLUMNS = 6, 3  #: small multiples of one release
Published = list[dict[str, Any]]
Truth = dict[tuple[str, str, str], float]


def to_float(text: str) -> float:
    """A rational written as text, as a float for drawing."""
    return float(Fraction(text))


def _new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure whose axes share their scales, in the page's text colour."""
    import matplotlib

    # no display is needed or looked for
    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = ("text.", "axes.edge", "axes.label", "xtick.", "ytick.", "grid.")
    style: Any = {f"{part}color": INK for part in parts} | {"font.size": 9}
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(
            rows,
            columns,
            figsize=(width, height),
            layout="constrained",
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for one in axes.flat:
            one.set_facecolor("none")
            one.spines[["top", "right"]].set_visible(False)
            one.grid(axis="y", alpha=0.15)
    # the page's own background shows through, light or dark
    figure.patch.set_visible(False)
    return figure, axes


def _render_svg(figure: Any, title: str) -> str:
    """The figure as SVG with a name for screen readers; what is drawn in `INK` follows the theme."""
    import matplotlib
    from markupsafe import Markup, escape
    from matplotlib import pyplot

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    body = text.getvalue().replace(INK, "currentColor")
    body = body[body.index("<svg") :]
    svg = body.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return Markup(svg)  # noqa: S704  matplotlib escapes what it draws


def _add_legend(figure: Any, axes: Any, columns: int) -> None:
    """One legend below all panels, in the order in which things were drawn."""
    entries: dict[str, Any] = {}
    for panel in axes.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    options = {"ncols": columns, "frameon": False, "labelcolor": INK, "fontsize": 8}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", **options)


def _label_days(axes: Any, days: list[str]) -> None:
    """Days below the lowest panels; of many, every second or so."""
    step = max(1, round(len(days) / 8))
    marks = range(0, len(days), step)
    for panel in axes[-1]:
        panel.set_xticks(marks, [days[n][5:] for n in marks], rotation=45)


def compute_truth(csv: Path, days: Iterable[str]) -> Truth:
    """The true values, from the public file and outside dpflow: possible only because this data set
    is public. Keys without a flight are missing.
    """
    import pandas

    columns = ["year", "month", "day", "carrier", "dest", "arr_delay", "air_time", "tailnum"]
    frame = pandas.read_csv(csv, usecols=columns)
    frame["block"] = pandas.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    frame = frame[frame["block"].isin(list(days)) & frame["tailnum"].notna()]
    by_carrier, by_dest = (frame.groupby(["block", column]) for column in ("carrier", "dest"))
    parts = {
        "flights by carrier": by_carrier.size(),
        "mean arrival delay by carrier": by_carrier["arr_delay"].mean(),
        "flights by destination": by_dest.size(),
    }
    truth: Truth = {}
    for name, part in parts.items():
        for index, value in part.items():
            block, key = cast("tuple[str, str]", index)
            truth[name, block, key] = float(value)
    for day, median in frame.groupby("block")["air_time"].median().items():
        truth["median air time", str(day), ""] = float(median)
    return truth


def plot_spending(releases: list[Any], epsilon: float) -> str:
    """Epsilon charged to every day, by release, under the granted ``epsilon``."""
    spent: dict[str, dict[str, float]] = defaultdict(dict)
    for stored in releases:
        for block in stored.blocks:
            spent[stored.request["name"]][block] = to_float(stored.request["epsilon"])
    days = sorted({day for by_day in spent.values() for day in by_day})
    figure, axes = _new_figure(9, 3)
    panel, bottom = axes[0, 0], [0.0] * len(days)
    for (name, by_day), colour in zip(sorted(spent.items()), PALETTE, strict=False):
        heights = [by_day.get(day, 0.0) for day in days]
        panel.bar(range(len(days)), heights, bottom=bottom, label=name, color=colour, width=0.7)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    panel.axhline(epsilon, color=INK, linestyle="--", linewidth=1, label="granted to each day")
    panel.set_ylabel("epsilon spent")
    panel.set_ylim(0, epsilon * 1.1)
    _label_days(axes, days)
    _add_legend(figure, axes, 5)
    return _render_svg(figure, "epsilon spent on every day, by release")


def plot_releases(published: Published, truth: Truth) -> list[tuple[str, str]]:
    """For every release one plot: a panel for each of some keys, over the days."""
    by_release: dict[str, dict[str, Published]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(published, key=lambda row: str(row["block"])):
        if row["value"] is not None:
            by_release[row["release"]][row["group_key"]].append(row)
    return [(name, _plot_keys(name, rows, truth)) for name, rows in sorted(by_release.items())]


def choose_keys(rows_by_key: dict[str, Published]) -> list[str]:
    """The keys to show: most days first, then the smallest noise, then the largest values; and the
    last one.

    Nothing here looks at the truth.
    """

    def rank(key: str) -> tuple[int, float, float]:
        rows = rows_by_key[key]
        noise = sum(row["half_width_95"] or 0 for row in rows) / len(rows)
        return len(rows), -noise, sum(abs(row["value"]) for row in rows)

    # the last one shows what noise does to a small value
    keys = sorted(rows_by_key, key=rank, reverse=True)
    return keys if len(keys) <= PANELS else [*keys[: PANELS - 1], keys[-1]]


def _plot_keys(name: str, rows_by_key: dict[str, Published], truth: Truth) -> str:
    keys = choose_keys(rows_by_key)
    days = sorted({row["block"] for key in keys for row in rows_by_key[key]})
    columns = min(COLUMNS, len(keys))
    lines = -(-len(keys) // columns)
    figure, axes = _new_figure(9, 0.9 + 1.6 * lines, lines, columns)
    for panel, key in zip(axes.flat, keys, strict=False):
        _plot_key(panel, rows_by_key[key], {day: n for n, day in enumerate(days)}, truth)
        panel.set_title(key or name, fontsize=9, color=INK, loc="left")
    for panel in axes.flat[len(keys) :]:
        panel.set_axis_off()
    _label_days(axes, days)
    _add_legend(figure, axes, 4)
    return _render_svg(figure, f"{name}: released and true values by day")


def _plot_key(panel: Any, rows: Published, index: dict[str, int], truth: Truth) -> None:
    """One key over the days: released values with their total or noise intervals, and the true ones."""
    xs, ys = [index[row["block"]] for row in rows], [row["value"] for row in rows]
    # The rows of one release, so all of one kind.
    kind = "" if any(row["low"] is not None for row in rows) else "noise_"
    intervals = [
        (x, row[f"{kind}low"], row[f"{kind}high"])
        for x, row in zip(xs, rows, strict=True)
        if row[f"{kind}low"] is not None
    ]
    if intervals:
        label = "noise interval" if kind else "total interval"
        line = {"color": BLUE, "alpha": 0.35, "linewidth": 4, "label": label}
        panel.vlines(*zip(*intervals, strict=True), **line)
    panel.plot(xs, ys, "o", color=BLUE, markersize=4, label="as released")
    moved = [(x, y) for x, y, row in zip(xs, ys, rows) if y != row["raw_value"]]
    if moved:
        style = {"color": RED, "markersize": 5, "label": "clipped to its range"}
        panel.plot(*zip(*moved, strict=True), "v", **style)
    true = [
        (x, truth.get((row["release"], row["block"], row["group_key"]))) for x, row in zip(xs, rows)
    ]
    points = [(x, y) for x, y in true if y is not None]
    if points:
        style = {"color": INK, "markerfacecolor": "none", "markersize": 6, "label": "true value"}
        panel.plot(*zip(*points, strict=True), "o", **style)


def plot_gate(verdicts: list[dict[str, Any]]) -> str:
    """Every candidate: its claim, coloured by verdict, and its accuracy on fresh data."""
    figure, axes = _new_figure(9, 3.6)
    panel = axes[0, 0]
    claims = [to_float(verdict["claim"]) for verdict in verdicts]
    # a line from each claim to its truth: a long one is an overfitted candidate
    for n, (claim, verdict) in enumerate(zip(claims, verdicts, strict=True)):
        panel.plot([n, n], [claim, verdict["fresh"]], color=INK, alpha=0.35, linewidth=1)
    for kind, marker in (("honest", "o"), ("freedman", "^")):
        for word, colour in (("yes", GREEN), ("no", RED), ("exhausted", GREY)):
            points = [
                (n, claim)
                for n, (claim, verdict) in enumerate(zip(claims, verdicts, strict=True))
                if (verdict["kind"], verdict["verdict"]) == (kind, word)
            ]
            if points:
                label = f"claim, {kind}: {word}"
                panel.plot(*zip(*points, strict=True), marker, color=colour, label=label)
    fresh = [verdict["fresh"] for verdict in verdicts]
    panel.plot(range(len(fresh)), fresh, "_", color=INK, markersize=9, label="on fresh data")
    best = [
        (n, claims[n]) for n, verdict in enumerate(verdicts) if verdict["outcome"] == "promoted"
    ]
    if best:
        ring = {"color": "none", "markeredgecolor": INK, "markersize": 11, "label": "alias moved"}
        panel.plot(*zip(*best, strict=True), "o", **ring)
    panel.set_xlabel("candidate, in order of submission")
    panel.set_ylabel("accuracy")
    _add_legend(figure, axes, 5)
    return _render_svg(figure, "claim, verdict and accuracy on fresh data of every candidate")
