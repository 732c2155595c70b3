"""`dpflow new-mechanism`: a package for a mechanism of one's own, with tests that can fail."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from dpflow.errors import InvalidInput
from dpflow.registry import Registry

#: Files of the package by their template.
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "$module.py": "mechanism.py.txt",
    "test_$module.py": "test_mechanism.py.txt",
    ".github/workflows/tests.yml": "ci.yml.txt",
}


def command(
    name: Annotated[str, typer.Argument(help="Of the mechanism: small letters, digits and _.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write it; a folder of that name if left out.")
    ] = None,
) -> None:
    """Write a package for a mechanism of your own: a count of rows to change, tests, and CI.

    The tests are the conformance suite, the guarantee on tables of your own, and a control that fails.
    """
    target = folder or Path(name)
    text = write_package(name, target)
    print(text)


def write_package(name: str, target: Path) -> str:
    """Write the files of a package into a new folder; returns what to do next.

    Raises:
        InvalidInput: the name cannot be one of a mechanism, or is taken; or the folder is there.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InvalidInput(
            f"{name!r} cannot name a mechanism; take small letters, digits and _, such as noisy_rows"
        )
    if (origin := Registry.load().origin.get(name)) is not None:
        raise InvalidInput(f"{name!r} is the name of something that {origin} brings; take another")
    # A module of the mechanism's name would hide another distribution's.
    words = {
        "name": name,
        "Name": "".join(part.capitalize() for part in name.split("_")),
        "module": f"dpflow_{name}",
        "distribution": f"dpflow-{name.replace('_', '-')}",
    }
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(f"{target} is there already; name another --folder") from None
    except OSError:
        raise InvalidInput(f"{target} cannot be made; name another --folder") from None
    templates = files("dpflow.testing") / "new_mechanism"
    for place, template in FILES.items():
        path = target / Template(place).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (templates / template).read_text(encoding="utf-8")
        path.write_text(Template(content).substitute(words), encoding="utf-8")
    module = words["module"]
    return (
        f"wrote {target}: {', '.join(Template(place).substitute(words) for place in FILES)}\n"
        f"next: cd {target}; write the guarantee and the code in {module}.py; pytest test_{module}.py; "
        f"dpflow audit {module}.py; pip install --editable ."
    )
