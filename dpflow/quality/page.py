"""A contract's outcome as one page: no script, nothing loaded from elsewhere, no value of a row."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from dpflow.core.contract.printed_numbers import print_around
from dpflow.html_page import begin_page

if TYPE_CHECKING:
    from dpflow.quality.contract_run import ContractOutcome

_STYLE = """  .kept, .quiet { color: #00703c; } .violated, .alarm { color: #c5303c; font-weight: bold; }
  .undecided { color: #9a6700; font-weight: bold; }
  @media (prefers-color-scheme: dark) {
    .kept, .quiet { color: #5fd38d; } .violated, .alarm { color: #ff8080; } .undecided { color: #e8b339; }
  }
"""
#: What the numbers of a mode are.
EXPLANATIONS = {
    "public": "From the file's catalogue; no row was read.",
    "trusted": "One bit, computed from the rows and not charged: for those who may see the rows.",
    "metered": "Numbers are noisy and were paid for; verdicts follow from them alone.",
    "watch": "Noisy answers of a session that was paid when it was opened; quiet does not prove that a check is kept.",
}


def write_html(outcome: ContractOutcome) -> str:
    """The page. Every number on it was released."""
    about = [
        ("table", outcome.table),
        ("blocks", ", ".join(outcome.blocks) or "all"),
        ("mode", f"{outcome.mode}. {EXPLANATIONS[outcome.mode]}"),
        *(
            (
                "paid",
                f"{receipt['name']}: epsilon {receipt['epsilon']}, delta {receipt['delta']}, from {receipt['scope']}",
            )
            for receipt in outcome.receipts
        ),
    ]
    head = ("check", "asked", "verdict", "estimate", "beyond the bound")
    lines = [
        f"<tr><td>{escape(one.name)}</td><td>{escape(one.summary)}</td>"
        f'<td class="{one.verdict}">{one.verdict}</td>'
        f"<td>{_write_number(one.estimate)}</td><td>{_write_excess(one.excess, one.half_width)}</td></tr>"
        for one in outcome.checks
    ]
    facts = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>\n" for name, text in about
    )
    return (
        begin_page(f"contract {outcome.contract}: {outcome.verdict}", width="70rem", style=_STYLE)
        + f"<table>\n{facts}</table>\n<h2>Checks</h2>\n<table>\n<tr>"
        + "".join(f"<th>{name}</th>" for name in head)
        + "</tr>\n"
        + "\n".join(lines)
        + "\n</table>\n</html>\n"
    )


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:,.6g}"


def _write_excess(excess: float | None, half_width: float | None) -> str:
    """Such as ``-120 ± 35``: below 0 is within the bound."""
    if excess is None or half_width is None:
        return ""
    return " &plusmn; ".join(print_around(excess, half_width))
