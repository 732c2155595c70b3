"""A real notebook kernel without ipywidgets, in which DuckDB refuses to be told about progress bars."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from jupyter_client.manager import start_new_kernel
from page_runner import ROOT

if TYPE_CHECKING:
    from sql_world import World


@pytest.fixture
def run_cell(fresh: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Run a cell in a kernel of its own and give what it prints or shows; an error is an error here."""
    assert importlib.util.find_spec("ipywidgets") is None, "a clean kernel has no ipywidgets"
    catalogue = "ledger: ledger.sqlite\nscope: visits\ntables: {visits: visits.yml}\n"
    (fresh.folder / "dpflow.yml").write_text(catalogue)
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(fresh.folder / name))
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(fresh.folder))

    def run(code: str) -> str:
        shown: list[str] = []

        def note(message: dict[str, dict[str, object]]) -> None:
            content = message["content"]
            if "text" in content:
                shown.append(str(content["text"]))
            elif "data" in content:
                shown.append(str(content["data"]))

        reply = client.execute_interactive(code, output_hook=note, timeout=120)["content"]
        assert reply["status"] == "ok", (code, reply)
        return "".join(shown)

    try:
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_everything_works_in_a_clean_kernel(fresh: World, run_cell: Callable[[str], str]) -> None:
    """Each kind of connection: private rows, a list of files, a load, a script, what is published."""
    page = (ROOT / "docs" / "guides" / "sql.md").read_text()
    notebook = page.partition("In a notebook,")[2]
    load, ask = (block.partition("```")[0] for block in notebook.split("```text\n")[1:3])
    run_cell(load)
    run_cell("age = 20")
    shown = run_cell(ask)
    assert "UnexpectedFailure" not in shown and "n: 95 % noise interval" in shown, shown
    assert run_cell("print(len(answer.rows))").strip() == "3"

    shown = run_cell(
        ask.replace("%%dpsql answer\n-- dp: epsilon=0.5\n", "%%dpsql\n-- dp: epsilon=0.5\nEXPLAIN ")
    )
    assert "text/html" in shown and ">forecast</td>" in shown
    run_cell("import dpflow")
    refused = "dpflow.sql('SELECT * FROM visits', epsilon=1)"
    shown = run_cell(f"failed = get_ipython().run_cell({refused!r}).error_in_exec")
    assert "no-star" in shown and "Traceback" not in shown and "api.py" not in shown, shown
    assert run_cell("print(type(failed).__name__)").strip() == "SqlRefused"

    shown = run_cell(
        "import dpflow\n"
        "plan = dpflow.plan('count', 'visits.yml', name='visits', epsilon='0.5',\n"
        "    publish=dict(database='published.duckdb', table='visits'))\n"
        "dpflow.release(plan)"
    )
    assert "text/html" in shown
    assert (fresh.folder / "published.duckdb").exists()

    run_cell(
        "from pathlib import Path\n"
        "from dpflow.cli import app\n"
        "from dpflow.tables.loading.build_database import build_database\n"
        "from typer.testing import CliRunner\n"
        "Path('more.csv').write_text('person,age\\n1,2\\n')\n"
        "def command(*words):\n"
        "    done = CliRunner().invoke(app, words)\n"
        "    assert done.exit_code == 0, done.output\n"
        "command('load', 'more.csv', '--columns', 'person VARCHAR, age INTEGER')\n"
        "build_database(Path('built.duckdb'), 'CREATE TABLE t AS SELECT 1 AS x', {})\n"
        "import polars\n"
        "polars.DataFrame({'x': [1, 2]}).write_parquet('part.parquet')\n"
        "command('load', 'part.parquet', '--in-place', '--into', 'listed.files.json')"
    )
    assert (fresh.folder / "more.duckdb").exists() and (fresh.folder / "built.duckdb").exists()
    assert (fresh.folder / "listed.files.json").exists()
