"""Private rows on disk while something works on them: beside the private file, for this user alone, and
gone after a kill as soon as somebody works there again.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dpflow
from dpflow.core.contract.requests import GroupedSums
from dpflow.tables import CsvSource, build_database, load_rows
from dpflow.tables.access import spill
from dpflow.tables.access.spill import PREFIX, spill_folder

pytestmark = pytest.mark.own_session

COUNT = GroupedSums(None, None, 1, 100)
#: A query of texts that do not fit into memory, which is stopped by a kill alone.
SPILLED = """
import sys
from pathlib import Path
from dpflow.tables.access import isolated_database
with isolated_database.open_file(Path(sys.argv[1]), "a table") as connection:
    connection.execute("CREATE TEMP TABLE kept AS SELECT repeat('secret' || i, 40) AS t FROM range(4000000) r(i)")
    connection.fetch_rows("SELECT * FROM kept ORDER BY t")
"""


def folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.name.startswith(PREFIX))


def test_a_kill_leaves_texts_only_until_the_next_query(make: Any, tmp_path: Path) -> None:
    """They lie beside the private file, where only this user can enter."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 1 AS v")
    process = subprocess.Popen(
        [sys.executable, "-c", SPILLED, str(private.declaration.database)],
        env=os.environ | {"DPFLOW_MEMORY_LIMIT": "100MB"},
    )
    end = time.monotonic() + 200
    while not any(file.stat().st_size for one in folders(tmp_path) for file in one.glob("rows/*")):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    (folder,) = folders(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    # A process that works is left alone.
    assert private.answer(COUNT, ()).rows.tolist() == [1]
    assert folders(tmp_path) == [folder]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(folder.glob("rows/*"))
    assert private.answer(COUNT, ()).rows.tolist() == [1]
    assert folders(tmp_path) == []


def test_what_cannot_be_written_to_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the data's disk is mounted to be read: then the system's folder is used, by the same rules."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(spill.os, "access", lambda place, mode: False)
    with spill_folder(tmp_path) as folder:
        assert folder.parent.parent == scratch
        assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700] * 2
    assert folders(scratch) == folders(tmp_path) == []


def test_links_and_files_of_such_names_are_left_alone(tmp_path: Path) -> None:
    """Whoever can write there could point a link at other folders."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("kept")
    (tmp_path / f"{PREFIX}link").symlink_to(other)
    (tmp_path / f"{PREFIX}file").write_text("kept")
    spill.remove_abandoned(tmp_path)
    assert (other / "file").exists() and len(folders(tmp_path)) == 2


def test_a_folder_that_is_taken_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock another process may sweep."""
    made: list[str] = []

    def make_and_sweep(**words: Any) -> str:
        made.append(original(**words))
        if len(made) == 1:
            spill.remove_abandoned(tmp_path)
        return made[-1]

    original = tempfile.mkdtemp
    monkeypatch.setattr(spill.tempfile, "mkdtemp", make_and_sweep)
    with spill_folder(tmp_path) as folder:
        assert [str(folder.parent)] == made[1:] and folder.is_dir()


def test_a_folder_that_was_made_again_is_not_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner ends and begins between another's look at its name and that one's lock."""

    def open_slowly(path: str) -> int:
        former = original(path)
        monkeypatch.undo()
        first.close()
        second.enter_context(spill_folder(again=folder))
        return former

    original = spill._open_folder
    with ExitStack() as first, ExitStack() as second:
        folder = first.enter_context(spill_folder(tmp_path))
        monkeypatch.setattr(spill, "_open_folder", open_slowly)
        spill.remove_abandoned(tmp_path)
        assert folder.is_dir()
        # Nor is it one that another process may take.
        spill.remove_abandoned(tmp_path)
        assert folder.is_dir()
    assert folders(tmp_path) == []


@pytest.fixture
def doors(make: Any, tmp_path: Path) -> dict[str, Callable[[], Any]]:
    """What works on rows of private files, by name; each in the folder of the test."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 1 AS v")
    (tmp_path / "rows.csv").write_text("u,v\n1,2\n")

    def source() -> CsvSource:
        return CsvSource([tmp_path / "rows.csv"], {"u": "INTEGER", "v": "INTEGER"})

    return {
        "release": lambda: private.answer(COUNT, ()),
        "load": lambda: load_rows(source(), tmp_path / "loaded.duckdb", "data"),
        "build": lambda: build_database(
            tmp_path / "built.duckdb", "CREATE TABLE data AS FROM given", {"given": source()}
        ),
    }


@pytest.mark.parametrize("door", ["release", "load", "build"])
def test_every_door_spills_beside_the_private_file(
    doors: dict[str, Callable[[], Any]], door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nothing."""
    places: list[Any] = []
    original = tempfile.mkdtemp

    def note(**words: Any) -> str:
        places.append(words["dir"])
        return original(**words)

    monkeypatch.setattr(tempfile, "mkdtemp", note)
    doors[door]()
    assert set(places) == {tmp_path} and folders(tmp_path) == []


def test_nothing_else_makes_temporary_files() -> None:
    """A plan's Airflow home and a command's output have no rows of a table, but for rejects, which an owner
    asks for in a file of theirs. Nor have drafts of checkpoints, candidates that were uploaded, and models on their way from
    or to a server of MLflow.
    """
    root = Path(dpflow.__file__).parent
    users = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if "tempfile" in names:
                users.add(file.relative_to(root).as_posix())
    assert users == {
        "tables/access/spill.py",
        "cli/console.py",
        "output_files.py",
        "ledger/audit/witness.py",
        "server/gates.py",
        "engine/sessions/candidate.py",
        "engine/sessions/mlflow_models.py",
        "engine/sessions/model_promotion.py",
    }
