"""What the README shows is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from dpflow.demo.job import DAILY

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The declared flights, with a few rows, where the README expects them."""
    shutil.copytree(ROOT / "dags" / "tables", tmp_path / "demo" / "dags" / "tables")
    (tmp_path / "demo" / "private").mkdir(parents=True)
    with duckdb.connect(str(tmp_path / "demo" / "private" / "flights.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE flights AS SELECT 'N' || i AS tailnum, DATE '2013-01-01' AS day, 'AA' AS carrier, 'ORD' AS dest, "
            "5 AS arr_delay, 120 AS air_time FROM range(50) t(i)"
        )
    return tmp_path


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_examples_run_in_their_order(clone: Path) -> None:
    """The Python example releases sixteen carriers; the file on the command line is the same release, and nothing is
    paid twice.
    """
    (clone / "release.yml").write_text(block("yaml"))
    commands = [
        shlex.split(line) for line in re.findall(r"^    dpflow (.*)$", README, re.MULTILINE)
    ]
    assert len(commands) == 4
    dpflow = str(Path(sys.executable).with_name("dpflow"))
    outputs = []
    for words in ([sys.executable, "-c", block("python")], *([dpflow, *each] for each in commands)):
        done = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert len([line for line in outputs[0].splitlines() if " between " in line]) == 16
    assert ["replayed" in text for text in outputs] == [False, False, False, True, False]


def test_every_make_target_and_file_named_exists() -> None:
    """No line of the README points at nothing."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", README)) - {"it"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:dpflow|docs|dags|plugins)/[\w/.]*)`|\]\(([\w/.]+)\)", README):
        assert (ROOT / "".join(path)).exists(), path


def test_the_demos_budget_is_what_the_readme_says() -> None:
    """The claim about an aircraft's day is the grant that the demo makes."""
    epsilon, delta = DAILY
    said = " ".join(README.split())
    # Without a delta nothing is said of one.
    assert delta == "0" and f"at epsilon {epsilon} a day. " in said
    assert f"adds up to epsilon {epsilon}d. " in said
