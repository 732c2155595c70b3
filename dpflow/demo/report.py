"""The demo's table in the terminal and its page of plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpflow.core.contract.printed_numbers import print_interval
from dpflow.demo import plots
from dpflow.demo.facts import DemoFacts
from dpflow.demo.workspace import Workspace
from dpflow.ledger import Ledger
from dpflow.tables import read_published

TEMPLATE = Path(__file__).with_name("report.html.j2")
NOT_REACHED = "not reached"


def list_facts(ledger: Ledger, facts: DemoFacts) -> dict[str, str]:
    """What happened, a sentence each; steps that were not done say so."""
    steps = set(facts.steps)
    verdicts = [verdict["verdict"] for verdict in facts.verdicts]
    is_same = facts.rerun_same and not facts.rerun_charged
    sentences = {
        "daily runs": (
            "release_days",
            f"{len(facts.runs)} days, {facts.days[0]} to {facts.days[-1]}"
            + (f", and {facts.crash_day} with a crash" if facts.crash_day else ""),
        ),
        "releases settled": ("", str(sum(stored.settled for stored in ledger.releases()))),
        "gate": (
            "submit_models",
            f"{len(verdicts)} candidates: {verdicts.count('yes')} yes, {verdicts.count('no')} no",
        ),
        "promoted model": ("submit_models", facts.champion),
        "a cleared day, run again": (
            "rerun_day",
            "same results bit for bit, nothing charged" if is_same else "DIFFERENT",
        ),
        "a task killed between draw and settle": (
            "survive_kill",
            f"{facts.crash_tries} tries, {facts.crash_attempts} attempts at one reservation, "
            "one charge, one result",
        ),
        "a model fitted to the stolen holdout": (
            "submit_stolen_fit",
            "gate says {verdict}, true accuracy {fresh:.3f}: no gate detects it".format(
                **facts.naive
            )
            if facts.naive
            else "",
        ),
        "one release more than the budget": ("refuse_one_more", facts.refusal),
        "the ledger": ("verify_ledger", facts.verified),
    }
    return {
        title: text if not step or step in steps else NOT_REACHED
        for title, (step, text) in sentences.items()
    }


def show_facts(console: Console, ledger: Ledger, facts: DemoFacts) -> None:
    """Runs, releases, budgets and verdicts, for the terminal."""
    table = Table(title="what happened", title_justify="left", show_header=False)
    for title, text in list_facts(ledger, facts).items():
        table.add_row(title, text)
    console.print(table)
    console.print(_tabulate_budgets(ledger))
    console.print(_tabulate_verdicts(facts))


def _tabulate_budgets(ledger: Ledger) -> Table:
    table = Table(title="budgets", title_justify="left", header_style="bold")
    for column in ("scope", "block", "epsilon granted", "spent", "left", "protects"):
        table.add_column(column)
    names = ("block", "epsilon_granted", "epsilon_spent", "epsilon_left", "protects")
    for scope in ("flights", "flights_holdout"):
        for row in ledger.remaining(scope).rows():
            table.add_row(scope, *(str(row[name] or "") for name in names))
    return table


def _tabulate_verdicts(facts: DemoFacts) -> Table:
    table = Table(title="gate verdicts", title_justify="left", header_style="bold")
    for column in ("candidate", "kind", "claim", "verdict", "fresh data", "guarantee", "promoted"):
        table.add_column(column)
    for verdict in facts.verdicts:
        table.add_row(
            verdict["name"],
            verdict["kind"],
            f"{plots.to_float(verdict['claim']):.3f}",
            verdict["verdict"],
            f"{verdict['fresh']:.3f}",
            verdict["guarantee"],
            "yes" if verdict["outcome"] == "promoted" else "",
        )
    return table


def write_report(workspace: Workspace, ledger: Ledger, facts: DemoFacts) -> Path:
    """Draw the page from what was seen so far; returns its path. Sections without facts are left out."""
    from jinja2 import Environment

    published: list[dict[str, Any]] = []
    if workspace.published_database.exists():
        published = read_published(workspace.published_database, "flights_daily")
    days = sorted({str(row["block"]) for row in published})
    truth = plots.compute_truth(workspace.private_folder / "flights.csv", days)
    flights, holdout = ledger.scope("flights"), ledger.scope("flights_holdout")
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text())
    page = template.render(
        print_interval=print_interval,
        facts=facts,
        happened=list_facts(ledger, facts),
        days=days,
        complete="verify_ledger" in facts.steps,
        protects=flights.protects,
        epsilon=float(flights.epsilon),
        gate_protects=holdout.protects,
        gate_epsilon=float(holdout.epsilon),
        spending=plots.plot_spending(ledger.releases("flights"), float(flights.epsilon)),
        releases=plots.plot_releases(published, truth),
        gate=plots.plot_gate(facts.verdicts) if facts.verdicts else "",
        rows=[row for row in published if row["block"] == days[0]],
        to_float=plots.to_float,
    )
    workspace.report.write_text(page, encoding="utf-8")
    return workspace.report
