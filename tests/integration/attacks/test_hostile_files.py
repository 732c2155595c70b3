"""What people write is hostile: names, texts and whole files; and what only the environment knows
stays there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpflow.cli.contract import app as contract_app
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import load_request
from dpflow.errors import DpflowError, InvalidInput
from dpflow.ledger import Ledger
from dpflow.quality import load_contract, run_contract
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

REGISTRY = Registry.load()
RELEASE = {
    "name": "r",
    "mechanism": "count",
    "table": "visits.yml",
    "scope": "visits",
    "params": {"epsilon": "0.5"},
    "blocks": ["2020-01-01"],
    "where": "age > 3",
}
CONTRACT = {
    "name": "c",
    "table": "visits.yml",
    "mode": "metered",
    "scope": "visits",
    "epsilon": "0.5",
    "checks": [
        {"name": "old", "check": "violations", "condition": "age > 90", "at_most": "0.5"},
        {"name": "keys", "check": "unknown_keys", "column": "city", "at_most": "0.5"},
    ],
}
DECLARATION = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 2},
    "columns": {"age": {"lower": 0, "upper": 120}},
}
#: Each parser with a file that it takes.
PARSERS: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "release": (RELEASE, load_request),
    "contract": (CONTRACT, load_contract),
    "declaration": (DECLARATION, load_table),
}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.sampled_from(
        ["1e999", "-0", "0x1", "nan", "../../etc/passwd", "a\x00b", "\ud800"[:0], "1/0"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def replace_part(content: Any, path: list[int], value: Any) -> Any:
    """The same with one part, that the path leads to, replaced."""
    if not path or not isinstance(content, dict | list) or not content:
        return value
    if isinstance(content, dict):
        names = list(content)
        name = names[path[0] % len(names)]
        return content | {name: replace_part(content[name], path[1:], value)}
    place = path[0] % len(content)
    return [*content[:place], replace_part(content[place], path[1:], value), *content[place + 1 :]]


@pytest.mark.parametrize("name", PARSERS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=st.lists(st.integers(0, 9), max_size=3), value=VALUES)
def test_no_file_breaks_a_parser(name: str, tiny: Tiny, path: list[int], value: Any) -> None:
    """Any part of any file replaced by anything: it is taken, or refused with a sentence that no
    retry helps.
    """
    content, parse = PARSERS[name]
    place = tiny.folder / "hostile.yml"
    place.write_text(yaml.safe_dump(replace_part(content, path, value)), encoding="utf-8")
    try:
        parse(place)
    except InvalidInput as error:
        assert not error.retryable and str(error) and "Traceback" not in str(error)


@pytest.mark.parametrize("name", PARSERS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=60))
def test_no_bytes_break_a_parser(name: str, tiny: Tiny, data: bytes) -> None:
    """A file of any bytes is refused with a sentence."""
    place = tiny.folder / "hostile.yml"
    place.write_bytes(data)
    with pytest.raises(InvalidInput):
        PARSERS[name][1](place)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "&a [*a, *a]",
        "{" * 5000,
        "a: &x [*x]",
        "a: 2020-13-01",
        "a: 0x_",
        "a: 2020-01-01T99:00:00",
    ],
)
def test_no_yaml_builds_objects(text: str, tiny: Tiny) -> None:
    """Tags, aliases in themselves, brackets without end and values that are none are refused."""
    place = tiny.folder / "hostile.yml"
    place.write_text(text)
    for _, parse in PARSERS.values():
        with pytest.raises(InvalidInput):
            parse(place)


#: What a shell would make.
TOUCHED = Path("/tmp/dpflow-was-read-by-a-shell")
#: Texts that mean something to SQL, templates, shells, paths, terminals or HTML.
HOSTILE = (
    "'; DROP TABLE visits; --",
    '" OR 1=1 --',
    "{{ 7 * 7 }}",
    "${HOME}",
    f"$(touch {TOUCHED})",
    "<script>alert(1)</script>",
    "\x1b[2J",
    "read_csv('/etc/passwd')",
    "../../../etc/passwd",
    "a\nb",
    "%s%n",
    "(SELECT count(*) FROM visits)",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused_or_data(text: str, tiny: Tiny) -> None:
    """As name, scope, block, condition, column and key of a release or contract: refused before
    anything is charged, or taken as a name that nothing is made of.
    """
    ledger, registry = Ledger(tiny.ledger), REGISTRY
    before = tiny.database.read_bytes()
    for field in ("name", "scope", "mechanism", "where", "table"):
        place = tiny.file(**{field: text})
        refused = False
        try:
            made = make_plan(load_request(place), registry)
        except InvalidInput:
            refused = True
        # A name, and the scope that nobody granted, are data; what has a meaning is refused.
        assert refused or made.request.name == text or made.request.scope == text
    for path in ([5, 0, 2], [5, 1, 2], [5, 0, 0], [0], [3]):
        place = tiny.folder / "contract.yml"
        place.write_text(yaml.safe_dump(replace_part(CONTRACT, path, text)))
        try:
            run_contract(load_contract(place), ["2020-01-01"], ledger=ledger, registry=registry)
        except DpflowError as error:
            assert not error.retryable
    assert tiny.database.read_bytes() == before
    assert not TOUCHED.exists()


CANARY = "ENV7canary7VNE"


def test_no_secret_of_the_environment_is_shown(
    tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A password in the ledger's URL, a variable, a threshold of a contract's table and the ledger's
    keys are in no log at DEBUG, stream, error or page, whether doors succeed or fail.
    """
    from typer.testing import CliRunner

    monkeypatch.setenv("DPFLOW_SECRET_TOKEN", CANARY)
    caplog.set_level(logging.DEBUG)
    place = tiny.folder / "contract.yml"
    place.write_text(yaml.safe_dump(CONTRACT))
    anchor = Ledger(tiny.ledger).anchor_folder
    keys = [
        one.read_bytes() for one in anchor.rglob("*") if one.is_file() and one.stat().st_size >= 16
    ]
    url = f"postgresql+psycopg://spender:{CANARY}@127.0.0.1:9/none"
    told = []
    for ledger in (str(tiny.ledger), url):
        for words in (["run", str(place), "--block", "2020-01-01", "--json"], ["plan", str(place)]):
            ran = CliRunner().invoke(contract_app, words, env={"DPFLOW_LEDGER": ledger})
            told += [ran.output, str(ran.exception), repr(ran.exception)]
    streams = capfd.readouterr()
    told += [caplog.text, streams.out, streams.err]
    outcome = run_contract(load_contract(place), ["2020-01-01"], ledger=Ledger(tiny.ledger))
    told.append(json.dumps(outcome.to_json()) + repr(outcome))
    everything = "\n".join(told)
    assert CANARY not in everything
    assert keys and not [key for key in keys if key.hex()[:24] in everything]
