"""Parts of a page: every text escaped, links that hold under any prefix, bars and a chart without
scripts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from dpflow.html_page import begin_page


class Markup(str):
    """HTML that is escaped already."""


def text(value: object) -> Markup:
    """Any value as HTML."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def join(*parts: object) -> Markup:
    """Parts behind each other, each escaped unless it is markup."""
    return Markup("".join(map(text, parts)))


def link(label: object, page: str, **query: object) -> Markup:
    """A link to a page of ours. It is relative: all pages stand beside each other, under whatever
    prefix a proxy gives them.
    """
    return Markup(f'<a href="{escape(address(page, **query))}">{text(label)}</a>')


def address(page: str, **query: object) -> str:
    """The relative address of a page of ours; what is None or empty stays out."""
    stated = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return (page or "./") + (f"?{urlencode(stated)}" if stated else "")


def element(tag: str, *parts: object, **attributes: object) -> Markup:
    """An element; ``class_`` and ``for_`` stand for the words that Python keeps."""
    texts = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{texts}>{join(*parts)}</{tag}>")


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "None."
) -> Markup:
    """A table that scrolls by itself where the page is narrow.

    Args:
        heads: one that begins with ``#`` is over numbers, one with ``=`` over what stays on a line.
        empty: what stands in place of a table without rows.
    """
    lines = [
        "<tr>"
        + "".join(
            f"<td{_KINDS.get(head[:1], '')}>{text(cell)}</td>"
            for head, cell in zip(heads, row, strict=True)
        )
        + "</tr>\n"
        for row in rows
    ]
    if not lines:
        return element("p", empty, class_="none")
    head = "".join(
        f"<th scope=col{_KINDS.get(h[:1], '')}>{text(h.lstrip('#='))}</th>" for h in heads
    )
    return Markup(
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


_KINDS = {"#": " class=number", "=": " class=line"}


def bar(spent: float, reserved: float, near_end: bool, label: str) -> Markup:
    """How much of a budget is spent and reserved, each from 0 to 1, and whether alarms count it."""
    level = " near" if near_end else ""
    parts = [
        f'<span class="{kind}" style="width:{100 * min(max(share, 0), 1):.2f}%"></span>'
        for kind, share in (("spent", spent), ("reserved", reserved))
        if share > 0
    ]
    return Markup(
        f'<span class="bar{level}" role="img" aria-label="{escape(label)}" title="{escape(label)}">'
        f"{''.join(parts)}</span>"
    )


def chart(points: Sequence[tuple[dt.date, float]], end: dt.date | None, label: str) -> Markup:
    """A burn-down: what is left of a budget at the end of each day, from 1 to 0, and if ``end`` is
    stated a line to the day of exhaustion.
    """
    first = points[0][0]
    last = max(points[-1][0], end or points[-1][0])
    days = max((last - first).days, 1)
    left, right, top, bottom = 44, 590, 12, 188

    def place(day: dt.date, share: float) -> str:
        x = left + (right - left) * (day - first).days / days
        return f"{x:.1f},{bottom - (bottom - top) * share:.1f}"

    steps, share = [], points[0][1]
    for day, after in points:
        steps += [place(day, share), place(day, after)]
        share = after
    grid = "".join(
        f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" class="grid"/>'
        f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{part} %</text>'
        for part in (0, 50, 100)
        for y in [bottom - (bottom - top) * part / 100]
    )
    forecast = ""
    if end is not None:
        forecast = f'<polyline class="forecast" points="{steps[-1]} {place(end, 0)}"/>'
    names = (
        f'<text x="{left}" y="206">{first}</text>'
        f'<text x="{right}" y="206" text-anchor="end">{last}</text>'
    )
    return Markup(
        f'<svg viewBox="0 0 600 212" role="img" aria-label="{escape(label)}">{grid}{names}'
        f'<polyline class="left" points="{" ".join(steps)}"/>{forecast}</svg>\n'
    )


def page(title: str, current: str, notices: Iterable[object], *parts: object, wait: bool) -> str:
    """A whole page.

    Args:
        current: which of the menu's pages it belongs to.
        notices: what a reader must know of it, above all else.
        wait: it asks to be loaded again, because it shows a part.
    """
    menu = join(
        *(
            element("a", label, href=address(name), **({"aria-current": "page"} if name == current else {}))
            for name, label in MENU.items()
        )
    )  # fmt: skip
    # Before the heading, so that who goes by keyboard reaches the rest first.
    start = begin_page(title, width="72rem", style=_STYLE)
    head, heading, name = start.rpartition("<h1>")
    refresh = '<meta http-equiv="refresh" content="2">' if wait else ""
    notes = "".join(element("p", notice, class_="notice", role="status") for notice in notices)
    return (
        f'{head}{refresh}<a class="skip" href="#content">Skip to the content</a>'
        f'<nav aria-label="Pages">{menu}</nav>\n<main id="content">{notes}{heading}{name}{join(*parts)}</main>\n'
    )


MENU: Mapping[str, str] = {
    "": "Budgets",
    "reconciliation": "Reconciliation",
    "releases": "Releases",
    "sessions": "Sessions",
    "alarms": "Alarms",
    "checkpoints": "Checkpoints",
    "history": "History",
}

# Contrast of text at least 7 to 1, of bars and lines at least 3 to 1, in both schemes.
_STYLE = """  :root { --spent: #2f5fb3; --reserved: #a05a00; --empty: #dfe4ea; --near: #b3261e; --link: #0b4fa3; --soft: #f3f5f8; }
  @media (prefers-color-scheme: dark) {
    :root { --spent: #7fb0ff; --reserved: #ffb85c; --empty: #343b45; --near: #ff8a80; --link: #9cc4ff; --soft: #1f242b; }
  }
  body { margin: 0 auto 3rem; }
  a { color: var(--link); }
  :focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
  .skip { position: absolute; left: -100rem; }
  .skip:focus { left: 1rem; top: .5rem; background: var(--page); padding: .3rem .6rem; }
  nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: .8rem 0; border-bottom: 1px solid var(--line); }
  nav a { padding: .2rem 0; text-decoration: none; }
  nav a[aria-current] { font-weight: 600; border-bottom: 3px solid var(--link); }
  h1 { font-size: 1.6rem; margin: 1.2rem 0 .6rem; }
  h2 { font-size: 1.15rem; margin: 1.8rem 0 .4rem; }
  .wide { overflow-x: auto; }
  table { width: 100%; margin: .6rem 0; }
  caption { text-align: left; font-weight: 600; padding: .2rem 0; }
  th { border-bottom: 1px solid var(--line); font-weight: 600; white-space: nowrap; }
  td { border-bottom: 1px solid var(--empty); padding: .35rem .8rem .35rem 0; overflow-wrap: normal; }
  .number, .line { white-space: nowrap; }
  .number { text-align: right; font-variant-numeric: tabular-nums; }
  .bar { display: inline-flex; width: 9rem; height: .9rem; border-radius: .2rem; overflow: hidden; background: var(--empty);
    vertical-align: middle; }
  .spent { background: var(--spent); }
  .near .spent { background: var(--near); }
  .reserved { background: repeating-linear-gradient(45deg, var(--reserved) 0 4px, var(--page) 4px 6px); }
  .key span { display: inline-block; width: 1rem; height: .8rem; margin: 0 .3rem 0 1rem; vertical-align: middle; }
  .key .left { background: var(--empty); }
  .notice { background: var(--soft); border-left: 4px solid var(--reserved); padding: .5rem .8rem; }
  .alarm { border-left: 4px solid var(--near); background: var(--soft); padding: .5rem .8rem; margin: .5rem 0; }
  .more { display: inline-block; margin: .4rem 1rem .4rem 0; }
  form { display: flex; flex-wrap: wrap; gap: .5rem; align-items: end; margin: .6rem 0; }
  input, button { font: inherit; color: inherit; background: var(--page); border: 1px solid var(--line); border-radius: .25rem;
    padding: .25rem .5rem; max-width: 100%; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: .6rem 0; }
  dt { font-weight: 600; } dd { margin: 0; }
  svg { width: 100%; max-width: 40rem; height: auto; display: block; }
  svg text { fill: var(--text); font-size: 12px; }
  svg .grid { stroke: var(--line); stroke-width: .6; }
  svg .left { fill: none; stroke: var(--spent); stroke-width: 2.5; }
  svg .forecast { fill: none; stroke: var(--near); stroke-width: 2; stroke-dasharray: 6 4; }
  code { overflow-wrap: anywhere; }
  @media (max-width: 80rem) { .bar { width: 5rem; } th, td { padding-right: .5rem; } }
  @media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } .bar { width: 6rem; } }
"""
