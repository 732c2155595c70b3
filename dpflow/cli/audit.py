"""`dpflow audit`: what can be measured of a mechanism's guarantee."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import JsonOption, open_output, show_json, show_table
from dpflow.core.contract.audit_cells import describe_values
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.registry import Registry, import_file

#: Which plans a certificate covers, by whether these are ranges.
COVERED = (
    "plans exactly as tried",
    "plans whose every property has a value, or lies in a range, that was tried",
)


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A mechanism, or a .py file that registers some; all that are installed without."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="CPU seconds for each, about.")] = 50,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the privacy profile here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a mechanism's guarantee: by its exact output distributions, or by draws.

    First come generated declarations, parameters and neighbours; then the audit is repeated with weaker
    noise, until it refutes the guarantee: one that sees nothing has no power. No table is read, and
    nothing is charged.
    """
    with require_extra("testing", "an audit"):
        import scipy  # noqa: F401  the bounds of counted draws

        from dpflow.testing.examples import read_examples
        from dpflow.testing.mechanism_audit import audit_mechanism
        from dpflow.testing.profile_page import render_page
    if name is not None and name.endswith(".py"):
        registry = _load_file(Path(name))
        names = list(registry.mechanisms)
    else:
        registry = Registry.load()
        names = list(registry.mechanisms) if name is None else [name]
    audits = [
        audit_mechanism(
            registry.find_mechanism(one), read_examples(registry.collect_examples(one)), seconds
        )
        for one in names
    ]
    if html is not None:
        with open_output(html) as file:
            file.write(render_page(audits))
    if as_json:
        return show_json([audit.to_json() for audit in audits])
    show_table(
        "audits (measured: a lower bound; weaker noise: by how much until the audit refutes)",
        (
            "mechanism",
            "method",
            "neighbours",
            "epsilon",
            "delta",
            "measured",
            "share",
            "weaker noise",
            "power",
            "seconds",
            "verdict",
        ),
        (
            (
                a.mechanism,
                a.method,
                a.neighbours,
                f"{a.epsilon:.4g}",
                f"{a.delta:.3g}",
                f"{a.measured_epsilon:.4g}",
                f"{a.share:.0%}",
                "none seen" if a.weakened is None else f"1/{a.weakened}",
                f"{a.power:.4g}",
                f"{a.seconds:.0f}",
                a.verdict,
            )
            for a in audits
        ),
    )
    for audit in audits:
        if audit.reason:
            print(f"{audit.mechanism} is refuted {audit.reason}", file=sys.stderr)
    if name is not None:
        for audit in audits:
            show_table(
                f"tried (generated declarations that could not be followed: {audit.not_followed})",
                ("property", "values"),
                (
                    ("sensitivities", audit.arithmetic),
                    *(("reads", what) for what in audit.own_state),
                    ("covered", COVERED[audit.ranges]),
                    *((what, describe_values(what, v)) for what, v in audit.coverage.items()),
                    ("plans tried", str(len(audit.plans))),
                    *((("numbers of rows", audit.sizes),) if audit.sizes else ()),
                ),
            )
    if any(audit.refuted for audit in audits):
        raise typer.Exit(1)


def _load_file(path: Path) -> Registry:
    """What a file registers, as an installed plugin would: its own mechanisms alone. Raises `InvalidInput`."""
    registry = Registry({str(path): import_file(path)})
    if not registry.mechanisms:
        raise InvalidInput(
            f"{path} registers no mechanism; return some from a @hookimpl function dpflow_register_mechanisms"
        )
    return registry
