"""A ledger moves without being held in memory."""

from __future__ import annotations

import contextlib
import io
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger import Ledger
from dpflow.ledger.audit import verify

SIZE = 40_000  # characters of a result


class Pipe(io.StringIO):
    """Can be read only once."""

    def seekable(self) -> bool:
        return False


@pytest.fixture
def export(tmp_path, ask) -> Path:
    """An export of 200 results."""
    ledger = Ledger(tmp_path / "one", anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for n in range(200):
        ledger.settle(ask.reserve(ledger, str(n), "0.001"), {"rows": "x" * SIZE})
    with (tmp_path / "export").open("w") as file:
        ledger.export(file)
    return tmp_path / "export"


def import_anew(folder: Path, name: str, stream: Any) -> Ledger:
    """Import under a copy of the anchor."""
    shutil.copytree(folder / "anchor", folder / f"anchor {name}")
    ledger = Ledger(folder / name, anchor=folder / f"anchor {name}", create=True)
    ledger.import_(stream, principal="owner")
    return ledger


def test_an_import_does_not_hold_its_file(export, tmp_path, ask):
    """It held all entries, results and rows at once: several times the file. A pipe cannot be read
    a second time, so it still is (negative control).
    """
    size, peaks = export.stat().st_size, {}
    for name, make_stream in {
        "file": export.open,
        "pipe": lambda: Pipe(export.read_text()),
    }.items():
        with make_stream() as stream:
            tracemalloc.start()
            try:
                ledger = import_anew(tmp_path, name, stream)
                peaks[name] = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert ledger.verify().ok
        assert ledger.find(ask.key("7")).result == {"rows": "x" * SIZE}
    assert size > 200 * SIZE
    assert peaks["file"] < size < peaks["pipe"]


def test_an_export_that_changes_while_it_is_read_is_refused(export, tmp_path):
    """It is read more than once, so somebody may put another one there after it was checked."""
    lines = export.read_text().splitlines(keepends=True)

    class Changing(io.StringIO):
        readings = 0

        def seek(self, *arguments: int) -> int:
            self.readings += 1
            if self.readings == 2:
                super().seek(0)
                self.truncate()
                self.write("".join([*lines[:5], *lines[6:]]))
            return super().seek(*arguments)

    with pytest.raises(LedgerCorrupt, match="changed while it was read"):
        import_anew(tmp_path, "changing", Changing("".join(lines)))


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_that_was_not_read_to_its_end_keeps_no_view(
    place: Any, ask: Any, fails: bool
) -> None:
    """Its transaction ends it: what is read next is what is there then, also while an error or a caller holds it."""
    ledger = place.open()
    terms: Any = {"table": None, "filter": "basic", "principal": "o"}
    for scope in ("a", "b", "c"):
        ledger.grant(scope, 1, 0, **terms)
    with contextlib.suppress(InvalidInput), ledger._database.begin_reading() as transaction:
        stream = transaction.stream(verify.ENTRIES)
        next(stream)
        if fails:
            raise InvalidInput("whoever reads fails")
    place.open().grant("d", 1, 0, **terms)
    assert "d" in {scope.scope for scope in ledger.scopes()} and ledger.verify().entries == 4
    ledger.grant("e", 1, 0, **terms)
    del stream
