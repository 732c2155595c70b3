"""`dpflow new-mechanism` writes a package whose tests pass, and `dpflow audit FILE.py` looks at one that is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_runner import run_in
from typer.testing import CliRunner

from dpflow.cli.commands import app
from dpflow.engine.releases.certificates import digest_code
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.registry import Registry

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-mechanism-plugin.md"
BROKEN = """
from dpflow.mechanisms.sum import Sum
from dpflow.plugin import Pure, hookimpl
from tests.testing.corpus.broken_sensitivities import WidthForPeak

class Mine(WidthForPeak):
    \"\"\"Takes the width of the bounds for their larger end.\"\"\"
    name = "mine"

@hookimpl
def dpflow_register_mechanisms():
    return [Mine()]
"""


def test_it_writes_what_the_page_shows(tmp_path: Path) -> None:
    """The page runs the tests of the package; here the code that it shows is that of the package."""
    status, output, errors = run_in(tmp_path, "new-mechanism", "noisy_rows")
    assert status == 0 and "dpflow audit dpflow_noisy_rows.py" in output, errors
    written = (tmp_path / "noisy_rows" / "dpflow_noisy_rows.py").read_text()
    shown = PAGE.read_text().split("```python\n")[1].split("```")[0]
    assert shown.strip() in written
    workflow = (tmp_path / "noisy_rows" / ".github" / "workflows" / "tests.yml").read_text()
    assert "${{ matrix.python }}" in workflow and "dpflow audit noisy_rows" in workflow
    project = (tmp_path / "noisy_rows" / "pyproject.toml").read_text()
    assert 'noisy_rows = "dpflow_noisy_rows"' in project and "$" not in project


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("Noisy-Rows",), "cannot name a mechanism"),
        (("class",), "cannot name a mechanism"),
        (("count",), "is the name of something that dpflow.mechanisms.count brings"),
        (("mine", "--folder", "taken"), "is there already"),
        (("mine", "--folder", "taken/file/x"), "cannot be made"),
    ],
)
def test_it_writes_over_nothing(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    status, _, errors = run_in(tmp_path, "new-mechanism", *words)
    assert status != 0 and says in errors
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "taken"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no file mine.py"),
        ("raise ValueError('x')", "cannot be imported: ValueError: x"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("", "registers no mechanism"),
    ],
)
def test_a_file_without_a_mechanism_is_said_to_be_one(
    tmp_path: Path, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    status, _, errors = run_in(tmp_path, "audit", "mine.py")
    assert status != 0 and says in errors


def test_a_broken_file_is_refuted_before_it_is_a_package(tmp_path: Path) -> None:
    """With the declaration and the neighbours that show it, and exit code 1."""
    (tmp_path / "mine.py").write_text(BROKEN)
    status, output, errors = run_in(tmp_path, "audit", "mine.py", "--seconds", "10")
    assert status == 1 and "refuted" in output
    assert "mine is refuted on a generated table" in errors and "Neighbouring answers" in errors


PLUGINS = {"dpflow.yml": "plugins: tried\n", "tried/mine.py": BROKEN}


def test_files_of_a_folder_are_tried_and_never_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a dpflow.yml that names the folder their mechanisms are there, also after an edit; elsewhere they are not.
    No certificate is made of one, whatever its audit would say.
    """
    (tmp_path / "tried").mkdir()
    for name, text in PLUGINS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    registry = Registry.load()
    assert registry is Registry.load() and "mine" in registry.mechanisms
    assert registry.origin["mine"] == str(tmp_path / "tried" / "mine.py")
    with pytest.raises(
        PlanRefused, match="mine.py is tried as a file, and no certificate covers it"
    ):
        digest_code(registry.find_mechanism("mine"))
    done = CliRunner().invoke(app, ["certify", "mine", "--out", "c.json"])
    assert done.exit_code != 0 and not (tmp_path / "c.json").exists()
    (tmp_path / "tried" / "mine.py").write_text(BROKEN.replace('"mine"', '"yours"'))
    assert "yours" in Registry.load().mechanisms and "mine" not in Registry.load().mechanisms
    monkeypatch.chdir(tmp_path.parent)
    assert "yours" not in Registry.load().mechanisms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('x')", "mine.py cannot be imported: ValueError: x"),
        (None, "which is no folder; make it, or take plugins out"),
    ],
)
def test_a_folder_that_cannot_be_tried_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, says: str
) -> None:
    (tmp_path / "dpflow.yml").write_text("plugins: tried\n")
    if text is not None:
        (tmp_path / "tried").mkdir()
        (tmp_path / "tried" / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=says):
        Registry.load()
