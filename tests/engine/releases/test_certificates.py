"""Certificates: who needs one gets no plan without it, and any change of the code ends it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dpflow.cli.commands import app
from dpflow.core.contract.audit_cells import (
    describe_cells,
    digest_cells,
    has_holes,
    list_uncovered,
    merge_cells,
)
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds, MaxContributions
from dpflow.core.contract.declaration import PrivacyUnit, Table, UnitRows
from dpflow.core.contract.joins import Join
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
        (
            {"contribution_bounds": {"rows": 2}},
            {},
            "rows of a unit 2, rows of a unit in a group 2",
        ),
        ({}, {"epsilon": "0.05"}, "epsilon 1/20"),
        ({"max_contributions": {"rows": 9}}, {}, "declares max_contributions, max rows 9"),
        ({}, {"by": "city"}, "by a column, by: keys 2, limits the table's"),
        ({}, {"noise": "laplace"}, "noise laplace"),
        ({}, {"delta": "1e-6", "noise": "gaussian"}, "delta 1/1000000, noise gaussian"),
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


def cells_of(age: Column, **params: Any) -> Any:
    table = Table.model_validate(BOUNDED)
    table = table.model_copy(update={"columns": table.columns | {"age": age}})
    model = REGISTRY.find_mechanism("sum").Params
    return describe_cells(table, model(**{"epsilon": 1, "column": "age"} | params))


def test_every_public_number_is_a_property() -> None:
    """Bounds, steps and what a missing value counts as were none, so 12 wrong mechanisms could be certified."""
    plain = cells_of(Column(lower=-5, upper=0))
    for age, uncovered in (
        (Column(lower=-5, upper=1), "column: upper 1"),
        (Column(lower=-5, upper=0, missing=0), "column: missing 0"),
        (Column(lower=-5, upper=0, step="0.5"), "column: step 1/2"),
    ):
        assert uncovered in list_uncovered(cells_of(age), plain)
        assert digest_cells(cells_of(age)) != digest_cells(plain)
    assert digest_cells(cells_of(Column(lower=-5, upper=0), epsilon="3/2")) != digest_cells(plain)


#: What a declaration has and no certificate asks about, with the reason.
NOT_PROPERTIES = {
    **dict.fromkeys(("name", "database", "source", "relation"), "where rows are stored, and names"),
    "sealed_version": "which version of the rows",
    "require_certified": "who certifies; tried with and without",
}
CHANGES: dict[str, Any] = {
    "privacy_unit": PrivacyUnit(column="person", missing="one-unit"),
    "neighbours": "replace",
    "protects": "unit-block",
    "block": "day",
    "contribution_bounds": ContributionBounds(rows=9),
    "max_contributions": MaxContributions(rows=9),
    "columns": {},
    "joins": (Join(relation="r", name="r", kind="dimension", on={"a": "b"}),),
    "holdout": True,
    "cached_partials": "sealed",
    "generalisation_only": True,
    "backend": "spark",
    "trusted_sql": ("v",),
}
OTHERS: dict[str, Column] = {
    "lower": Column(lower=-6, upper=1),
    "upper": Column(lower=0, upper=9),
    "step": Column(lower=0, upper=1, step="0.5"),
    "missing": Column(lower=0, upper=1, missing=1),
    "public_keys": Column(public_keys=("a",)),
    "groups": Column(groups=2),
    "rows_per_group": Column(rows_per_group=2),
    "public": Column(public=True),
    "expression": Column(expression="age"),
    "parts": Column(parts=("age", "city")),
}


@pytest.mark.parametrize("name", Table.model_fields)
def test_every_field_of_a_declaration_is_a_property_or_named_as_none(name: str) -> None:
    """A field that is new has to be one of both."""
    if name in NOT_PROPERTIES:
        return
    table = Table.model_validate(BOUNDED)
    params = REGISTRY.find_mechanism("count").Params(epsilon=1)
    changed = table.model_copy(update={name: CHANGES[name]})
    assert digest_cells(describe_cells(changed, params)) != digest_cells(
        describe_cells(table, params)
    )


@pytest.mark.parametrize("name", ContributionBounds.model_fields)
def test_every_contribution_bound_is_a_property_also_without_groups(name: str) -> None:
    """Bounds that follow from others are read as well as those that are declared."""
    table = Table.model_validate(BOUNDED)
    params = REGISTRY.find_mechanism("count").Params(epsilon=1)
    plain = ContributionBounds(rows=1)
    bounds = plain.model_copy(update={name: 2 if name == "rows" else 1})
    digests = {
        digest_cells(describe_cells(table.model_copy(update={"contribution_bounds": one}), params))
        for one in (plain, bounds)
    }
    assert len(digests) == 2


@pytest.mark.parametrize("field", [one.name for one in fields(UnitRows)])
def test_what_rows_of_a_unit_are_made_of_is_a_property(field: str) -> None:
    """How many aggregates and keys they have, and the columns below."""
    table = Table.model_validate(BOUNDED)
    params = REGISTRY.find_mechanism("count").Params(epsilon=1)
    more = table.model_copy(update={"columns": {**table.columns, "other": Column()}})
    changes = {
        "rows": more,
        "where": "age > 3",
        "blocks": ("today",),
        "keys": (("age", "age"),),
        "features": ("count(*)",),
    }
    plain = UnitRows(table, None, (), (), ())
    digests = {
        digest_cells(
            describe_cells(table.by_unit(one, table.columns, table.contribution_bounds), params)
        )
        for one in (plain, replace(plain, **{field: changes[field]}))
    }
    assert len(digests) == 2


@pytest.mark.parametrize("name", Column.model_fields)
def test_every_field_of_a_column_that_nothing_names_is_a_property(name: str) -> None:
    table = Table.model_validate(BOUNDED)
    params = REGISTRY.find_mechanism("count").Params(epsilon=1)

    def digest(column: Column) -> str:
        columns = {**table.columns, "other": column}
        return digest_cells(describe_cells(table.model_copy(update={"columns": columns}), params))

    plain = Column() if OTHERS[name].lower is None else Column(lower=0, upper=1)
    assert digest(OTHERS[name]) != digest(plain)


def test_a_range_covers_what_lies_between_tried_values() -> None:
    """And nothing outside; a delta of 0 is no end of a range, and a hole ends it."""
    column = Column(lower=-5, upper=0)
    ends = [cells_of(column, epsilon=e, delta=d) for e, d in ((1, 0), (4, "0.01"), (4, "0.1"))]
    tried = merge_cells(ends)
    assert not list_uncovered(cells_of(column, epsilon="1.5", delta="0.05"), tried)
    assert list_uncovered(cells_of(column, epsilon=5), tried) == ["epsilon 5"]
    assert list_uncovered(cells_of(column, delta="0.001"), tried) == ["delta 1/1000"]
    assert has_holes(tried, cells_of(column, epsilon=2))
    assert not has_holes(tried, cells_of(column, epsilon=5))


def test_without_ranges_a_certificate_covers_plans_exactly_as_tried(table: Table) -> None:
    """Two values that were tried in different plans are no plan that was tried."""
    made = [plan(Table.model_validate(DECLARED), epsilon=e, noise=n) for e, n in
            ((1, "laplace"), (2, "auto"))]  # fmt: skip
    cells = [describe_cells(one.table, one.params) for one in made]
    certify(
        table,
        coverage={name: sorted(v) for name, v in merge_cells(cells).items()},
        plans=[digest_cells(one) for one in cells],
        ranges=False,
    )
    assert plan(table, epsilon=1, noise="laplace") and plan(table, epsilon=2, noise="auto")
    with pytest.raises(PlanRefused, match="with these values together; .*--release FILE"):
        plan(table, epsilon=2, noise="laplace")


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
    """Whole way: a key, a release file, an audit, a certificate, a plan; it joins one of another mechanism."""
    key, out = tmp_path / "owner.key", table.require_certified.file
    key.write_text(OWNER.private_text)
    certify(table, mechanism="sum")
    file = {"name": "r", "mechanism": "count", "table": "visits.yml", "scope": "visits"}
    (tmp_path / "r.yml").write_text(yaml.safe_dump(file | {"params": {"epsilon": "0.123"}}))
    words = ["certify", "--release", str(tmp_path / "r.yml"), "--out", str(out), "--key", str(key)]
    done = CliRunner().invoke(app, [*words, "--seconds", "1"])
    assert done.exit_code == 0, done.output
    assert OWNER.public_text in done.stdout and OWNER.private_text not in done.stdout
    assert len(json.loads(out.read_text())["certificates"]) == 2
    assert plan(table, epsilon="0.123").mechanism.name == "count"
    with pytest.raises(PlanRefused, match="tried no plan with epsilon 1000"):
        plan(table, epsilon="1000")
