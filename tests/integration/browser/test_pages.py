"""The pages a person sees, in a real browser: run by `make browser`, which needs Debian's chromium
and npm.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpflow.demo import job, ui

pytestmark = pytest.mark.browser

SCRIPT = """
import { createRequire } from 'node:module';
const { chromium } = createRequire(process.argv[2] + '/')('playwright-core');
const [url, user, password, picture, colorScheme] = process.argv.slice(3);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu',
  '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'] });
const page = await browser.newPage({ viewport: { width: 1200, height: 900 }, colorScheme: colorScheme || 'light' });
const failures = [];
page.on('requestfailed', request => failures.push(request.url()));
await page.goto(url);
if (user) {
  await page.fill('input[name=username]', user);
  await page.fill('input[name=password]', password);
  await page.click('button[type=submit]');
  await page.waitForURL('**/');
  await page.goto(url + '/dags');
  await page.waitForSelector('text=flights_daily');
}
await page.screenshot({ path: picture, fullPage: true });
const overflow = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
// How bright the page and its texts are, from 0 to 255: those of tables and those drawn in plots.
const bright = await page.evaluate(() => {
  const mean = color => color.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part) / 3, 0);
  const style = (selector, property) => [...document.querySelectorAll(selector)].map(one => mean(getComputedStyle(one)[property]));
  return { page: mean(getComputedStyle(document.body).backgroundColor), texts: style('td:not(.yes):not(.no), p', 'color'),
    drawn: style('svg text', 'fill') };
});
console.log(JSON.stringify({ title: await page.title(), figures: await page.locator('svg').count(), overflow, failures, bright }));
await browser.close();
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished quick demo."""
    folder = tmp_path_factory.mktemp("demo")
    job.run_demo(folder, 2, Console())
    return folder


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with playwright-core and the script."""
    place = tmp_path_factory.mktemp("tools")
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(place), "playwright-core@1.64.1"], check=True
    )
    (place / "look.mjs").write_text(SCRIPT)
    return place


def look(tools: Path, *arguments: str) -> dict[str, Any]:
    """Open a page and say what is on it."""
    command = ["node", str(tools / "look.mjs"), str(tools), *arguments]
    return dict(
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_renders(root: Path, tools: Path, tmp_path: Path, scheme: str) -> None:
    """The page shows its plots, fits the window, is readable in both colour schemes, and asks no
    other host for anything.
    """
    page = (root / "report.html").as_uri()
    seen = look(tools, page, "", "", str(tmp_path / "report.png"), scheme)
    bright = seen["bright"]
    assert (bright["page"] < 64) == (scheme == "dark") and bright["texts"] and bright["drawn"]
    assert all(abs(bright["page"] - text) > 128 for text in bright["texts"] + bright["drawn"])
    assert seen["title"] == "dpflow demo: flights of 2013"
    assert int(str(seen["figures"])) >= 5
    assert seen["overflow"] is False and seen["failures"] == []


def test_up_shows_the_dags_and_down_stops_it(
    root: Path, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed address and login lead to the list of DAGs."""
    ui.start_ui(root)
    try:
        lines = capsys.readouterr().out.split()
        url, user, password = (
            lines[4],
            lines[lines.index("user") + 1].rstrip(","),
            lines[lines.index("password") + 1],
        )
        look(tools, url, user, password, str(tmp_path / "dags.png"))
    finally:
        ui.stop_ui(root)
    assert "Airflow is down" in capsys.readouterr().out
