"""Differential privacy as a workflow primitive. The public names, by what they are for:

- Declare: `load_table` reads a `Table` from its file, which says whom to protect. `load_rows` fills a
  private file from a `CsvSource` (of a `CsvFormat`), `JsonSource`, `ParquetSource` or `ObjectSource`.
  `open_rows` reads tables whose owner declared them open.
- Budget: `Ledger` grants, charges and remembers. A grant gives a `Scope`, or a `GrantProposal` that waits
  for a second principal; `Remaining` is what is left. `BudgetView` reads a ledger that it cannot change.
- Plan: `plan` gives a `Plan` with its cost and error, without reading a row; `Publish` is where the
  result goes.
- Release: `release` charges, draws and gives a `Receipt` with the `Result` and its `Row` objects. A
  `RunIdentity` makes a retry the same release.
- Ask SQL: `sql` gives a `SqlAnswer`; `plan_sql` gives the `SqlPlan` that EXPLAIN prints.
- Ask in a session: `open_session` opens a `Session`, and `open_predictions` a `PredictionSession`.
- Connect: `connect` gives a `Client` of a service, or of this machine, with one interface; its `PlanView` is
  what of a plan is public.
- Gate: `ModelGate` asks an open session whether a model's score holds on fresh data.
- Errors: every class derives from `DpflowError`. `InvalidInput` is about what was written, `LedgerError`
  about budgets and `TableError` about tables.
- Extend: `hookimpl` marks a plugin's hooks; a `Registry` holds what plugins register. Authors build on
  `dpflow.core` and test with `dpflow.testing`.

Operators are in `dpflow.airflow`, data contracts in `dpflow.quality`, the notebook cell in
`dpflow.notebook`. A name is imported at first use, so that importing dpflow stays quick. Whatever is not
named here is internal, the reader of private rows above all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.analyst_sql.answer.sql_answer import SqlAnswer as SqlAnswer
    from dpflow.analyst_sql.answer.sql_plan import SqlPlan as SqlPlan
    from dpflow.api import open_predictions as open_predictions
    from dpflow.api import open_session as open_session
    from dpflow.api import plan as plan
    from dpflow.api import plan_sql as plan_sql
    from dpflow.api import release as release
    from dpflow.api import sql as sql
    from dpflow.client.interface import Client as Client
    from dpflow.client.interface import PlanView as PlanView
    from dpflow.client.open_client import connect as connect
    from dpflow.core.contract.results import Result as Result
    from dpflow.core.contract.results import Row as Row
    from dpflow.engine.prediction.session import PredictionSession as PredictionSession
    from dpflow.engine.releases.plan import Plan as Plan
    from dpflow.engine.releases.receipt import Receipt as Receipt
    from dpflow.engine.releases.request import Publish as Publish
    from dpflow.engine.releases.run_identity import RunIdentity as RunIdentity
    from dpflow.engine.sessions.model_gate import ModelGate as ModelGate
    from dpflow.engine.sessions.session import Session as Session
    from dpflow.errors import AccessRefused as AccessRefused
    from dpflow.errors import BudgetExceeded as BudgetExceeded
    from dpflow.errors import ContractViolated as ContractViolated
    from dpflow.errors import DatasetLocked as DatasetLocked
    from dpflow.errors import DpflowError as DpflowError
    from dpflow.errors import GrantConflict as GrantConflict
    from dpflow.errors import InvalidAmount as InvalidAmount
    from dpflow.errors import InvalidDeclaration as InvalidDeclaration
    from dpflow.errors import InvalidInput as InvalidInput
    from dpflow.errors import LedgerCorrupt as LedgerCorrupt
    from dpflow.errors import LedgerError as LedgerError
    from dpflow.errors import LedgerUnavailable as LedgerUnavailable
    from dpflow.errors import MissingExtra as MissingExtra
    from dpflow.errors import NotPublished as NotPublished
    from dpflow.errors import NotSealed as NotSealed
    from dpflow.errors import NotSettled as NotSettled
    from dpflow.errors import PlanRefused as PlanRefused
    from dpflow.errors import PluginError as PluginError
    from dpflow.errors import QueryFailed as QueryFailed
    from dpflow.errors import QueryStopped as QueryStopped
    from dpflow.errors import RetryConflict as RetryConflict
    from dpflow.errors import RuleBroken as RuleBroken
    from dpflow.errors import ServiceUnavailable as ServiceUnavailable
    from dpflow.errors import SessionClosed as SessionClosed
    from dpflow.errors import SignatureRequired as SignatureRequired
    from dpflow.errors import SqlRefused as SqlRefused
    from dpflow.errors import TableBusy as TableBusy
    from dpflow.errors import TableError as TableError
    from dpflow.errors import TableInterrupted as TableInterrupted
    from dpflow.errors import TableUnreadable as TableUnreadable
    from dpflow.errors import UnexpectedFailure as UnexpectedFailure
    from dpflow.errors import UnfitColumn as UnfitColumn
    from dpflow.errors import UnknownName as UnknownName
    from dpflow.errors import WitnessBehind as WitnessBehind
    from dpflow.hookspecs import hookimpl as hookimpl
    from dpflow.ledger import BudgetView as BudgetView
    from dpflow.ledger import GrantProposal as GrantProposal
    from dpflow.ledger import Ledger as Ledger
    from dpflow.ledger import Remaining as Remaining
    from dpflow.ledger import Scope as Scope
    from dpflow.registry import Registry as Registry
    from dpflow.tables import CsvFormat as CsvFormat
    from dpflow.tables import CsvSource as CsvSource
    from dpflow.tables import JsonSource as JsonSource
    from dpflow.tables import ObjectSource as ObjectSource
    from dpflow.tables import ParquetSource as ParquetSource
    from dpflow.tables import Table as Table
    from dpflow.tables import load_rows as load_rows
    from dpflow.tables import open_rows as open_rows
    from dpflow.tables.access.declarations import load_table as load_table

_MODULES = {
    # declare
    "Table": "dpflow.tables",
    "load_table": "dpflow.tables.access.declarations",
    "load_rows": "dpflow.tables",
    "CsvSource": "dpflow.tables",
    "CsvFormat": "dpflow.tables",
    "JsonSource": "dpflow.tables",
    "ObjectSource": "dpflow.tables",
    "ParquetSource": "dpflow.tables",
    "open_rows": "dpflow.tables",
    # budget
    "Ledger": "dpflow.ledger",
    "Scope": "dpflow.ledger",
    "GrantProposal": "dpflow.ledger",
    "Remaining": "dpflow.ledger",
    "BudgetView": "dpflow.ledger",
    # plan
    "plan": "dpflow.api",
    "Plan": "dpflow.engine.releases.plan",
    "Publish": "dpflow.engine.releases.request",
    # release
    "release": "dpflow.api",
    "RunIdentity": "dpflow.engine.releases.run_identity",
    "Receipt": "dpflow.engine.releases.receipt",
    "Result": "dpflow.core.contract.results",
    "Row": "dpflow.core.contract.results",
    # ask SQL
    "sql": "dpflow.api",
    "SqlAnswer": "dpflow.analyst_sql.answer.sql_answer",
    "plan_sql": "dpflow.api",
    "SqlPlan": "dpflow.analyst_sql.answer.sql_plan",
    # connect
    "connect": "dpflow.client.open_client",
    "Client": "dpflow.client.interface",
    "PlanView": "dpflow.client.interface",
    # ask in a session, gate
    "open_session": "dpflow.api",
    "Session": "dpflow.engine.sessions.session",
    "ModelGate": "dpflow.engine.sessions.model_gate",
    "open_predictions": "dpflow.api",
    "PredictionSession": "dpflow.engine.prediction.session",
    # extend
    "hookimpl": "dpflow.hookspecs",
    "Registry": "dpflow.registry",
    # errors
    "DpflowError": "dpflow.errors",
    "InvalidInput": "dpflow.errors",
    "InvalidAmount": "dpflow.errors",
    "InvalidDeclaration": "dpflow.errors",
    "UnknownName": "dpflow.errors",
    "PlanRefused": "dpflow.errors",
    "RuleBroken": "dpflow.errors",
    "SqlRefused": "dpflow.errors",
    "LedgerError": "dpflow.errors",
    "BudgetExceeded": "dpflow.errors",
    "GrantConflict": "dpflow.errors",
    "RetryConflict": "dpflow.errors",
    "SignatureRequired": "dpflow.errors",
    "SessionClosed": "dpflow.errors",
    "DatasetLocked": "dpflow.errors",
    "NotSettled": "dpflow.errors",
    "LedgerCorrupt": "dpflow.errors",
    "LedgerUnavailable": "dpflow.errors",
    "TableError": "dpflow.errors",
    "TableUnreadable": "dpflow.errors",
    "UnfitColumn": "dpflow.errors",
    "TableBusy": "dpflow.errors",
    "TableInterrupted": "dpflow.errors",
    "QueryStopped": "dpflow.errors",
    "QueryFailed": "dpflow.errors",
    "NotSealed": "dpflow.errors",
    "NotPublished": "dpflow.errors",
    "ContractViolated": "dpflow.errors",
    "AccessRefused": "dpflow.errors",
    "ServiceUnavailable": "dpflow.errors",
    "UnexpectedFailure": "dpflow.errors",
    "WitnessBehind": "dpflow.errors",
    "MissingExtra": "dpflow.errors",
    "PluginError": "dpflow.errors",
}
__all__ = list(_MODULES)
_import_name, __dir__ = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    from dpflow.extras import require_local

    with require_local(f"dpflow.{name}"):
        return _import_name(name)


__version__ = "0.1.0"
