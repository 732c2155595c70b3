"""The pages, each a function of the ledger, of who reads, and of what the address asks for."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, exact_text
from dpflow.core.accounting.periods import next_start
from dpflow.core.accounting.privacy_filters import SATURATED
from dpflow.core.contract.printed_numbers import print_width
from dpflow.ledger import (
    BudgetState,
    Entry,
    ScopeSummary,
    ShownRelease,
    SignedNote,
)
from dpflow.ledger.audit.entry_text import explain_entry
from dpflow.ledger.books.records import units_text
from dpflow.ui import markup
from dpflow.ui.account_pages import show_reconciliation, show_statement
from dpflow.ui.burn_down import burn_down, describe_event, make_figures
from dpflow.ui.markup import Markup, element, join, link, table
from dpflow.ui.visit import Missing, Page, Visit

PAGE = 50  # rows of a table
_MOST_SCOPES = 1000  # that alarms look at
_OLD = dt.timedelta(days=7)  # of a checkpoint


def show_budgets(visit: Visit) -> Page:
    """All scopes: granted, spent, reserved, remaining."""
    after, every = visit.query.get("after", ""), visit.view.scopes(limit=_MOST_SCOPES)
    # Alarms need all of them: the first page asks for none twice.
    summaries = visit.view.scopes(after, PAGE + 1) if after else every[: PAGE + 1]
    rows = [_make_scope_row(summary) for summary in summaries[:PAGE]]
    more = summaries[PAGE - 1].scope.scope if len(summaries) > PAGE else None
    alarms = len(find_alarms(visit, every))
    notice = (
        element("p", f"{alarms} alarm{'' if alarms == 1 else 's'}: ", link("see them", "alarms"), ".", class_="alarm")
        if alarms
        else element("p", "No alarms.", class_="none")
    )  # fmt: skip
    return Page(
        "Privacy budgets",
        "",
        (
            notice,
            table("Scopes", _SCOPE_HEADS, rows, "Nothing was granted yet: dpflow ledger grant."),
            link("More scopes", "", after=more) if more else "",
            _KEY if rows else "",
            element(
                "p",
                "A scope with blocks is shown by its fullest block. Amounts are exact, and those of dpflow ledger show.",
            ),
        ),
    )


_SCOPE_HEADS = ("=Scope", "=Used", "#Remaining", "#Spent", "#Reserved", "#Granted", "Of", "#Delta left", "Blocks", "Protects")  # fmt: skip
_KEY = Markup(
    '<p class="key">In a bar:<span class="spent"></span>spent<span class="reserved"></span>reserved'
    '<span class="left"></span>remaining</p>'
)


def _make_scope_row(summary: ScopeSummary) -> tuple[object, ...]:
    scope, budget = summary.scope, summary.fullest
    figures = make_figures(budget)
    blocks: object = "none"
    if scope.blocks:
        blocks = f"{summary.blocks} charged"
        if budget.block:
            fullest = link(budget.block, "scope", name=scope.scope, block=budget.block)
            # On a line of its own: beside Airflow's menu this column was cut.
            blocks = join(blocks, Markup(", <br>fullest "), element("span", fullest, class_="line"))
    if scope.filter.period is not None:
        blocks = join(
            f"{blocks}, " if scope.blocks else "", f"refreshes each {scope.filter.period}"
        )
    name: object = link(scope.scope, "scope", name=scope.scope)
    if scope.closed:
        name = join(name, " (closed)")
    return (
        name,
        _render_usage(figures),
        *(figures.left, figures.spent, figures.reserved, figures.granted),
        figures.unit,
        figures.delta_left,
        blocks,
        scope.protects or "nothing named",
    )


def _render_usage(figures: Any) -> Markup:
    share = figures.used_percent
    label = f"{share} used: spent {figures.spent}, reserved {figures.reserved} of {figures.granted}"
    return join(
        markup.bar(figures.spent_share, figures.reserved_share, figures.near_end, label), " ", share
    )


def show_scope(visit: Visit) -> Page:
    """One scope: how its budget burns down, and its blocks."""
    name = visit.query.get("name", "")
    summary = visit.view.scope(name)
    block = visit.query.get("block", summary.fullest.block)
    chosen = visit.view.budget(name, block)
    today = dt.datetime.now(dt.UTC).date()
    figures, burn = make_figures(chosen), burn_down(chosen, today)
    scope = summary.scope
    facts = [
        ("Protects", scope.protects or "nothing named"),
        ("Equality", scope.equality or "no units"),
        ("Grant", f"epsilon {exact_text(scope.epsilon)}, delta {exact_text(scope.filter.delta)}, filter {scope.filter.name}"),
        ("Counted in", figures.unit),
        ("Granted", figures.granted),
        ("Spent", figures.spent),
        ("Reserved", figures.reserved),
        ("Remaining", f"{figures.left}, delta {figures.delta_left}"),
        ("Used", _render_usage(figures)),
        ("Forecast", burn.sentence),
    ]  # fmt: skip
    period = scope.filter.period
    if period is not None:
        renews = (
            f"each {period} (UTC), next on {next_start(period, today)}; the scope above never does"
        )
        facts.insert(3, ("Refreshes", renews))
    if scope.closed:
        facts.insert(
            0, ("Closed", "entries were lost that may have charged it; its owner grants it again")
        )
    about = f"Block {block}" if scope.blocks and block else "Budget"
    about = about if period is None else f"Period {block}"
    label = f"{about}: {figures.used_percent} used. {burn.sentence}"
    parts: list[object] = [
        _render_facts(facts),
        element("h2", f"{about}: what was left, by day"),
        markup.chart(burn.points, burn.end, label) if chosen.daily else element("p", "Nothing was charged yet.", class_="none"),
    ]  # fmt: skip
    if scope.blocks or period is not None:
        word = "Block" if period is None else "Period"
        parts += _make_block_table(visit, name, today, word)
    others = (
        link("Statement of this scope", "statement", name=name),
        " · ",
        link("Releases of this scope", "releases", scope=name),
        " · ",
        link("History of this scope", "history", scope=name),
    )
    return Page(f"Scope {name}", "", (*parts, element("p", *others)))


def _make_block_table(visit: Visit, name: str, today: dt.date, word: str) -> list[object]:
    budgets = visit.view.budgets(name, visit.query.get("before") or None, PAGE + 1)
    rows = [(link(one.block, "scope", name=name, block=one.block), *_make_block_row(one, today)) for one in budgets[:PAGE]]  # fmt: skip
    amounts = ("#Remaining", "#Spent", "#Reserved", "#Granted")
    heads = (f"={word}", "=Used", *amounts, "=Last charge", "=Used up")
    parts: list[object] = [table(f"{word}s", heads, rows, f"No {word.lower()} was charged yet.")]
    if len(budgets) > PAGE:
        parts.append(
            link(f"Earlier {word.lower()}s", "scope", name=name, before=budgets[PAGE - 1].block)
        )
    return parts


def _make_block_row(budget: BudgetState, today: dt.date) -> tuple[object, ...]:
    figures, burn = make_figures(budget), burn_down(budget, today)
    end = burn.end or ("used up" if figures.used >= 1 else "not forecast")
    amounts = figures.left, figures.spent, figures.reserved, figures.granted
    return _render_usage(figures), *amounts, max(budget.daily, default=""), end


def show_releases(visit: Visit) -> Page:
    """Releases and sessions with what they cost, the newest first."""
    query = {n: visit.query.get(n, "").strip() for n in ("scope", "dag_id", "run_id", "task_id")}
    scope, dag_id, run_id, task_id = query.values()
    if scope:
        visit.view.scope(scope)  # a name that is none would read as a scope without releases
    dags = visit.audience.dags
    before = visit.number("before")
    if dag_id:
        dags = {name for name in visit.host.name_dags(dag_id) if visit.audience.may_see(name)}
    if dag_id and run_id:
        of_run = [
            release
            for run, task in visit.host.name_runs(dag_id, run_id)
            if not task or task_id in ("", task)
            for name in dags or ()
            for release in visit.view.releases_of_run(name, run, task or task_id or None)
        ]
        of_run.sort(key=lambda release: release.seq, reverse=True)
        releases = [r for r in of_run if visit.audience.may_see(r.dag_id) and r.seq < before]
        more = releases[PAGE - 1].seq if len(releases) > PAGE else None
        releases = releases[:PAGE]
    else:
        releases, more = _find_releases(visit, scope or None, dags, task_id, before)
    form = element(
        "form",
        *(
            element("label", label, " ", Markup(f'<input name="{name}" value="{markup.text(query[name])}">'))
            for name, label in (("scope", "Scope"), ("dag_id", "DAG"), ("task_id", "Task"), ("run_id", "Run"))
        ),
        element("button", "Filter"),
        action="releases",
        role="search",
    )  # fmt: skip
    return Page(
        "Releases",
        "releases",
        (
            form,
            table("Releases and sessions, the newest first", _RELEASE_HEADS, map(_make_release_row, releases)),
            link("Older releases", "releases", **query, before=more) if more else "",
        ),
    )  # fmt: skip


def _find_releases(
    visit: Visit, scope: str | None, dags: Collection[str] | None, task_id: str, before: int
) -> tuple[list[ShownRelease], int | None]:
    """A page of releases, and the number that the next page begins below."""
    releases: list[ShownRelease] = []
    # A task's are picked from its DAG's: after so many the reader goes on by the link.
    for _ in range(10 if task_id else 1):
        newest = visit.view.releases(scope, dags, before, PAGE)
        releases += [r for r in newest if not task_id or r.task_id == task_id]
        if len(newest) < PAGE:
            return releases, None
        before = newest[-1].seq
        if len(releases) >= PAGE:
            break
    return releases, before


_RELEASE_HEADS = ("=Charged (UTC)", "Release", "Question", "Scope", "Blocks", "=Cost", "State", "Task", "Run")  # fmt: skip


def _make_release_row(release: ShownRelease) -> tuple[object, ...]:
    return (
        _format_time(release.at),
        link(release.name or release.release_id, "release", id=release.release_id),
        release.question,
        link(release.scope, "scope", name=release.scope),
        _shorten_blocks(release.blocks),
        describe_event(release.event),
        release.state,
        _describe_task(release),
        release.run,
    )


def _describe_task(release: ShownRelease) -> str:
    if not release.dag_id:
        return "outside Airflow"
    return f"{release.dag_id}.{release.task_id}" if release.task_id else release.dag_id


def _shorten_blocks(blocks: tuple[str, ...]) -> str:
    return ", ".join(blocks[:3]) + (f" and {len(blocks) - 3} more" if len(blocks) > 3 else "")


def _format_time(at: str) -> str:
    return at[:19].replace("T", " ")


def show_release(visit: Visit) -> Page:
    """A release's receipt: what was charged where, and what became of it. Never its result."""
    release = visit.view.release(visit.query.get("id", ""))
    if release is None or not visit.audience.may_see(release.dag_id):
        raise Missing("there is no such release here, or you may not read its DAG")
    settled = visit.view.settled_at(release) if release.state == "settled" else None
    task: object = _describe_task(release)
    # A session belongs to no run: its DAG is shown.
    if release.dag_id and (address := visit.host.find_task_address(release)):
        # In a new page: within Airflow this one stands in a frame.
        task = Markup(
            f'<a href="{markup.text(address)}" target="_blank" rel="noopener">{markup.text(task)}</a>'
        )
    facts: list[tuple[str, object]] = [
        ("Release", element("code", release.release_id)),
        ("Mechanism", release.mechanism),
        ("Table", release.table),
        ("Scope", link(release.scope, "scope", name=release.scope)),
        ("Blocks", ", ".join(release.blocks) or "none"),
        ("Cost", describe_event(release.event)),
        ("95 % noise interval", _describe_noise(release) or "with the values, if they have one"),
        ("Published", release.published or "no table was named"),
        ("State", _STATES.get(release.state, release.state)),
        ("Charged", f"{_format_time(release.at)} UTC, entry {release.seq}"),
        ("Settled", f"{_format_time(settled)} UTC" if settled else "no"),
        ("Tries", release.attempts),
        ("Principal", release.principal),
        ("Task", task),
        ("Run", release.run),
    ]
    costs = [
        (
            link(at, "scope", name=at, block=block),
            block or "all rows",
            _describe_cost(cost.epsilon),
            units_text(cost.delta, DELTA_UNIT),
            _describe_cost(cost.renyi),
        )
        for at, block, cost in release.charges[: PAGE * 4]
    ]
    return Page(
        f"Release {release.name or release.release_id}",
        "releases",
        (
            _render_facts(facts),
            table("What each budget paid", ("Scope", "Block", "#Epsilon", "#Delta", "#Renyi divergence"), costs, "Nothing."),
            *(_show_verdicts(visit, release) if release.gate is not None else ()),
            element("p", "The values are in the published table, and encrypted in the ledger: this page has no key."),
        ),
    )  # fmt: skip


