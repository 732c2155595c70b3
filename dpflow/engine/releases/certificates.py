"""Certificates: signed statements that a mechanism's code, as it is, passed an audit.

A table whose declaration has ``require_certified`` takes no plan of a mechanism without one, and a
scope that was granted with keys of certifiers pays for none. A certificate names the mechanism, its
version, digests of the code that draws and of dpflow's core, what the audit found, and which plans
it tried. A change of any of these files ends it, and it covers no other plans but those between them
(`dpflow.core.contract.audit_cells` has the rule).

Distributions ship what audits found unsigned (`AUDITS`), since no key of a builder means anything to
an owner. ``dpflow certify --accept`` compares it with the code that is installed and signs it.

It protects against mistakes: another version installed, a patch that nobody audited, a plugin that
was never looked at. It does not protect against hostile code: whoever can run code in this process
can change what it checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from dpflow.core.contract.audit_cells import (
    Cells,
    describe_cells,
    digest_cells,
    list_uncovered,
)
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, LedgerCorrupt, PlanRefused
from dpflow.extras import DISTRIBUTION
from dpflow.ledger.history.checkpoint import Signer, open_note
from dpflow.registry import TRIED
from dpflow.yaml_files import parse_json

_FIRST_LINE = "dpflow.certificate/v1\n"
#: Certificates that came with dpflow, where it was built with some (``make certificates``).
SHIPPED = Path(__file__).parents[2] / "certificates.json"
#: The same beside a ledger's keys, where ``dpflow certify`` writes them.
CERTIFICATES = "certificates.json"
#: What audits found about a package's mechanisms, unsigned, among its files.
AUDITS = "audits.json"
#: Which code a certificate compares, in each of them.
COVERS = (
    "the .py files of the mechanism's package and of those of its base classes, of dpflow.core and of dpflow.tables; "
    "not of dpflow.engine, which charges and publishes, nor of dpflow.ledger, nor estimators of plugins"
)
#: The verdict of an audit that may be certified.
PASSED = "not refuted"
#: Of a mechanism that calls samplers at scales which it computes itself, and of one that reads what no argument says:
#: certified by name alone.
OWN_ARITHMETIC, OWN_STATE = "own arithmetic", "own state"
#: Values that a refusal names, at most.
MAX_NAMED = 4


@dataclass(frozen=True)
class MechanismCertificate:
    """What is signed.

    Attributes:
        distribution: who brought the mechanism, as the registry names it.
        mechanism, version: what was audited.
        code: digest of the .py files of the packages that hold it and the classes that it inherits from.
        contract: `digest_contract`.
        method: ``exact`` or ``drawn``.
        epsilon, delta: the guarantee that was audited.
        measured_epsilon: the lower bound that was found.
        weakened, power: which weaker noise the audit would have caught, and how surely.
        verdict: `PASSED`, or the certificate certifies nothing.
        coverage: values of each property that the audit tried (`dpflow.core.contract.audit_cells`).
        plans: names of all plans that it tried, each with one value of every property.
        sizes: numbers of rows that it tried, for people.
        ranges: whether it covers plans between those that it tried.
        not_followed: generated declarations with parameters whose noise the audit could not follow.
        arithmetic: where the mechanism's noise takes its sensitivity from, as far as draws showed: ``of requests``,
            ``declared`` (and tested), ``own arithmetic``, or ``own state``.
        own_state: what its code reads beside its arguments, as far as its functions name it. The audit saw it on one
            day in one process.
        covers: which code it compares, and which it does not, in words.
    """

    distribution: str
    mechanism: str
    version: int
    code: str
    contract: str
    method: str
    epsilon: float
    delta: float
    measured_epsilon: float
    weakened: int | None
    power: float
    verdict: str
    coverage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    plans: Sequence[str] = field(default_factory=list)
    sizes: str = ""
    ranges: bool = False
    not_followed: int = 0
    arithmetic: str = OWN_ARITHMETIC
    own_state: Sequence[str] = field(default_factory=list)
    covers: str = COVERS

    @classmethod
    def of_audit(
        cls, mechanism: Any, distribution: str, audit: dict[str, Any]
    ) -> MechanismCertificate:
        """The statement about a mechanism that was audited just now.

        Args:
            mechanism: the instance.
            distribution: as `dpflow.registry.Registry.origin` has it.
            audit: as `dpflow.testing.mechanism_audit.MechanismAudit.to_json` has it.
        """
        found = {name: audit[name] for name in (one.name for one in fields(cls)) if name in audit}
        return cls(
            distribution=distribution,
            code=digest_code(mechanism),
            contract=digest_contract(),
            **found,
        )

    def sign(self, signer: Signer) -> str:
        """A signed note."""
        body = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return signer.sign(f"{_FIRST_LINE}{body}\n")

    @classmethod
    def open(cls, note: str, keys: Sequence[str]) -> MechanismCertificate | None:
        """What a note says; None unless it is a certificate that one of these keys signed."""
        try:
            text, _ = open_note(note, keys)
            return cls(**json.loads(text.removeprefix(_FIRST_LINE)))
        except (LedgerCorrupt, ValueError, TypeError):
            return None

    def list_uncovered(self, cells: Cells) -> list[str]:
        """What it does not cover of a plan with these properties; empty if all is covered."""
        if digest_cells(cells) in self.plans:
            return []
        missing = list_uncovered(cells, self.coverage)
        return missing if missing or self.ranges else ["these values together"]

    def list_differences(self, mechanism: Any) -> list[str]:
        """What is not as it was when this was signed."""
        present = {
            "version": mechanism.version,
            "code": digest_code(mechanism),
            "contract": digest_contract(),
        }
        names = {
            "version": "the mechanism's version",
            "code": "the code of its distribution",
            "contract": "dpflow's core or tables",
        }
        return [names[name] for name, value in present.items() if getattr(self, name) != value]


def digest_contract() -> str:
    """SHA-256 of what every mechanism rests on: ``dpflow.core`` with its samplers and toolbox, and
    ``dpflow.tables``, which bounds each unit's contributions and counts.
    """
    # A sum of unbounded rows breaks every guarantee, whatever noise is added to it.
    listed = [digest_package(name) for name in ("dpflow.core", "dpflow.tables")]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


def package_of(kind: type) -> str:
    """The package whose files decide what a class does: the built-ins', or its plugin's."""
    module = str(kind.__module__)
    top = module.partition(".")[0]
    return "dpflow.mechanisms" if module.startswith("dpflow.mechanisms.") else top


def digest_code(mechanism: Any) -> str:
    """SHA-256 of the package that holds a mechanism; with those of the classes that it inherits
    from, if they are others.

    Raises:
        PlanRefused: as `digest_package`.
    """
    own = package_of(type(mechanism))
    # dpflow's core has a digest of its own, and Python's classes come with Python.
    others = {
        package_of(kind)
        for kind in type(mechanism).__mro__
        if not kind.__module__.startswith("dpflow.core.")
    } - {own, *sys.stdlib_module_names}
    if not others:
        return digest_package(own)
    listed = [digest_package(own), *(f"{name} {digest_package(name)}" for name in sorted(others))]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


@lru_cache(maxsize=64)
def digest_package(name: str) -> str:
    """SHA-256 over names and contents of a package's .py files; of a module, of its one file.

    Raises:
        PlanRefused: it has no files, such as a class typed into a shell.
    """
    path = _find_file(name)
    paths = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = hashlib.sha256()
    for one in paths:
        content = one.read_bytes()
        digest.update(f"{one.relative_to(path.parent).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _find_file(package: str) -> Path:
    if package.startswith(TRIED):
        raise PlanRefused(
            f"{package.removeprefix(TRIED)}.py is tried as a file, and no certificate covers it; package and install it"
        )
    file = getattr(import_module(package), "__file__", None)
    if file is None or package == "__main__":
        raise PlanRefused(
            f"package {package!r} has no files to compare with a certificate; install the mechanism's distribution"
        )
    return Path(file)


def read_notes(file: Path) -> list[str]:
    """The notes of a file of certificates. Raises `InvalidInput`."""
    try:
        notes = parse_json(file.read_text(encoding="utf-8"))["certificates"]
        if not all(isinstance(note, str) for note in notes):
            raise ValueError
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {file.name}; make it: dpflow certify") from None
    except (OSError, ValueError, TypeError, KeyError):
        raise InvalidInput(
            f"{file.name} holds no certificates; make it again: dpflow certify"
        ) from None
    return list(notes)


def write_notes(notes: Iterable[str]) -> str:
    """The text of a file of certificates."""
    return (
        json.dumps(
            {"made_by": f"dpflow {metadata.version(DISTRIBUTION)}", "certificates": list(notes)},
            indent=1,
        )
        + "\n"
    )


def shipped_audits_file(mechanism: Any) -> Path:
    """Where the distribution of a mechanism ships what audits found about it.

    Raises:
        PlanRefused: as `digest_package`.
    """
    return _find_file(package_of(type(mechanism))).with_name(AUDITS)


def read_shipped_audit(mechanism: Any, distribution: str) -> MechanismCertificate:
    """What its distribution ships about a mechanism, if that is about the code that is installed.

    Args:
        mechanism: the instance.
        distribution: as `dpflow.registry.Registry.origin` has it.

    Raises:
        InvalidInput: nothing is shipped, or it is about something else; says what, and what to run.
        PlanRefused: as `digest_package`.
    """
    file, name = shipped_audits_file(mechanism), mechanism.name
    next_step = f"audit it here: dpflow certify {name}"
    try:
        listed = parse_json(file.read_text(encoding="utf-8"))["audits"]
        audits = [MechanismCertificate(**one) for one in listed]
    except FileNotFoundError:
        raise InvalidInput(f"{distribution} ships no audit of {name}; {next_step}") from None
    except (OSError, ValueError, TypeError, KeyError):
        raise InvalidInput(f"{file.name} of {distribution} cannot be read; {next_step}") from None
    shipped = next((one for one in audits if one.mechanism == name), None)
    if shipped is None:
        raise InvalidInput(f"{distribution} ships no audit of {name}; {next_step}")
    differences = shipped.list_differences(mechanism)
    if shipped.distribution != distribution:
        differences.append("its distribution")
    if shipped.verdict != PASSED:
        differences.append("its verdict")
    if differences:
        raise InvalidInput(
            f"the audit that came with {name} is about something else: {', '.join(differences)} changed since; {next_step}"
        )
    return shipped


def write_audits(audits: Iterable[MechanismCertificate]) -> str:
    """The text of a file of audits, for a distribution to ship."""
    return json.dumps({"audits": [asdict(one) for one in audits]}, indent=1) + "\n"


def list_certifiers(
    about: str,
    mechanism: Any,
    cells: Cells,
    keys: Sequence[str],
    files: Sequence[Path],
    next_step: str,
) -> tuple[str, ...]:
    """The keys, of those that are trusted, that have certified a mechanism as it is installed, for plans
    of this kind.

    Args:
        about: who asks for certificates, as the head of a sentence.
        mechanism: the instance.
        cells: the properties of the plan.
        keys: verifier keys that are trusted.
        files: where certificates may be; one that is not there has none.
        next_step: what to run where none fits.

    Raises:
        PlanRefused: there is none that a trusted key signed, or it is about other code or other plans.
    """
    next_step = f"audit and sign what is installed: {next_step}"
    try:
        notes = [note for file in files if os.path.exists(file) for note in read_notes(file)]
    except InvalidInput as error:
        raise PlanRefused(f"{about}, and {error}") from None
    matching = [
        (key, one)
        for note in notes
        for key in keys
        if (one := MechanismCertificate.open(note, [key])) and one.mechanism == mechanism.name
    ]
    if not matching:
        raise PlanRefused(
            f"{about}, and no key that it names has signed a certificate of {mechanism.name}; {next_step}"
        )
    differences = [
        one.list_differences(mechanism) or ([] if one.verdict == PASSED else ["its verdict"])
        for _, one in matching
    ]
    present = [one for one, different in zip(matching, differences, strict=True) if not different]
    certifiers = {key for key, one in present if not one.list_uncovered(cells)}
    if present and not certifiers:
        missing = min((one.list_uncovered(cells) for _, one in present), key=len)
        named = ", ".join(missing[:MAX_NAMED]) + (", ..." if len(missing) > MAX_NAMED else "")
        raise PlanRefused(
            f"{about}, and the audit of {mechanism.name} tried no plan with {named}; change the plan, or try it and sign: "
            f"dpflow certify {mechanism.name} --release FILE"
        )
    if not certifiers:
        nearest = min(differences, key=len)
        raise PlanRefused(
            f"{about}, and the certificate of {mechanism.name} is about something else: "
            f"{', '.join(nearest)} changed since; {next_step}"
        )
    return tuple(sorted(certifiers))


def require_certificate(table: Table, mechanism: Any, params: Any) -> None:
    """Refuse a plan without a certificate of its mechanism, where the table's declaration asks for one.

    Raises:
        PlanRefused: there is none that a trusted key signed, or it is about other code or other plans.
    """
    rule = table.require_certified
    if rule is None:
        return
    about = f"table {table.name!r} takes certified mechanisms only"
    file = rule.file or SHIPPED
    command = f"dpflow certify {mechanism.name} --out {file.name}"
    list_certifiers(about, mechanism, describe_cells(table, params), rule.keys, [file], command)
