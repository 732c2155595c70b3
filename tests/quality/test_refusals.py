"""What cannot be checked says so, and nothing but one bit leaves."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, PlanRefused, TableBusy, TableUnreadable
from dpflow.quality import check, validate
from dpflow.tables.access import contract_rows

Maker = Callable[..., Table]
SECRET = "N5EKRET"
LEAKY = f"SELECT '{SECRET}' || i AS tailnum, DATE '2013-01-01' AS day, 7654321.0 + i AS delay, '{SECRET}' AS carrier FROM range(20) t(i)"
HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def test_missing_file(make: Maker, tmp_path: Path) -> None:
    """A file that is not there is named, and is not created."""
    table = make().model_copy(update={"database": tmp_path / "none.duckdb"})
    with pytest.raises(
        TableUnreadable, match=r"table 'flights': there is no file .*none\.duckdb; correct"
    ):
        check(table)
    assert not table.database.exists()


def test_text_file(make: Maker, tmp_path: Path) -> None:
    """A file that is no DuckDB file is refused without quoting it."""
    path = tmp_path / "text.duckdb"
    path.write_text(SECRET * 1000)
    with pytest.raises(
        TableUnreadable, match="cannot be read .*give whole files .* of DuckDB one of this version"
    ) as caught:
        check(make().model_copy(update={"database": path}))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_missing_relation(make: Maker) -> None:
    """A relation that the file lacks is named."""
    with pytest.raises(
        TableUnreadable, match="no relation in the file of table 'flights' called 'fligths'"
    ):
        check(make(relation="fligths"))


def test_busy_in_another_process(make: Maker) -> None:
    """While another process writes the file the error is retryable, and afterwards the same call
    succeeds.
    """
    table = make()
    writer = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(table.database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "held\n"
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(TableBusy, match="is being written by another process") as caught,
        ):
            patch.setattr("dpflow.tables.access.isolated_database.MAX_WAIT", 0.2)
            check(table)
        assert caught.value.retryable and "PID" not in "".join(
            traceback.format_exception(caught.value)
        )
    finally:
        writer.communicate("")
    assert check(table)


def test_busy_in_this_process(make: Maker) -> None:
    """A writer in this process is busy, too, and nothing that a check opened is left behind to
    block the next one.
    """
    table = make()
    with duckdb.connect(str(table.database)), pytest.raises(TableBusy, match="is being written"):
        check(table)
    assert check(table)
    duckdb.connect(str(table.database)).close()


def test_readers_are_no_obstacle(make: Maker) -> None:
    """A table that is attached read-only elsewhere in this process can be checked."""
    table = make()
    with duckdb.connect() as reader:
        reader.execute(f"ATTACH '{table.database}' AS private (READ_ONLY)")
        assert check(table)


def test_blocks_need_a_block_column(make: Maker) -> None:
    """Blocks of a table without a block column are refused before the file is opened."""
    with pytest.raises(InvalidInput, match="declares no block column"):
        check(make(block=None), ["2013-01-01"])


def test_a_holdout_has_no_contract(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit beside the gate's answers would be an output that nobody paid for; nothing is read."""
    monkeypatch.setattr(validate, "_check_declaration", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(PlanRefused, match="is a holdout, readable only through a gate"):
        check(make(holdout=True))


def test_a_path_means_itself(make: Maker, tmp_path: Path) -> None:
    """Signs that mean something in a URL or a shell may be in the file's path."""
    table = make()
    odd = tmp_path / "a b=$HOME :x%20#.duckdb"
    table.database.rename(odd)
    assert check(table.model_copy(update={"database": odd}))


def test_only_one_bit_leaves(
    make: Maker, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A violated contract returns False and writes nothing at all: no stream, no record, no file."""
    table = make(LEAKY)
    caplog.set_level(logging.DEBUG)
    before = sorted(tmp_path.iterdir())
    assert check(table) is False
    said = capfd.readouterr()
    assert said.out == said.err == ""
    assert SECRET not in caplog.text and "7654321" not in caplog.text
    assert not [record for record in caplog.records if record.name.startswith("great_expectations")]
    assert sorted(tmp_path.iterdir()) == before


def test_an_error_inside_is_scrubbed(
    make: Maker,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that quotes a value in its error leaves none in the message, the chain, a log or a
    stream.
    """
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(
        contract_rows,
        "contract_query",
        lambda *_: "SELECT CAST(tailnum AS INTEGER) AS tailnum FROM private.flights",
    )
    table = make(LEAKY, block=None, columns={})
    with pytest.raises(TableUnreadable, match="cannot be checked") as caught:
        check(table)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    said = capfd.readouterr()
    assert SECRET not in "".join(
        [*traceback.format_exception(caught.value), said.out, said.err, caplog.text]
    )


def test_the_shim_is_still_needed(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shim Great Expectations cannot read DuckDB; once this fails, delete `_install_shim`."""
    table = make()
    assert check(table)
    monkeypatch.setattr(validate, "NEEDS_SHIM", ("no version",))
    with pytest.raises(TableUnreadable, match="cannot be checked"):
        check(table)


def test_import_is_cheap_and_a_check_leaves_home_alone(make: Maker, tmp_path: Path) -> None:
    """Importing the package imports no Great Expectations, and a check writes nothing under HOME or
    the current directory.
    """
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import sys, dpflow.quality as q, pathlib; from dpflow.core.contract.declaration import Table\n"
        "assert not {'great_expectations', 'pandas', 'duckdb'} & set(sys.modules)\n"
        "print(q.check(Table.model_validate_json(sys.argv[1])))"
    )
    declared = make(LEAKY).model_dump_json()
    environment = {k: v for k, v in os.environ.items() if k != "GX_ANALYTICS_ENABLED"} | {
        "HOME": str(home)
    }
    ran = subprocess.run(
        [sys.executable, "-c", code, declared],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "False\n" and SECRET not in ran.stderr
    assert list(home.iterdir()) == []
