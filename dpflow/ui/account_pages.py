"""The account of a scope, and whether what was paid for arrived: the pages of auditors."""

from __future__ import annotations

from dataclasses import fields

from dpflow.engine.releases.reconcile import reconcile
from dpflow.ledger import StatementLine
from dpflow.ui.markup import element, link, table
from dpflow.ui.visit import Page, Visit

PAGE = 50  # lines of a statement
_NEWEST = 2000  # releases that are compared
_SHOWN_IDS = 20
_HIDDEN = {"release_id", "scope", "table"}
_COLUMNS = [field.name for field in fields(StatementLine) if field.name not in _HIDDEN]
_HEADS = [f"{'#' * name.endswith(('epsilon', 'delta', 'renyi'))}{name.replace('_', ' ')}" for name in _COLUMNS]  # fmt: skip


def show_statement(visit: Visit) -> Page:
    """The newest lines of a scope's account: what was paid, and what was left after it."""
    name = visit.query.get("name", "")
    statement = visit.view.statement(name, visit.audience.dags, PAGE)
    rows = [[_cell(line, column) for column in _COLUMNS] for line in statement.lines]
    notes = ["Read and not verified: this page has no key."]
    if statement.hidden:
        notes.append(
            "What DAGs did that you may not read is left out; amounts that are left count it."
        )
    if not statement.is_whole:
        notes.append(
            "Earlier lines are left out, and those before the last change of the grant or loss of entries."
        )
    command = f"dpflow ledger statement {name}"
    return Page(
        f"Statement of {name}",
        "",
        (
            table("Lines, the newest first", _HEADS, rows, "Nothing was charged since the last grant."),
            element("p", " ".join(notes), " All of it, verified: ", element("code", command), "."),
            element("p", link("This scope", "scope", name=name), " · ", link("Reconciliation", "reconciliation")),
        ),
    )  # fmt: skip


def _cell(line: StatementLine, column: str) -> object:
    if column == "at":
        return line.at[:19].replace("T", " ")
    if column == "name" and line.release_id:
        return link(line.name or line.release_id, "release", id=line.release_id)
    return getattr(line, column)


def show_reconciliation(visit: Visit) -> Page:
    """Whether what was charged was settled, and what was settled was published."""
    releases, is_whole = visit.view.settled(visit.audience.dags, _NEWEST)
    found = reconcile(releases, visit.host.published)
    # Rows of releases that a reader may not see are unknown to them, and say nothing.
    is_complete = visit.audience.dags is None and is_whole
    compared = f"{found.published} of {found.to_publish} that name a table"
    rows = [
        ("Charged", found.charged, ()),
        ("Settled", found.settled, ()),
        ("Closed without a result", found.closed, ()),
        ("Orphans: charged, neither settled nor closed", len(found.orphans), found.orphans),
        ("Published", compared if visit.host.published else "no table was named to this page", ()),
        ("Settled, with no table to publish in", len(found.no_table), found.no_table),
        ("Settled, and not published", len(found.unpublished), found.unpublished),
    ]
    if is_complete and visit.host.published:
        rows.append(("Published, and not settled here", len(found.unknown), ()))
    cells = [(what, number, _list_releases(ids)) for what, number, ids in rows]
    unknown = found.unknown if is_complete else ()
    is_good = not (found.orphans or found.unpublished or unknown)
    verdict = "Nothing is open, missing or unknown." if is_good else "Something is open, missing or unknown."  # fmt: skip
    about = "Sessions publish nothing and are left out. Published tables are compared by id only, not by value."
    if not is_whole:
        about += (
            f" Only the newest {_NEWEST} charges are compared; of all: dpflow ledger reconcile."
        )
    return Page(
        "Reconciliation",
        "reconciliation",
        (
            element("p", verdict, class_="none" if is_good else "alarm"),
            table("Releases", ("=What", "#Number", "Which"), cells),
            element("p", about),
        ),
    )


def _list_releases(ids: tuple[str, ...]) -> object:
    shown = [link(name, "release", id=name) for name in ids[:_SHOWN_IDS]]
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return element("span", *(part for name in shown for part in (name, " ")), more) if shown else ""
