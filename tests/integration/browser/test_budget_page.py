"""The budget page in a real browser: what is seen equals the ledger, in light and dark, on a screen
and on a phone, by keyboard, alone and inside Airflow. Run by `make browser`.

With DPFLOW_WRITE_PICTURES=1 the pictures of docs/pictures are made again.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_tools import look
from budget_books import Books

from dpflow.demo.airflow_environment import airflow_environment, find_free_port
from dpflow.demo.workspace import Workspace
from dpflow.ledger.history import chain

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
#: On the pages of docs.
PUBLISHED = ("budgets-light-1200.png", "burn-down-light-1200.png", "budgets-in-airflow.png")


def choose_place(folder: Path, name: str) -> str:
    """Where a picture goes."""
    writes = name in PUBLISHED and os.environ.get("DPFLOW_WRITE_PICTURES")
    return str((PICTURES if writes else folder) / name)


@pytest.fixture
def fortnight(books: Books, monkeypatch: pytest.MonkeyPatch) -> Books:
    """The books, and a fortnight of daily releases until today."""
    now = dt.datetime.now(dt.UTC).replace(hour=6, minute=0, second=0)
    clock = [now.timestamp()]
    monkeypatch.setattr(chain.time, "time", lambda: clock[0])
    for back in range(14, 0, -1):
        clock[0] = (now - dt.timedelta(days=back)).timestamp()
        day = str((now - dt.timedelta(days=back + 1)).date())
        for name, cost in itertools.islice(
            [("departures", "0.5"), ("delays by carrier", "0.25"), ("late planes", "0.6")],
            2 + back % 2,
        ):
            books.release("flights", name, cost, block=day, dag="flights_daily")
        books.release(
            "visits", "visits a day", "0.04", dag="visits_daily", run_id=f"scheduled__{day}"
        )
    clock[0] = now.timestamp()
    return books


@pytest.fixture
def address(fortnight: Books) -> Iterator[str]:
    """Where `dpflow ui` shows the books, with its token."""
    command = [
        sys.executable,
        "-c",
        "from dpflow.cli import main; main()",
        "ui",
        "--port",
        str(find_free_port()),
    ]
    process = subprocess.Popen(
        [*command, "--ledger", str(fortnight.place)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait(30)


def test_what_is_seen_is_the_ledger(
    fortnight: Books, address: str, browser_tools: Path, tmp_path: Path
) -> None:
    """Numbers and bars of every scope and block; nothing is asked of another host, nothing fails, and
    no page is wider than its window. Text has a contrast of 7 to 1 and more.
    """
    place, _ = address.split("?")
    time.sleep(2)  # until the server listens
    pages = {
        "budgets": "",
        "scope": "scope?name=flights",
        "releases": "releases?scope=visits",
        "sessions": "sessions",
        "burn-down": "scope?name=visits",
    }
    looks = [
        (page, scheme, width)
        for page in pages
        for scheme, width in (("light", 1200), ("dark", 1200), ("light", 390))
    ]
    # what Airflow's menu leaves of a window of 1,200
    looks.append(("budgets", "light", 1136))
    orders = [
        {"before": [address], "address": place + pages[page], "scheme": scheme, "width": width, "tabs": 2,
         "picture": choose_place(tmp_path, f"{page}-{scheme}-{width}.png")}
        for page, scheme, width in looks
    ]  # fmt: skip
    for (page, scheme, width), seen in zip(looks, look(browser_tools, *orders), strict=True):
        assert seen["problems"] == [] and seen["hosts"] == [place.split("/")[2]], page
        assert not seen["overflow"] and seen["contrast"] >= 7, (
            page,
            scheme,
            seen["contrast"],
        )
        assert (seen["back"] < 0.1) == (scheme == "dark")
        assert seen["focus"] == ["Skip to the content", "Budgets"]
        if page == "budgets":
            assert width == 390 or not seen["cut"], width
            stored = {
                name: fortnight.ledger.remaining(name).rows()
                for name in ("flights", "visits", "visits/team-a")
            }
            fullest = {
                name: max(rows, key=lambda row: row["used"]) for name, rows in stored.items()
            }
            cells = {row[0]: dict(zip(seen["heads"], row)) for row in seen["rows"]}
            for name, row in fullest.items():
                shown = cells[name]
                assert (shown["Granted"], shown["Remaining"]) == (
                    row["epsilon_granted"],
                    row["epsilon_left"],
                )
                # whole percents that are full: 80 % is where the alarm is
                assert shown["Used"] == f"{round(10**4 * row['used']) // 100} %"
            (survey,) = fortnight.ledger.remaining("survey").rows()
            used = sum(row["used"] for row in [survey, *fullest.values()])
            assert sum(seen["bars"]) == pytest.approx(100 * used, abs=0.2)
        if page == "scope":
            blocks = {
                row["block"]: row["epsilon_left"]
                for row in fortnight.ledger.remaining("flights").rows()
            }
            shown = {row[0]: dict(zip(seen["heads"], row))["Remaining"] for row in seen["rows"]}
            assert shown == blocks
        if page == "releases":
            assert len(seen["rows"]) == len(
                [r for r in fortnight.ledger.releases() if r.scope.startswith("visits")]
            )


def test_airflow_shows_it_in_its_menu(
    fortnight: Books, browser_tools: Path, tmp_path: Path
) -> None:
    """An api-server that found the plugin by itself: the page in a frame, links within it, and the
    same numbers.
    """
    workspace, port = Workspace(tmp_path / "airflow"), find_free_port()
    workspace.airflow_home.mkdir(parents=True)
    connection = {"conn_type": "dpflow_ledger", "host": str(fortnight.place)}
    environment = airflow_environment(workspace, port) | {
        "AIRFLOW_CONN_DPFLOW_READER": json.dumps(connection)
    }
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], env=environment, check=True, capture_output=True)
    log = (tmp_path / "api.log").open("w")
    server = subprocess.Popen([*airflow, "api-server"], env=environment, stdout=log, stderr=log)
    try:
        home = f"http://127.0.0.1:{port}"
        wait_for(f"{home}/api/v2/monitor/health")
        menu = {"before": [home], "address": f"{home}/plugin/dpflow-nav", "frame": True}
        seen, clicked = look(
            browser_tools,
            menu | {"picture": choose_place(tmp_path, "budgets-in-airflow.png")},
            menu | {"click": ["flights", "Releases of this scope"]},
        )
    finally:
        server.terminate()
        server.wait(60)
    assert seen["heading"] == "Privacy budgets" and not seen["cut"]
    cells = {row[0]: dict(zip(seen["heads"], row)) for row in seen["rows"]}
    (team,) = fortnight.ledger.remaining("visits/team-a").rows()
    assert cells["visits/team-a"]["Remaining"] == team["epsilon_left"]
    assert clicked["heading"] == "Releases" and clicked["url"].startswith(
        f"{home}/dpflow/releases?scope=flights"
    )
    stored = [r for r in fortnight.ledger.releases() if r.scope == "flights"]
    assert len(clicked["rows"]) == len(stored)


def wait_for(address: str) -> None:
    """Until a server answers."""
    import httpx

    end = time.monotonic() + 180
    while time.monotonic() < end:
        try:
            if httpx.get(address, timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(1)
    raise AssertionError(f"nothing answers at {address}")