def _describe_noise(release: ShownRelease) -> str:
    """How wide the noise is, as it was planned: it says nothing of a row."""
    return ", ".join(
        f"{m}: value ± {print_width(width)}" for m, width in release.half_widths.items()
    )


_STATES = {
    "settled": "settled: its result is stored",
    "reserved": "reserved: charged, and no result yet",
    "fenced": "fenced by an owner: its charge stays",
    "open": "an open session",
    "closed": "a closed session",
}


def _describe_cost(units: int) -> str:
    return "not payable here" if units >= SATURATED else units_text(units, EPSILON_UNIT)


def show_sessions(visit: Visit) -> Page:
    """Gates and other sessions, the newest first."""
    sessions = visit.view.sessions(visit.audience.dags, visit.number("before"), PAGE + 1)
    more = sessions[PAGE - 1].seq if len(sessions) > PAGE else None
    listed = sessions[:PAGE]
    gates = [_make_session_row(s) for s in listed if s.gate is not None]
    others = [_make_session_row(s) for s in listed if s.gate is None]
    return Page(
        "Sessions",
        "sessions",
        (
            element("h2", "Holdout gates"),
            table("Gates", (*_SESSION_HEADS, "#Looks taken", "#Looks left", "#Failures left", "Verdicts"), gates),
            element("h2", "Predictions and other sessions"),
            table("Sessions", (*_SESSION_HEADS, "#Answers stored", "#Asked for at most", ""), others),
            link("Older sessions", "sessions", before=more) if more else "",
            element(
                "p",
                "Verdicts are told once their answers are stored; a session leads to all of its own. Scores and predictions "
                "are encrypted. Who has the key asks: dpflow gate status, or dpflow ask.",
            ),
        ),
    )  # fmt: skip


