"""Answers of stored releases that this process computed, for who asks the same again.

An answer follows from its question, the declarations, the catalogues of their files and the ledger. All of
them are the key, the ledger by its newest entry: whatever is released, granted, closed or imported makes
another one, and so does a file that is written. What nothing of this names is not kept: answers that read a
public file, and types of keys that a server or a list of files was asked for. Checks of who may ask come
before, as for every answer.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any

from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse.parameters import find_value_problem
from dpflow.core.contract.declaration import Table
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import catalogue_state

#: Answers that are kept, and cells and letters of the largest one: at some 300 bytes a cell at most 200 MB.
MAX_ANSWERS, MAX_CELLS, MAX_LETTERS = 256, 2_000, 100_000
#: Types of parameters that are what they are written as, and of values that nobody can change.
_PLAIN = frozenset({str, int, float, bool, type(None), Decimal, dt.date, dt.datetime})
_answers: OrderedDict[Hashable, SqlAnswer] = OrderedDict()
_lock = Lock()


def _renew_lock() -> None:
    """In a forked child, which may have inherited it taken, by a thread that it does not have."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_renew_lock)


class KeptAnswer:
    """The place of one question's answer.

    Args:
        text, options, tables, parameters, ledger, registry, public: as of
            `dpflow.analyst_sql.answer.query_plan.plan_sql`.
    """

    def __init__(
        self,
        text: str,
        options: Mapping[str, Any],
        tables: Sequence[Table | Path | str],
        parameters: Mapping[str, Any] | Sequence[Any],
        ledger: Ledger,
        registry: Registry,
        public: Mapping[str, Path] | None = None,
    ) -> None:
        self._key: Hashable | None = None
        values = _write_parameters(parameters)
        # Without a scope or tables dpflow.yml says which, and that may be edited.
        if options.get("scope") is None or values is None or type(text) is not str:
            return
        if not isinstance(tables, list | tuple) or not tables:
            return
        declared = [table for table in tables if isinstance(table, Table)]
        if len(declared) < len(tables):
            return
        # As they are now: whoever has a declaration may change what is in it.
        written = tuple(table.model_dump_json() for table in declared)
        asked = sorted((name, repr(value)) for name, value in options.items())
        files = None if public is None else tuple(sorted((n, str(f)) for n, f in public.items()))
        states = tuple(map(catalogue_state, declared))
        self._states = dict(zip((table.name for table in declared), states))
        place = str(ledger.anchor_folder), ledger.newest_entry()
        self._key = text, tuple(asked), values, written, states, files, registry, place

    def find(self) -> SqlAnswer | None:
        """The answer, or None."""
        if self._key is None:
            return None
        with _lock:
            answer = _answers.get(self._key)
            if answer is not None:
                _answers.move_to_end(self._key)
        return answer

    def keep(self, plan: SqlPlan, answer: SqlAnswer) -> None:
        """Keep an answer of this plan, if nothing was paid and the key names all that it follows from."""
        if self._key is None or plan.to_pay or plan.query.public or plan.settings.name is not None:
            return
        # A type that could not be read now may be read the next time.
        types = plan.keys.list_types()
        if any(kind is None or self._states.get(name) is None for name, kind in types):
            return
        cells = [cell.value for row in answer.values for cell in row]
        letters = sum(len(value) for value in cells if isinstance(value, str))
        # Lists and maps could be changed by whoever gets them.
        if (
            len(cells) > MAX_CELLS
            or letters > MAX_LETTERS
            or not _PLAIN.issuperset(map(type, cells))
        ):
            return
        with _lock:
            _answers[self._key] = answer
            if len(_answers) > MAX_ANSWERS:
                _answers.popitem(last=False)


def _write_parameters(parameters: Mapping[str, Any] | Sequence[Any]) -> Hashable | None:
    """Parameters with their types; None where one of them may be more than what it is written as."""
    if type(parameters) is dict:
        pairs = list(parameters.items())
    elif type(parameters) in (list, tuple):
        pairs = list(enumerate(parameters))
    else:
        return None
    if not all(type(value) in _PLAIN and not find_value_problem(value) for _, value in pairs):
        return None
    return tuple((name, type(value).__name__, repr(value)) for name, value in pairs)
