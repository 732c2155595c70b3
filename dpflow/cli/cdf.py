"""`dpflow cdf`: ask a released distribution, or draw it; nothing is charged and no row is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_ledger,
    show_json,
    show_table,
)
from dpflow.cli.pictures import save_picture
from dpflow.core.contract.distribution import Distribution, Estimate
from dpflow.core.contract.printed_numbers import print_interval, print_number
from dpflow.core.contract.results import Result
from dpflow.engine import RunIdentity, load_request, make_plan
from dpflow.engine.planning.precheck import ALREADY_PAID
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml

#: What is shown if nothing is asked.
DECILES = tuple(f"0.{tenth}" for tenth in range(1, 10))


def command(
    file: Annotated[Path, typer.Argument(help="The release file (YAML) of a released cdf.")],
    ledger: LedgerOption = None,
    below: Annotated[
        list[str] | None, typer.Option(help="X: the share of rows below it; repeatable.")
    ] = None,
    between: Annotated[
        list[str] | None,
        typer.Option(help="LOW..HIGH: the share of rows from one to the other; repeatable."),
    ] = None,
    quantile: Annotated[
        list[str] | None, typer.Option(help="P: the value that a share P is below; repeatable.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it with its intervals to this PNG or SVG file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a released distribution for shares and quantiles, or draw it; free, as often as you like.

    Without a question it shows the nine deciles. All intervals hold at once with probability 95 %.
    """
    distribution = _load_distribution(file, ledger)
    answers = _ask(distribution, below or (), between or (), quantile or ())
    if plot is not None:
        _draw(distribution, file.stem, plot)
    if as_json:
        return show_json([{"question": question, **vars(answer)} for question, answer in answers])
    cells = ((question, *_print_estimate(answer)) for question, answer in answers)
    show_table(f"distribution of {file.stem}", ("question", "answer", "95 % interval"), cells)


def _print_estimate(answer: Estimate) -> tuple[Any, str]:
    low, high = answer.low, answer.high
    if isinstance(low, str) or isinstance(high, str):
        return answer.value, f"{low} to {high}"
    return print_number(answer.value, low, high), print_interval(low, high, answer.value)


def _load_distribution(file: Path, ledger: str | None) -> Distribution:
    """The settled one of a release file; at a service the one that is stored there."""
    unreleased = f"{file} is not released yet, so there is nothing to ask; release it with: dpflow release {file}"
    if service := find_service(ledger, file.parent):
        plan_there = service.plan_fields(load_yaml(file, "release file"))
        if plan_there.forecast != ALREADY_PAID:
            raise InvalidInput(unreleased)
        return Distribution.from_result(service.release(plan_there).result)
    request, book = load_request(file), open_ledger(ledger, files=[file])
    plan = make_plan(request, Registry.load(), book)
    stored = book.find(RunIdentity.of_request(request).key(plan))
    if stored is None or stored.result is None:
        raise InvalidInput(unreleased)
    return Distribution.from_result(Result.from_json(stored.result))


def _ask(
    distribution: Distribution, below: Any, between: Any, quantiles: Any
) -> list[tuple[str, Estimate]]:
    answers = [(f"share below {x}", distribution.share_below(x)) for x in below]
    for text in between:
        low, dots, high = text.partition("..")
        if not dots:
            raise InvalidInput(f"--between {text[:40]!r} has no two ends; write it as 10..20")
        answers.append(
            (f"share from {low} to {high}", distribution.share_between(low.strip(), high.strip()))
        )
    # Nothing was asked: the deciles say most.
    for p in quantiles or (() if answers else DECILES):
        answers.append((f"quantile {p}", distribution.quantile(p)))
    return answers


def _draw(distribution: Distribution, name: str, file: Path) -> None:
    """Shares by value, with their intervals. Raises `InvalidInput` for a file that is no picture."""
    with require_extra("plots", "a plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    part = distribution.bulk()
    at: Any = distribution.axis()[part]
    lows, highs = distribution.lows[part], distribution.highs[part]
    # Between two edges only what holds at both is known.
    axes.fill_between(
        at[:-1], lows[:-1], highs[1:], alpha=0.3, step="post", label="95 %, all at once"
    )
    axes.plot(at, distribution.shares[part], label="share below")
    axes.set(xlabel=name, ylabel="share of rows below", ylim=(-0.02, 1.02))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save_picture(figure, file)