_SESSION_HEADS = ("=Opened (UTC)", "Session", "Mechanism", "Scope", "=Cost", "State")


def _make_session_row(session: ShownRelease) -> tuple[object, ...]:
    limits = session.params if session.gate is None else session.gate
    most = limits.get("queries", limits.get("predictions", ""))
    rest = max(most - session.answers, 0) if isinstance(most, int) else ""
    left = 0 if rest and session.state != "open" else rest
    is_gate = session.gate is not None
    return (
        _format_time(session.at),
        link(session.name or session.release_id, "release", id=session.release_id),
        session.mechanism,
        link(session.scope, "scope", name=session.scope),
        describe_event(session.event),
        session.state,
        session.answers,
        *((left, session.failures_left, _count_verdicts(session)) if is_gate else (most, "")),
    )


def _count_verdicts(session: ShownRelease) -> str:
    counts = Counter(word for word, _ in session.verdicts.values())
    counts["not told"] = session.answers - len(session.verdicts)
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number)


def _show_verdicts(visit: Visit, session: ShownRelease) -> Iterator[object]:
    """A gate's looks, the newest first."""
    looks = range(min(session.answers, visit.number("before") - 1), 0, -1)[: PAGE + 1]
    rows = [(n, *session.verdicts.get(n, ("not told", None))) for n in looks[:PAGE]]
    cells = [(n, word, "" if left is None else left) for n, word, left in rows]
    yield table("Verdicts", ("#Look", "Verdict", "#Failures left"), cells, "Nobody asked.")
    earlier = looks[PAGE - 1] if len(looks) > PAGE else None
    yield link("Earlier looks", "release", id=session.release_id, before=earlier) if earlier else ""


