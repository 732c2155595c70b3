"""Audits that wheels ship are about the code in them: a stale one is named, and no wheel is built with it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from checks import shipped_audits
from checks.shipped_audits import list_shipped_audits
from dpflow.engine.releases.certificates import MechanismCertificate
from dpflow.registry import Registry

REGISTRY = Registry.load()
ROOT = Path(__file__).parents[2]


def describe(name: str) -> MechanismCertificate:
    """An audit of the code that is here."""
    found = {
        "mechanism": name,
        "version": REGISTRY.find_mechanism(name).version,
        "method": "exact",
        "epsilon": 1.0,
        "delta": 0.0,
        "measured_epsilon": 1.0,
        "weakened": 2,
        "power": 1.0,
        "verdict": "not refuted",
    }
    return MechanismCertificate.of_audit(
        REGISTRY.find_mechanism(name), REGISTRY.origin[name], found
    )


def test_no_stale_audit_stands_beside_the_code() -> None:
    """In a checkout there are none; where some were made, a change of the code since then fails this test."""
    stale = [one for one in list_shipped_audits(REGISTRY) if one.state == "stale"]
    assert stale == [], "run make certificates, or python -m checks.shipped_audits --drop"


def test_each_stale_audit_is_named_with_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audits.json"
    monkeypatch.setattr(shipped_audits, "shipped_audits_file", lambda mechanism: file)
    audits = [
        describe("count"),
        replace(describe("sum"), code="0" * 64),
        replace(describe("mean"), contract="0" * 64, version=0),
        replace(describe("median"), distribution="other"),
        replace(describe("mode"), mechanism="gone"),
    ]
    file.write_text(json.dumps({"audits": [asdict(one) for one in audits]}))
    monkeypatch.setattr(sys, "argv", ["shipped_audits"])
    assert shipped_audits.main() == 1
    shown = capsys.readouterr().out
    for line in (
        "stale: sum (the code of its distribution changed",
        "stale: mean (the mechanism's version, dpflow's core or tables changed",
        "stale: median (its distribution changed",
        "stale: gone (the mechanism itself changed",
        "1 fresh, 4 stale",
    ):
        assert line in shown
    assert "stale: count" not in shown
    monkeypatch.setattr(sys, "argv", ["shipped_audits", "--drop"])
    assert shipped_audits.main() == 0 and not file.exists()
    monkeypatch.setattr(sys, "argv", ["shipped_audits", "--whole"])
    assert shipped_audits.main() == 1
    assert "missing: count\n" in (shown := capsys.readouterr().out)
    # What promises nothing cannot be certified, and is not missing.
    assert "effective_rounds" not in shown


def test_wheels_are_not_built_before_the_check() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("wheels:")]
    assert "checks.shipped_audits" in lines[at + 1]
