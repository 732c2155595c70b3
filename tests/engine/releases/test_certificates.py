"""Certificates: who needs one gets no plan without it, and any change of the code ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dpflow.cli.commands import app
from dpflow.core.contract.audit_cells import describe_cells, list_uncovered
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.engine.releases import certificates
from dpflow.engine.releases.certificates import (
    MechanismCertificate,
    digest_code,
    digest_package,
    write_notes,
)
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import PlanRefused
from dpflow.ledger.history.checkpoint import Signer
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from tests.smallworld import PASSED_AUDIT

REGISTRY = Registry.load()
OWNER, STRANGER = Signer.create("owner"), Signer.create("stranger")
DECLARED: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {"person": {}},
}
AUDIT = PASSED_AUDIT | {
    "mechanism": "count",
    "version": REGISTRY.find_mechanism("count").version,
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A declaration that trusts the owner's certificates, in a file beside it."""
    rule = {"file": "certificates.json", "keys": [OWNER.public_text]}
    (tmp_path / "visits.yml").write_text(yaml.safe_dump(DECLARED | {"require_certified": rule}))
    return load_table(tmp_path / "visits.yml")


def plan(table: Table, mechanism: str = "count", **params: Any) -> Any:
    request = ReleaseRequest(
        name="r",
        table=table,
        mechanism=mechanism,
        scope="visits",
        params={"epsilon": 1, **params},
    )
    return make_plan(request, REGISTRY)


def certify(table: Table, signer: Signer = OWNER, **changes: Any) -> None:
    mechanism = REGISTRY.find_mechanism("count")
    certificate = replace(MechanismCertificate.of_audit(mechanism, "dpflow", AUDIT), **changes)
    table.require_certified.file.write_text(write_notes([certificate.sign(signer)]))


def test_a_certified_mechanism_plans_and_others_do_not(table: Table) -> None:
    certify(table)
    assert plan(table).mechanism.name == "count"
    with pytest.raises(PlanRefused, match="signed a certificate of count_distinct; audit and sign"):
        plan(table, "count_distinct")


def test_a_requirement_changes_no_digest(table: Table) -> None:
    """A release that was paid for stays the same one when its owner asks for certificates."""
    certify(table)
    assert plan(table).digest == plan(Table.model_validate(DECLARED)).digest


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 99}, "the mechanism's version changed"),
        ({"code": "0" * 64}, "the code of its distribution changed"),
        ({"contract": "0" * 64}, "dpflow's core or tables changed"),
        ({"verdict": "no power"}, "its verdict"),
        ({"mechanism": "sum"}, "no key that it names has signed a certificate of count"),
    ],
)
def test_a_certificate_of_something_else_is_none(
    table: Table, changes: dict[str, Any], says: str
) -> None:
    certify(table, **changes)
    with pytest.raises(PlanRefused, match=says):
        plan(table)


BOUNDED = DECLARED | {
    "columns": {
        "person": {},
        "age": {"lower": -5, "upper": -1},
        "city": {"public_keys": ["a", "b"]},
    }
}


@pytest.mark.parametrize(
    ("declared", "params", "uncovered"),
    [
        ({}, {}, ""),
        ({"neighbours": "replace"}, {}, "neighbours replace"),
        ({"contribution_bounds": {"rows": 2}}, {}, "rows_per_group above 1"),
        ({}, {"epsilon": "0.05"}, "epsilon 1e-2"),
        ({}, {"by": "city"}, "keys public, limits the table's"),
        ({}, {"noise": "laplace"}, "noise laplace"),
        ({}, {"delta": "1e-6", "noise": "gaussian"}, "delta above 0, noise gaussian"),
    ],
)
def test_a_plan_of_a_kind_that_was_not_tried_has_no_certificate(
    tmp_path: Path, declared: dict[str, Any], params: dict[str, Any], uncovered: str
) -> None:
    """An audit of one kind of plan says nothing of others; the refusal names what was not tried."""
    rule = {"file": "certificates.json", "keys": [OWNER.public_text]}
    (tmp_path / "visits.yml").write_text(
        yaml.safe_dump(BOUNDED | declared | {"require_certified": rule})
    )
    table = load_table(tmp_path / "visits.yml")
    of_one = plan(Table.model_validate(BOUNDED))
    cells = {name: sorted(v) for name, v in describe_cells(of_one.table, of_one.params).items()}
    certify(table, coverage=cells)
    if not uncovered:
        assert plan(table, **params).mechanism.name == "count"
        return
    with pytest.raises(PlanRefused, match=f"audit of count tried no plan with {uncovered};"):
        plan(table, **params)