def find_alarms(visit: Visit, summaries: Iterable[ScopeSummary]) -> list[tuple[str, object]]:
    """What somebody should look at: a word, and what is true with what to do.

    Args:
        summaries: of the scopes that it is about.
    """
    view, alarms, summaries = visit.view, list[tuple[str, object]](), [*summaries]
    for seq in view.faults()[:10]:
        alarms.append(
            (
                "history",
                f"Entry {seq} was changed, does not follow the one before it, or cannot be read. Run dpflow ledger verify.",
            )
        )
    notes = view.checkpoints()
    alarms += [("checkpoint", f"{note.file}: {note.problem}.") for note in notes if note.problem][
        :10
    ]
    good = [note for note in notes if not note.problem]
    alarms += [
        (
            "witness",
            f"{scope.scope} demands checkpoints of a witness, and this page can compare with none: name their place, by --checkpoints "
            f"or DPFLOW_LEDGER_WITNESS.",
        )
        for scope in (summary.scope for summary in summaries)
        if scope.filter.witness is not None and not good
    ]
    if good and dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(good[0].at) > _OLD:
        alarms.append(
            (
                "checkpoint",
                f"The newest checkpoint is of {_format_time(good[0].at)}. Run dpflow ledger checkpoint.",
            )
        )
    for release in view.orphans(visit.audience.dags):
        name = link(release.name or release.release_id, "release", id=release.release_id)
        alarms.append(
            ("orphan", join(
                f"Charged at {_format_time(release.at)} and never settled: ", name, f" ({_describe_task(release)}). Clear its task, "
                "or run ", element("code", f"dpflow ledger resolve {release.release_id}"), "."))
        )  # fmt: skip
    for summary in summaries:
        alarms += _find_scope_alarms(summary)
    for proposal in view.proposals():
        alarms.append(("proposal", f"A grant for {proposal.terms.scope} by {proposal.principal} waits for a second principal: "
                       f"see dpflow ledger proposals, then dpflow ledger approve {proposal.terms.scope} {proposal.seq}."))  # fmt: skip
    return alarms


