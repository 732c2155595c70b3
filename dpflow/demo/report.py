"""The demo's table in the terminal and its page of plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpflow.demo import plots
from dpflow.ledger import Ledger
from dpflow.mechanisms.reusable_holdout import HoldoutParams, sizes
from dpflow.tables import read_published

if TYPE_CHECKING:
    from dpflow.demo.job import Seen

TEMPLATE = Path(__file__).with_name("report.html.j2")


def show(console: Console, ledger: Ledger, seen: Seen) -> None:
    """Runs, releases, budgets and verdicts, for the terminal."""
    releases = ledger.releases()
    table = Table(title="what happened", title_justify="left", header_style="bold")
    for column in ("", ""):
        table.add_column(column)
    verdicts = [v["verdict"] for v in seen.verdicts]
    facts = {
        "daily runs": f"{len(seen.days)} days, {seen.days[0]} to {seen.days[-1]}, and {seen.crash_day} with a crash",
        "releases settled": sum(r.settled for r in releases),
        "cleared day": "same results bit for bit, nothing charged"
        if seen.rerun_same
        else "DIFFERENT",
        "killed task": f"{seen.crash_tries} tries, {seen.crash_attempts} attempts at one reservation, one charge",
        "one release too many": seen.refusal,
        "gate": f"{len(verdicts)} candidates: {verdicts.count('yes')} yes, {verdicts.count('no')} no",
        "promoted": seen.champion,
        "fitted to the stolen holdout": f"gate says {seen.naive['verdict']}, true {seen.naive['fresh']:.3f}: no gate detects it",
        "ledger": seen.verified,
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    console.print(table)
    console.print(_budgets(ledger))
    console.print(_verdicts(seen))


def _budgets(ledger: Ledger) -> Table:
    table = Table(title="budgets", title_justify="left", header_style="bold")
    for column in ("scope", "block", "epsilon granted", "spent", "left", "protects"):
        table.add_column(column)
    for scope in ("flights", "flights_holdout"):
        for row in ledger.remaining(scope).rows():
            cells = (
                scope,
                row["block"],
                row["epsilon_granted"],
                row["epsilon_spent"],
                row["epsilon_left"],
                row["protects"],
            )
            table.add_row(*(str(cell or "") for cell in cells))
    return table


def _verdicts(seen: Seen) -> Table:
    table = Table(title="gate verdicts", title_justify="left", header_style="bold")
    for column in ("candidate", "kind", "claim", "verdict", "guarantee", "promoted"):
        table.add_column(column)
    for v in seen.verdicts:
        cells = (
            v["name"],
            v["kind"],
            f"{plots.number(v['claim']):.3f}",
            v["verdict"],
            v["guarantee"],
        )
        table.add_row(*cells, "yes" if v["promoted"] else "")
    return table


def write(root: Path, ledger: Ledger, seen: Seen) -> Path:
    """Draw ``demo/report.html``; returns its path."""
    from jinja2 import Environment

    demo = root / "demo"
    published = read_published(demo / "published.duckdb", "flights_daily")
    truth = plots.truth(demo / "private" / "flights.csv", [*seen.days, seen.crash_day])
    params = HoldoutParams.model_validate(ledger.releases("flights_holdout")[0].request["params"])
    page = (
        Environment(autoescape=True)
        .from_string(TEMPLATE.read_text())
        .render(
            seen=seen,
            releases=len(ledger.releases()),
            protects=ledger.scope("flights").protects,
            gate_protects=ledger.scope("flights_holdout").protects,
            budget=plots.burn_down(
                ledger.releases("flights"), float(ledger.scope("flights").epsilon)
            ),
            series=plots.series(published, truth),
            gate=plots.gate(seen.verdicts),
            epsilon=float(ledger.scope("flights").epsilon),
            delta=float(ledger.scope("flights").filter.delta),
            gate_epsilon=float(ledger.scope("flights_holdout").epsilon),
            needed=sizes(params),
            groups=params.groups,
            rows=_table(published),
            claim=plots.number,
        )
    )
    path = demo / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _table(published: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The published rows of the first day, as an example of what an analyst gets."""
    first = min(row["block"] for row in published)
    return [row for row in published if row["block"] == first]