def test_bounds_below_0_are_another_kind_than_those_around_it() -> None:
    table = Table.model_validate(BOUNDED)
    around = table.model_copy(
        update={"columns": table.columns | {"age": Column(lower=-5, upper=0)}}
    )
    params = REGISTRY.find_mechanism("sum").Params(epsilon=1, column="age")
    assert describe_cells(table, params)["bounds"] == {"below 0"}
    assert list_uncovered(describe_cells(around, params), describe_cells(table, params)) == [
        "bounds around 0"
    ]


def test_a_strangers_certificate_is_none(table: Table) -> None:
    certify(table, STRANGER)
    with pytest.raises(PlanRefused, match="no key that it names has signed"):
        plan(table)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"certificates": [1]}', "\udcff"])
def test_a_file_that_holds_none_refuses_too(table: Table, text: str | None) -> None:
    if text is not None:
        table.require_certified.file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PlanRefused, match="takes certified mechanisms only.*dpflow certify"):
        plan(table)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"code": 1}', "x"])
def test_a_signed_note_that_is_no_certificate_is_none(table: Table, body: str) -> None:
    """A checkpoint, say, signed by the same key."""
    note = OWNER.sign(f"dpflow.certificate/v1\n{body}\n")
    table.require_certified.file.write_text(json.dumps({"certificates": [note]}))
    with pytest.raises(PlanRefused, match="no key that it names"):
        plan(table)


def test_one_changed_byte_of_code_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents, names and new files of a package all count; other files do not."""
    package = tmp_path / "acme_noise"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("A = 1\n")
    (package / "inner" / "b.py").write_text("B = 1\n")
    module = ModuleType("acme_noise")
    module.__file__ = str(package / "__init__.py")
    monkeypatch.setattr(certificates, "import_module", lambda name: module)

    def digest() -> str:
        digest_package.cache_clear()
        return digest_package("acme_noise")

    seen = {digest()}
    (package / "notes.txt").write_text("no code")
    assert digest() in seen
    (package / "inner" / "b.py").write_text("B = 2\n")
    seen.add(digest())
    (package / "inner" / "b.py").rename(package / "inner" / "c.py")
    seen.add(digest())
    (package / "d.py").write_text("")
    seen.add(digest())
    assert len(seen) == 4
    digest_package.cache_clear()


def test_the_code_that_counts_rows_is_part_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise fits bounded contributions only: a change in core or in what bounds them ends each
    certificate. A control of a package that no release draws with ends none.
    """
    before, real = certificates.digest_contract(), digest_package
    for package, ends in (
        ("dpflow.core", True),
        ("dpflow.tables", True),
        ("dpflow.airflow", False),
    ):
        monkeypatch.setattr(
            certificates,
            "digest_package",
            lambda name, changed=package: "0" * 64 if name == changed else real(name),
        )
        assert (certificates.digest_contract() != before) == ends


def test_the_code_that_a_mechanism_inherits_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's class that inherits from another plugin's draws with that one's code: a change there
    ends its certificate. A control of a package that it has nothing of ends none.
    """
    for name in ("acme_base", "acme_thin", "acme_other"):
        (tmp_path / f"{name}.py").write_text("class Noise: ...\n")
    (tmp_path / "acme_thin.py").write_text(
        "from acme_base import Noise\nclass Thin(Noise):\n    version = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    thin = import_module("acme_thin").Thin()
    audit = AUDIT | {"mechanism": "thin", "version": 1}
    certificate = MechanismCertificate.of_audit(thin, "acme", audit)
    import_module("acme_other")
    for changed, ended in (("acme_other", []), ("acme_base", ["the code of its distribution"])):
        (tmp_path / f"{changed}.py").write_text("class Noise:\n    scale = 0\n")
        digest_package.cache_clear()
        assert certificate.list_differences(thin) == ended
    digest_package.cache_clear()
    # What inherits from the contract alone is known by its one package, as it was.
    assert digest_code(REGISTRY.find_mechanism("count")) == digest_package("dpflow.mechanisms")


def test_the_command_audits_signs_and_keeps_others(tmp_path: Path, table: Table) -> None:
    """Whole way: a key, an audit, a certificate, a plan; a second one joins the first."""
    key = tmp_path / "owner.key"
    key.write_text(OWNER.private_text)
    out = table.require_certified.file
    for name in ("count", "histogram"):
        words = ["certify", name, "--out", str(out), "--key", str(key), "--seconds", "1"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert OWNER.public_text in done.stdout and OWNER.private_text not in done.stdout
    assert len(json.loads(out.read_text())["certificates"]) == 2
    assert plan(table).mechanism.name == "count"
