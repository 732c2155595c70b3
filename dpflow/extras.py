"""Optional packages: the door that needs one which is missing says which extra brings it.

The extras themselves are in pyproject.toml. A door is the first import of an extra's packages: a
ledger on PostgreSQL, a contract, a candidate, a plot, the server, the demo, an operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dpflow.errors import MissingExtra

#: The name that package managers know us by; the import and the command are ``dpflow``.
DISTRIBUTION = "dpflow-privacy"
#: What tables and a ledger in this process need: who only asks a service may leave it out.
LOCAL = frozenset({"cryptography", "duckdb", "numpy", "pluggy", "sqlalchemy"})


@contextmanager
def require_local(door: str) -> Iterator[None]:
    """Goes around what may need tables or a ledger in this process. Raises `MissingExtra` where their packages are not there.

    Args:
        door: as of `require_extra`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in LOCAL:
            raise
        missing = error
    else:
        return
    raise MissingExtra(
        f"{door} needs tables or a ledger in this process, for there is no package {missing.name!r} here: "
        f"pip install '{DISTRIBUTION}'"
    ) from None


@contextmanager
def require_extra(extra: str, door: str) -> Iterator[None]:
    """Goes around the imports of what an extra installs.

    Args:
        extra: a name under ``[project.optional-dependencies]`` in pyproject.toml.
        door: what the user opened, as the subject of a sentence, such as ``"a model gate"``.

    Raises:
        MissingExtra: a package is not there. Other failures of an import pass as they are, for a
        package that is broken is not mended by installing the extra.
    """
    try:
        with name_main_file():
            yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        # One of our own modules is a mistake in the installation, which no extra mends.
        if package.startswith("dpflow"):
            raise
        raise MissingExtra(
            f"{door} needs the extra {extra!r}, for there is no package {package!r} here: "
            f"pip install '{DISTRIBUTION}[{extra}]'"
        ) from None


@contextmanager
def name_main_file() -> Iterator[None]:
    """Goes around imports that may reach Spark's client, as that of Great Expectations does.

    In a program without a file, such as ``python -c`` or what `multiprocessing` spawns, the client
    believes that it runs its own doctests, and ends the process.
    """
    main = sys.modules["__main__"]
    bare = not hasattr(main, "__file__")
    if bare:
        main.__file__ = "-c"
    try:
        yield
    finally:
        if bare:
            del main.__file__
