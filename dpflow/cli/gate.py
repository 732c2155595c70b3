"""`dpflow gate`: a holdout gate in any pipeline: what it can tell, open it, submit candidates, what is
left.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpflow.cli.ask import read_queries
from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_ledger,
    show_json,
    show_table,
)
from dpflow.cli.gate_power_plot import describe_option, draw_power, write_request
from dpflow.core.contract.printed_numbers import print_width
from dpflow.engine import make_plan
from dpflow.engine.planning.gate_design import load_gate_file
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.sessions.champion_file import ChampionFile
from dpflow.engine.sessions.holdout_gate import (
    Promotes,
    asks_for_champions,
    check_candidates,
    find_reviewed,
    join_outcomes,
    judge_all,
    require_gate,
    require_metrics,
    review_champion,
)
from dpflow.engine.sessions.model_gate import submit_candidate
from dpflow.engine.sessions.query_list import load_upload, resolve_paths
from dpflow.engine.sessions.session import Session
from dpflow.errors import DpflowError, InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry


class GateCommands(TyperGroup):
    """Commands whose exit code 1 is an answer, so their errors have another one."""

    def invoke(self, ctx: Any) -> Any:
        """The command's result; errors end the process with 2, as wrong options do."""
        try:
            return super().invoke(ctx)
        except DpflowError as error:
            error.exit_code = EXIT_CODES["error"]
            raise


app = typer.Typer(
    cls=GateCommands, help="A holdout gate: plan, open, submit candidates, review the champion."
)

FileArgument = Annotated[
    Path,
    typer.Argument(help="A release file (YAML) whose mechanism is a gate, such as gate."),
]
ModelOption = Annotated[
    str | None, typer.Option(help="A registered MLflow model, whose alias moves to who is better.")
]
AliasOption = Annotated[
    str | None,
    typer.Option(help="With --model: the alias that points at the champion; champion if left out."),
]
ChampionOption = Annotated[
    Path | None, typer.Option(help="A JSON file that holds the champion, in place of --model.")
]
TrackingOption = Annotated[
    str | None, typer.Option(envvar="MLFLOW_TRACKING_URI", help="Where the model is registered.")
]
#: What a pipeline branches on. An error after which a retry helps is 75, as for every command.
EXIT_CODES = {"yes": 0, "no": 1, "error": 2, "exhausted": 3}


class Requirement(StrEnum):
    """What `dpflow gate submit` requires of a candidate to end with 0."""

    PROMOTED = "promoted"
    PLAUSIBLE = "plausible"


#: Excesses of the power curve, as shares of the score's range.
EXCESSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


