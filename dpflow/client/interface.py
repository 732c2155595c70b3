"""What can be asked of tables and budgets, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpflow.engine.releases.result_table import write_html

if TYPE_CHECKING:
    from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
    from dpflow.engine.releases.receipt import Receipt
    from dpflow.tables.public.query_process import RowTable

Parameters = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class PlanView:
    """A planned release, as far as it is public. Give it to `Client.release`.

    Attributes:
        request: the fields that it was planned from.
        about: privacy cost, error, what is protected, and ``forecast``: whether the ledger would accept it.
    """

    request: Mapping[str, Any]
    about: Mapping[str, Any] = field(repr=False)

    @property
    def epsilon(self) -> str:
        """The privacy cost, as exact text; ``delta`` likewise."""
        return str(self.about["epsilon"])

    @property
    def delta(self) -> str:
        """The privacy cost, as exact text; "0" for pure guarantees."""
        return str(self.about["delta"])

    @property
    def forecast(self) -> str:
        """Whether the ledger would accept it now, in a sentence."""
        return str(self.about["forecast"])

    def _repr_html_(self) -> str:
        lines = [(name, str(value)) for name, value in self.about.items() if value]
        return write_html(f"plan {self.request['name']}", (), lines)


class Client(ABC):
    """Tables, plans, releases, SQL, budgets and history: of this machine, or of a service.

    Every method raises the errors of dpflow. Those of a service have the class and text that they have
    there, and `AccessRefused` or `ServiceUnavailable` where it is the service that says no.
    """

    @abstractmethod
    def tables(self) -> list[dict[str, Any]]:
        """The tables that may be asked about, one mapping each: ``table``, ``protects``, ``scopes``."""

    @abstractmethod
    def describe(self, table: str) -> dict[str, Any]:
        """One table: what it protects, ``columns`` with bounds and keys, ``budgets`` that can pay."""

    def plan(
        self,
        mechanism: str,
        table: str,
        *,
        name: str,
        scope: str | None = None,
        blocks: Sequence[str] | None = None,
        where: str | None = None,
        bounds: Sequence[str] | None = None,
        contribution_bounds: Mapping[str, int] | None = None,
        revision: int = 1,
        **params: Any,
    ) -> PlanView:
        """Plan a release and compute its privacy cost; reads no row and charges nothing.

        Args: as of `dpflow.plan`, the table by its name.
        """
        fields = {
            "name": name,
            "mechanism": mechanism,
            "table": table,
            "scope": scope,
            "blocks": [blocks] if isinstance(blocks, str) else blocks,
            "where": where,
            "bounds": bounds,
            "contribution_bounds": contribution_bounds,
            "revision": revision,
            "params": params,
        }
        return self.plan_fields({k: v for k, v in fields.items() if v is not None})

    @abstractmethod
    def plan_fields(self, fields: Mapping[str, Any]) -> PlanView:
        """Plan a release from the fields of a release file."""

    @abstractmethod
    def release(self, plan: PlanView) -> Receipt:
        """Charge and draw a planned release, once for its name and revision."""

    @abstractmethod
    def ask(
        self, fields: Mapping[str, Any], queries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Ask a session in order. It is charged whole, once for its name and revision; the same question again is free.

        Args:
            fields: those of a release file whose mechanism is a session.

        Returns: ``session``, its id; ``answers``, one for each question; what is ``left``; and its cost in ``about``.
        """

    @abstractmethod
    def sql(self, text: str, *, parameters: Parameters = (), **options: Any) -> SqlAnswer:
        """Answer a SELECT, as `dpflow.sql`; ``options`` are those of `dpflow.sql`."""

    @abstractmethod
    def explain(self, text: str, *, parameters: Parameters = (), **options: Any) -> dict[str, Any]:
        """How a query would be answered, what it would cost and how exact it would be."""

    @abstractmethod
    def published(self) -> list[str]:
        """Names of published results, which are free to read."""

    @abstractmethod
    def read_published(self, name: str) -> RowTable:
        """All rows of a published result. Raises `UnknownName` for one that may not be read or is not there."""

    @abstractmethod
    def remaining(self, scope: str | None = None) -> list[dict[str, Any]]:
        """What is left, one mapping per budget: of one scope, or of all that may be seen."""

    @abstractmethod
    def history(
        self,
        scope: str | None = None,
        *,
        since: str | None = None,
        principal: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """The newest entries of the ledger's history, the oldest of them first.

        Args:
            scope: only this scope and the quotas below it.
            since: an entry's number, or a date or time.
            principal: only what this principal did.
            limit: how many.
        """
