"""What notifications, pages and Data Docs show of a contract's outcome."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from contract_world import SECRET, World, verdicts

from dpflow.core.toolbox.row_checks import RowCheck
from dpflow.errors import (
    InvalidInput,
)
from dpflow.quality import run_contract
from dpflow.quality.contract_file import Contract, DriftCheck
from dpflow.quality.page import write_html


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sink() -> Iterator[tuple[str, list[str]]]:
    """A local web hook: its address, and what was sent to it."""
    received: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", received
    server.shutdown()
    thread.join()
    server.server_close()


class MailSink(socketserver.StreamRequestHandler):
    """As much of a mail server as takes one letter."""

    letters: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().strip():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                letter = []
                while (part := self.rfile.readline()).strip() != b".":
                    letter.append(part.decode())
                self.letters.append("".join(letter))
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def test_a_letter_holds_outcomes_and_no_row(world: World) -> None:
    """Great Expectations' mail, to a local server."""
    from great_expectations.checkpoint import EmailAction

    world.fill(delay="100", carrier=f"'{SECRET}'")
    with socketserver.TCPServer(("127.0.0.1", 0), MailSink) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        mail = EmailAction(
            name="mail",
            smtp_address="127.0.0.1",
            smtp_port=str(server.server_address[1]),
            sender_login="a@b.invalid",
            sender_alias="a@b.invalid",
            sender_password=None,
            receiver_emails="c@d.invalid",
            notify_on="all",
        )
        outcome = run_contract(
            world.contract(), ["2020-01-02"], ledger=world.ledger, actions=[mail]
        )
        server.shutdown()
        thread.join()
    assert verdicts(outcome)["late"] == "violated"
    (letter,) = MailSink.letters
    assert "daily" in letter and SECRET not in letter


