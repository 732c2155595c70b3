"""No mechanism's draw fails at a corner of what can be declared, and no row decides the class of its outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corner_mechanisms import audit_mechanism, list_mechanisms
from corner_tables import DuckDBStore, ParquetStore, all_corners

from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import NONE, Result
from dpflow.tables.access import arithmetic
from dpflow.tables.backends.duckdb_backend.bounding import sql_bounding

#: A warning goes to a stream, and a row would have caused it.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

MECHANISMS = list_mechanisms()
CORNERS = all_corners()
WHOLE = [c for c in CORNERS if c.kind in ("BIGINT", "UBIGINT")]
FAR = [c for c in WHOLE if c.high - c.low == 1000]
#: For mechanisms of small domains, with the widest first.
NARROW = [c for c in WHOLE if c.high - c.low == 1] + [c for c in WHOLE if c.low == -1]
STORES: dict[str, Any] = {"table": DuckDBStore, "files": ParquetStore}


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_draw_at_one_end_never_fails(name: str, tmp_path: Path) -> None:
    """At one end of a 64-bit type for each mechanism: the first where it plans and a request is accepted. Every third
    reads a list of files.
    """
    number = sorted(MECHANISMS).index(name)
    store = STORES["files" if number % 3 == 0 else "table"](tmp_path)
    first = number % len(FAR)
    for part, corner in enumerate((FAR[first], FAR[first - 1], *NARROW, *FAR)):
        findings = audit_mechanism(MECHANISMS[name], corner, store, part)
        assert findings.problems == []
        if findings.answered:
            break
    else:
        raise AssertionError(f"{name} plans at none of these corners")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name in sorted(MECHANISMS) for number in range(len(CORNERS))],
    ids=lambda value: CORNERS[value].name if isinstance(value, int) else value,
)
def test_no_draw_fails_at_a_corner(name: str, number: int, tmp_path: Path) -> None:
    """Every mechanism at every corner, 1.7 CPU hours; each time with the mechanism's next example and from the
    other store.
    """
    part = number + sorted(MECHANISMS).index(name)
    store = list(STORES.values())[part // 4 % 2]
    findings = audit_mechanism(MECHANISMS[name], CORNERS[number], store(tmp_path), part)
    assert findings.problems == []


def test_an_overflow_is_seen_in_outcomes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no type is widened, one row turns the median into none; the class tells, not the error."""
    forever = arithmetic.IntegerType("BIGINT", -(2**200), 2**200)
    monkeypatch.setattr(arithmetic.DUCKDB.__class__, "types", (forever, arithmetic.HUGEINT))
    monkeypatch.setattr(sql_bounding, "BITS", replace(sql_bounding.BITS, type=forever))
    corner = next(c for c in FAR if c.kind == "UBIGINT" and c.low > 0)
    found = audit_mechanism(MECHANISMS["median"], corner, DuckDBStore(tmp_path), 1)
    assert any("'none')" in problem and "of 48 draws" in problem for problem in found.problems)


def test_a_none_that_a_row_decides_is_seen(tmp_path: Path) -> None:
    """A mechanism that answers none where there is a row, without an error, is refuted."""

    class Telling(type(MECHANISMS["count"])):  # type: ignore[misc]
        def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
            return NONE if int(sum(answer.rows)) else super().draw(params, table, answer, source)

    telling: Mechanism[Any] = Telling()
    found = audit_mechanism(telling, FAR[0], DuckDBStore(tmp_path), 0)
    assert found.problems and all("draws of" in problem for problem in found.problems)
