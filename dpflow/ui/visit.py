"""Who reads the pages, what these stand in, and what an address asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpflow.errors import InvalidInput
from dpflow.ledger import BudgetView, ShownRelease

_NEWEST = 2**62


class Missing(InvalidInput):
    """What an address names is not there, or not for who asks: the two read the same."""


@dataclass(frozen=True)
class Audience:
    """Who reads, and which DAGs' releases, sessions and entries they may see; None for all, and for
    those outside Airflow.
    """

    dags: Collection[str] | None = None

    def may_see(self, dag_id: str) -> bool:
        """Whether they may see what a DAG did."""
        return self.dags is None or dag_id in self.dags


class Host:
    """What the page stands in: alone it knows DAGs and runs by the ledger's names, and no place of a task.

    Args:
        published: files and tables in which releases are published.
    """

    def __init__(self, published: Sequence[tuple[Path, str]] = ()) -> None:
        self._published = published

    @property
    def published(self) -> Sequence[tuple[Path, str]]:
        """Files and tables to compare with what was settled."""
        return self._published

    def name_dags(self, dag_id: str) -> Collection[str]:
        """What the ledger calls a DAG."""
        return [dag_id]

    def name_runs(self, dag_id: str, run_id: str) -> list[tuple[str, str]]:
        """The run identities of a DAG's run, each with the task that it is of, "" for all of them."""
        return [(run_id, "")]

    def find_task_address(self, release: ShownRelease) -> str:
        """Where the task of a release is shown, or a session's DAG; "" for nowhere."""
        return ""


@dataclass(frozen=True)
class Page:
    """What a page says: its title, what of the menu it belongs to, and its parts."""

    title: str
    menu: str
    parts: tuple[object, ...]


@dataclass(frozen=True)
class Visit:
    """One request for a page.

    Attributes:
        query: of the address.
        host: what the page stands in.
    """

    view: BudgetView
    audience: Audience
    query: Mapping[str, str]
    host: Host

    def number(self, name: str) -> int:
        """A number of the query; the largest if it has none. Raises `InvalidInput`."""
        given = self.query.get(name, "")
        if not given:
            return _NEWEST
        if not given.isdecimal() or len(given) > 18:
            raise InvalidInput(f"{name} is no number of an entry; follow the links of the page")
        return int(given)