def test_actions_get_outcomes_and_no_row(
    world: World,
    sink: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Web hooks are told which expectation failed; one that fails, or is away, changes nothing."""
    from great_expectations.checkpoint import (
        EmailAction,
        MicrosoftTeamsNotificationAction,
        SlackNotificationAction,
    )

    address, received = sink
    world.fill(delay="100", carrier=f"'{SECRET}'")
    actions = [
        EmailAction(
            name="mail", smtp_address="127.0.0.1", smtp_port="9", receiver_emails="a@b.invalid"
        ),
        SlackNotificationAction(name="gone", slack_webhook="http://127.0.0.1:9/none"),
        SlackNotificationAction(name="slack", slack_webhook=address, notify_on="all"),
        MicrosoftTeamsNotificationAction(name="teams", teams_webhook=address, notify_on="all"),
    ]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(EmailAction, "run", fail)
    outcome = run_contract(world.contract(), ["2020-01-02"], ledger=world.ledger, actions=actions)
    assert not outcome.passed and verdicts(outcome)["late"] == "violated"
    assert len(received) == 2 and "daily" in received[0]
    assert "action EmailAction failed" in caplog.text
    assert SECRET not in "".join(received) + caplog.text


@pytest.mark.parametrize("mode", ["public", "trusted", "metered", "watch"])
def test_the_page_loads_nothing_and_shows_no_row(world: World, mode: str) -> None:
    """One file without a script, an address or a private value; texts are escaped."""
    world.fill(carrier=f"'{SECRET}'")
    free = mode in ("public", "trusted")
    name = "<b>x</b>"
    contract = (
        world.contract(mode=mode, name=name, **dict.fromkeys(("scope", "epsilon", "checks")))
        if free
        else world.contract(mode=mode, name=name)
    )
    outcome = run_contract(contract, ["2020-01-02"], ledger=world.ledger)
    page = write_html(outcome)
    told = page + json.dumps(outcome.to_json()) + repr(outcome)
    assert SECRET not in told
    for word in ("<script", "http://", "https://", "src=", "<link", "<b>x"):
        assert word not in page
    assert "&lt;b&gt;x" in page and mode in page


def test_data_docs_of_a_project_show_what_was_asked(
    world: World, tmp_path: Path, sink: tuple[str, list[str]]
) -> None:
    """A page for each contract, beside those of before; it says the check, its verdict and its noise, and no
    value of a row. The actions are those of a checkpoint of the project, and read its variables. The project itself
    is not changed.
    """
    import great_expectations as gx
    from great_expectations.checkpoint import SlackNotificationAction, UpdateDataDocsAction

    own = gx.get_context(mode="file", project_root_dir=str(tmp_path / "project"))
    suite = own.suites.add(gx.ExpectationSuite("first"))
    batch = own.data_sources.add_pandas("p").add_dataframe_asset("a")
    definition = gx.ValidationDefinition(
        name="v", data=batch.add_batch_definition_whole_dataframe("b"), suite=suite
    )
    actions = [
        UpdateDataDocsAction(name="docs"),
        SlackNotificationAction(name="slack", slack_webhook="${HOOK}", notify_on="failure"),
    ]
    own.validation_definitions.add(definition)
    own.checkpoints.add(
        gx.Checkpoint(name="daily", validation_definitions=[definition], actions=actions)
    )
    own.build_data_docs()
    config = tmp_path / "project" / "gx" / "great_expectations.yml"
    (config.parent / "uncommitted" / "config_variables.yml").write_text(f"HOOK: {sink[0]}\n")
    before = config.read_text()
    daily = gx.get_context(mode="file", project_root_dir=str(tmp_path / "project")).checkpoints.get(
        "daily"
    )
    world.fill(delay="100", carrier=f"'{SECRET}'")
    for name in ("first", "second"):
        outcome = run_contract(
            world.contract(name=name),
            ["2020-01-02"],
            ledger=world.ledger,
            actions=daily.actions,
            project=tmp_path / "project",
        )
    site = config.parent / "uncommitted" / "data_docs" / "local_site"
    pages = [path.read_text() for path in site.rglob("validations/**/*.html")]
    index = (site / "index.html").read_text()
    assert len(pages) == 2 and "first" in index and "second" in index
    for page in pages:
        assert "share of rows with delay &gt; 30" in page or "share of rows with delay > 30" in page
        assert "violated; estimate" in page and SECRET not in page
    late = outcome.validation["results"][0]
    assert late["expectation_config"]["kwargs"]["condition"] == "delay > 30"
    assert late["expectation_config"]["kwargs"]["max_value"] == 0.2
    assert config.read_text() == before
    assert len(sink[1]) == 2 and "first" in sink[1][0] and SECRET not in "".join(sink[1])
    paid = world.ledger.history()
    with pytest.raises(InvalidInput, match="great_expectations.yml"):
        run_contract(
            world.contract(name="third"),
            ["2020-01-02"],
            ledger=world.ledger,
            project=tmp_path / "nowhere",
        )
    assert world.ledger.history() == paid


def test_what_is_asked_is_an_expectations_arguments() -> None:
    """All fields of checks that say which rows, or of what, are among them: a share of some rows is none of all."""
    from dpflow.quality.released_expectations import ExpectReleased
    from dpflow.quality.validation_result import _describe_bounds

    checks = [
        {
            "check": "violations",
            "condition": "delay > 65",
            "among": "city = 'Rome'",
            "at_most": 0.5,
        },
        {"check": "freshness", "column": "day", "since": "2020-01-31", "at_least": 10},
        {"check": "freshness", "column": "age", "since": 60, "at_least": 10},
        {"check": "quantile", "column": "age", "p": 0.5, "at_most": 3},
    ]
    drift = [{"name": "mix", "column": "city", "reference": "by city", "at_most": 0.1}]
    contract = Contract.model_validate(
        {"name": "c", "table": "t.yml", "mode": "metered", "scope": "s", "epsilon": "1"}
        | {"checks": [{"name": f"c{n}"} | check for n, check in enumerate(checks)]}
        | {"drift": [drift[0] | {"epsilon": "0.1"}]}
    )
    bounds = {"at_most": "max_value", "at_least": "min_value"}
    for name, asked in [*((f"c{n}", check) for n, check in enumerate(checks)), ("mix", drift[0])]:
        shown = {
            bounds.get(key, key): value
            for key, value in asked.items()
            if key not in ("name", "check")
        }
        assert _describe_bounds(contract, name) == shown
        assert ExpectReleased(check=name, **shown).configuration.kwargs.items() >= shown.items()
    fields = {*RowCheck.model_fields, *DriftCheck.model_fields}
    assert fields - {"name", "check", "at_least", "at_most", "weight", "epsilon"} <= {
        *ExpectReleased.__fields__
    }