def _find_scope_alarms(summary: ScopeSummary) -> Iterable[tuple[str, object]]:
    scope = summary.scope
    name = link(scope.scope, "scope", name=scope.scope)
    if scope.closed:
        yield (
            "closed",
            join(name, " is closed: entries were lost that may have charged it. Grant it again."),
        )
    elif summary.near_end and scope.blocks:
        yield (
            "near exhaustion",
            join(
                f"{summary.near_end} of {summary.blocks} blocks of ",
                name,
                " are used by 80 % or more.",
            ),
        )
    elif summary.near_end:
        used = make_figures(summary.fullest).used_percent
        yield "near exhaustion", join(name, f" is used by {used}.")


def show_alarms(visit: Visit) -> Page:
    """What somebody should look at."""
    alarms = find_alarms(visit, visit.view.scopes(limit=_MOST_SCOPES))
    parts = [
        element("p", element("strong", kind), ": ", what, class_="alarm") for kind, what in alarms
    ]
    return Page("Alarms", "alarms", tuple(parts) or (element("p", "No alarms.", class_="none"),))


def show_checkpoints(visit: Visit) -> Page:
    """What signed checkpoints vouch for."""
    notes = visit.view.checkpoints()
    rows = [
        (
            note.file,
            note.size,
            _format_time(note.at),
            note.signer or "not checked: no key was named",
            note.problem or _describe_note(note),
        )
        for note in notes
    ]
    heads = ("File", "#Entries", "=Of (UTC)", "Signed by", "State")
    about = "This page verifies nothing: it has no key. A checkpoint was verified by who signed it, up to its entry."
    empty = (
        "No checkpoints are known. Write them with dpflow ledger checkpoint, and name their place."
    )
    return Page(
        "Checkpoints",
        "checkpoints",
        (element("p", about), table("Checkpoints", heads, rows, empty)),
    )


def _describe_note(note: SignedNote) -> str:
    if note.recovered_at is None:
        return "the history holds what was signed"
    return f"entry {note.recovered_at} went on from it after a loss; run dpflow ledger verify --since {note.file}"


def show_history(visit: Visit) -> Page:
    """The entries, the newest first."""
    scope = visit.query.get("scope", "")
    if scope:
        visit.view.scope(scope)
    entries = visit.view.history(scope or None, visit.audience.dags, visit.number("before"), PAGE)
    more = entries[-1].seq if len(entries) == PAGE and entries[-1].seq > 1 else None
    heads = ("#Entry", "=At (UTC)", "Kind", "Scope", "Release", "Principal", "What")
    return Page(
        f"History of {scope}" if scope else "History",
        "history",
        (
            table("Entries, the newest first", heads, map(_make_entry_row, entries)),
            link("Older entries", "history", scope=scope, before=more) if more else "",
        ),
    )


def _make_entry_row(entry: Entry) -> tuple[object, ...]:
    release = entry.release_id and link(entry.release_id, "release", id=entry.release_id)
    scope = entry.scope and link(entry.scope, "scope", name=entry.scope)
    return (
        entry.seq,
        _format_time(entry.at),
        entry.kind,
        scope,
        release,
        entry.principal,
        explain_entry(entry),
    )


def _render_facts(facts: Iterable[tuple[str, object]]) -> Markup:
    return element(
        "dl", *(join(element("dt", name), element("dd", value)) for name, value in facts)
    )


PAGES: Mapping[str, Callable[[Visit], Page]] = {
    "": show_budgets,
    "scope": show_scope,
    "statement": show_statement,
    "reconciliation": show_reconciliation,
    "releases": show_releases,
    "release": show_release,
    "sessions": show_sessions,
    "alarms": show_alarms,
    "checkpoints": show_checkpoints,
    "history": show_history,
}
