"""What a task tells lineage: of a release, a contract, a load. The repr of each says nothing, as the provider may be
told to send all attributes of operators, private ones among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.core.contract.declaration import Table


@dataclass(frozen=True, repr=False)
class ReleaseNote:
    """A release, or a session, that a task has paid for or replayed.

    Attributes:
        tables: the declarations that were read.
        release: what the receipt says, as JSON.
        output: the file and table it was published in, or None.
    """

    tables: tuple[Table, ...]
    release: Mapping[str, Any]
    output: tuple[Path, str] | None = None


@dataclass(frozen=True, repr=False)
class ContractNote:
    """A contract that a task has checked.

    Attributes:
        table: the declaration.
        assertions: of each check its name, kind, column ("" for none), what is asked in words, and whether it is
            kept.
    """

    table: Table
    assertions: tuple[tuple[str, str, str, str, bool], ...]


@dataclass(frozen=True, repr=False)
class LoadNote:
    """A load.

    Attributes:
        source: namespace and name of what was read, as far as the DAG says it: never a host or a folder.
        table: what it is called.
    """

    source: tuple[str, str]
    table: str