@app.command("plan")
def show_plan(
    file: FileArgument,
    units: Annotated[
        int | None,
        typer.Option(min=1, help="How many units the holdout has about, for the power curve."),
    ] = None,
    deviation: Annotated[
        float,
        typer.Option(
            min=0.0, help="Standard deviation of one unit's score; .5 is the most of [0, 1]."
        ),
    ] = 0.5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the power curve into this .png or .svg file.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the chosen gate's release file here, for a DAG.")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a gate costs, proves and refuses, before anything is spent.

    A file that says what is wanted (gate: tolerance, candidates, confidence, units) becomes the
    cheapest gate that does it. The power curve is about a mean of one score for each unit. No row is
    read: the number of units is yours, and no guarantee rests on it.
    """
    request, design = load_gate_file(file, Registry.load())
    plan, _ = _plan_request(request, file, ledger)
    gate = require_gate(plan)
    about: dict[str, Any] = {**plan.describe(), **gate.describe_limits(plan.params)}
    event, curve = "refused", list[tuple[float, float]]()
    if design is not None:
        chosen = design.chosen
        about |= {"method": chosen.method, "verdicts": chosen.guarantee}
        about |= {"intervals": f"+- {print_width(design.interval)}"} if design.interval else {}
        event = "replaces" if design.wishes.question == "champion" else "refused"
        curve = list(design.curve)
    elif units is not None and deviation > 0:
        powers = {
            excess: gate.refusal_power(plan.params, plan.table, excess, units, deviation)
            for excess in (0.0, *EXCESSES)
        }
        curve = [(excess, power) for excess, power in powers.items() if power is not None]
    what = "better by" if event == "replaces" else "too good by"
    if write is not None:
        write_request(request, write)
    if plot is not None:
        draw_power(curve, what, event, plot)
    compared = [] if design is None else [describe_option(one) for one in design.options]
    widths = {} if design is None else dict(design.widths)
    if as_json:
        power = [{what: x, event: y} for x, y in curve]
        return show_json({**about, "power": power, "compared": compared, "proven_widths": widths})
    show_table(f"gate {plan.request.name}", ("", ""), about.items())
    if compared:
        show_table("methods", tuple(compared[0]), (tuple(one.values()) for one in compared))
    if widths:
        rows = ((name, print_width(width)) for name, width in widths.items())
        show_table("how far an answer may be from fresh data", ("way to answer", "+-"), rows)
    if curve:
        cells = ((f"{x:.3g}", f"{y:.3f}", "#" * round(40 * y)) for x, y in curve)
        title = "how often a challenger replaces the champion" if what == "better by" else "how often a claim is refused"  # fmt: skip
        show_table(title, (what, event, ""), cells)


@app.command("open")
def open_gate(file: FileArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Charge a gate whole, once, or find the one that was charged; show what is left."""
    session = _open(*_load(file, ledger))
    _show_left(session.id, session.remaining(), as_json)


@app.command("status")
def show_status(
    file: FileArgument, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """Show what is left of a gate; opens and charges nothing. Of a service's gate FILE is the name."""
    if service := find_service(ledger):
        return _show_left("", service.show_gate(str(file))["left"], as_json)
    plan, book = _load(file, ledger)
    session = Session.find(plan, book, Registry.load())
    if session is None:
        return _show_left("", {"state": "not opened"}, as_json)
    _show_left(session.id, session.remaining(), as_json)


@app.command("submit")
def submit(
    file: FileArgument,
    candidates: Annotated[
        Path, typer.Argument(help="A YAML file with a list of candidates: name, claim, model.")
    ],
    model: ModelOption = None,
    alias: AliasOption = None,
    champion: ChampionOption = None,
    tracking_uri: TrackingOption = None,
    better_by: Annotated[
        str | None,
        typer.Option(help="By how much a challenger has to beat the champion; 0 if left out."),
    ] = None,
    require: Annotated[
        Requirement | None,
        typer.Option(help="What ends with 0; promoted where a champion is named, else plausible."),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit candidates to a gate, in order; the same one again is free. Of a service's gate FILE is the name.

    Exit code: 0 if one was promoted, or is plausible as required, 1 if none, 3 if none and the gate is
    exhausted; an error is 2, or 75 if a retry helps.
    """
    submissions = read_queries(candidates)
    if bad := [one for one in submissions if not isinstance(one, dict) or "name" not in one]:
        raise InvalidInput(
            f"not every entry of {candidates} is a candidate ({len(bad)} of {len(submissions)}); each has a name, a claim and a model"
        )
    if service := find_service(ledger):
        if any(option is not None for option in (model, alias, champion, better_by)):
            raise InvalidInput(
                "the service has the champion; leave --model, --alias, --champion and --better-by out"
            )
        prepared = [load_upload(resolve_paths(one, candidates.parent)) for one in submissions]
        answers = [service.submit_candidate(str(file), one) for one in prepared]
        if require is None:
            may_promote = any("promotion" in answer["verdict"] for answer in answers)
            require = Requirement.PROMOTED if may_promote else Requirement.PLAUSIBLE
        return _finish(
            answers[-1]["session"] if answers else "",
            [answer["verdict"] for answer in answers],
            answers[-1]["left"] if answers else {},
            require,
            as_json,
        )
    plan, book = _load(file, ledger)
    promoter = _make_promoter(plan, model, alias, champion, tracking_uri, better_by)
    require = require or (Requirement.PLAUSIBLE if promoter is None else Requirement.PROMOTED)
    if require is Requirement.PROMOTED and promoter is None:
        raise InvalidInput("nothing can be promoted without a champion: name --model or --champion")
    if require is Requirement.PLAUSIBLE and asks_for_champions(plan):
        raise InvalidInput(
            f"{plan.request.name} says whether a candidate is better, and not whether a claim is plausible; leave "
            f"--require out"
        )
    submissions = [resolve_paths(one, candidates.parent) for one in submissions]
    check_candidates([plan], book, submissions, promoter)
    session = _open(plan, book)
    verdicts = judge_all([lambda: session], submissions, promoter, submit_candidate)
    _finish(session.id, verdicts, session.remaining(), require, as_json)


def _finish(
    session: str,
    verdicts: list[dict[str, Any]],
    left: dict[str, Any],
    require: Requirement,
    as_json: bool,
) -> None:
    """Show verdicts, and end with the exit code that they have."""
    if as_json:
        show_json({"session": session, "verdicts": verdicts, "left": left})
    else:
        for verdict in verdicts:
            show_table(str(verdict["name"]), ("", ""), verdict.items())
        _show_left(session, left, as_json)
    outcome = join_outcomes(verdicts)
    passed = outcome == "promoted"
    if require is Requirement.PLAUSIBLE:
        passed = any(verdict["verdict"] == "yes" for verdict in verdicts)
    sys.exit(EXIT_CODES["yes" if passed else "exhausted" if outcome == "exhausted" else "no"])


@app.command("review")
def review(
    file: FileArgument,
    model: ModelOption = None,
    alias: AliasOption = None,
    champion: ChampionOption = None,
    tracking_uri: TrackingOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at the champion again on a gate's fresh rows, and roll back if they speak against it.

    Exit code: 0 if it stays, 1 if not, 3 if the gate is exhausted; an error is 2, or 75 if a retry
    helps.
    """
    plan, book = _load(file, ledger)
    promoter = _make_promoter(plan, model, alias, champion, tracking_uri, None)
    if promoter is None:
        raise InvalidInput("say which champion: name --model or --champion")
    find_reviewed(Session("", "", plan, book, Registry.load()), promoter)
    verdict = review_champion(_open(plan, book), promoter)
    if as_json:
        show_json(verdict)
    else:
        show_table(f"champion of {model or champion}", ("", ""), verdict.items())
    sys.exit(EXIT_CODES.get(verdict["verdict"], 1))


def _make_promoter(
    plan: Plan,
    model: str | None,
    alias: str | None,
    champion: Path | None,
    tracking_uri: str | None,
    better_by: str | None,
) -> Promotes | None:
    """What holds the champion; None if none is named. Raises `InvalidInput` for options that mean nothing."""
    if model is None and alias is not None:
        raise InvalidInput("--alias is one of a registered model; name it by --model")
    if model is not None and champion is not None:
        raise InvalidInput("the champion is in one place; give --model or --champion")
    if model is None and champion is None:
        if better_by is not None:
            raise InvalidInput("--better-by is about a champion; name it by --model or --champion")
        return None
    require_metrics([plan])
    if champion is not None:
        return ChampionFile(champion, better_by or "0")
    if not tracking_uri:
        raise InvalidInput(
            "say where the model is registered: --tracking-uri, or MLFLOW_TRACKING_URI"
        )
    from dpflow.engine.sessions.model_promotion import Promoter

    return Promoter(str(model), alias or "champion", tracking_uri, better_by or "0")


def _load(file: Path, ledger: str | None) -> tuple[Plan, Ledger]:
    """The plan of a gate, and its ledger. Raises `PlanRefused` for another mechanism."""
    return _plan_request(load_gate_file(file, Registry.load())[0], file, ledger)


def _plan_request(request: ReleaseRequest, file: Path, ledger: str | None) -> tuple[Plan, Ledger]:
    book = open_ledger(ledger, files=[file])
    plan = make_plan(request, Registry.load(), book)
    require_gate(plan)
    return plan, book


def _open(plan: Plan, book: Ledger) -> Session:
    return Session.open(plan, book, Registry.load())


def _show_left(session: str, left: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return show_json({"session": session, "left": left})
    show_table(f"left of gate {session}".rstrip(), ("", ""), left.items())
