"""`ReleaseNote`: what a task tells lineage of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.core.contract.declaration import Table


@dataclass(frozen=True, repr=False)
class ReleaseNote:
    """A release, or a session, that a task has paid for or replayed, for lineage. Its repr says nothing:
    the provider may be told to send all attributes of operators, private ones among them.

    Attributes:
        tables: the declarations that were read.
        release: what the receipt says, as JSON.
        output: the file and table it was published in, or None.
    """

    tables: tuple[Table, ...]
    release: Mapping[str, Any]
    output: tuple[Path, str] | None = None
