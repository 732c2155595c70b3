"""Whether what was charged was settled, and what was settled was published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dpflow.tables import published_ids
from dpflow.tables.public.publish import digest_published


@dataclass(frozen=True)
class Reconciliation:
    """Releases of a ledger held against published tables. Sessions are left out: they publish nothing.

    Attributes:
        charged: how many releases were charged.
        settled: how many have a result.
        closed: how many an owner or a recovery closed without one.
        orphans: charged, with neither result nor decision: they still run, or died.
        to_publish: how many settled ones name a table to be published in.
        published: how many of these the tables that were read name by id.
        compared: how many releases were held against their stored results, by every row, value and cost.
        by_id: how many were not: numbers of named answers, which were computed from releases, and synthetic rows.
        altered: published with other rows than what was settled.
        no_table: settled, named no table to be published in, and behind nothing that was read: answers of queries without a
            name, releases without an output.
        unpublished: settled, to be published, and in none of the tables.
        unknown: in a table, and not settled in this ledger.
    """

    charged: int
    settled: int
    closed: int
    orphans: tuple[str, ...]
    to_publish: int
    published: int
    compared: int
    by_id: int
    no_table: tuple[str, ...]
    unpublished: tuple[str, ...]
    unknown: tuple[str, ...]
    altered: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is open, missing, unknown or altered."""
        return not (self.orphans or self.unpublished or self.unknown or self.altered)

    def to_json(self) -> dict[str, Any]:
        """JSON for programs."""
        return {"ok": self.ok, **asdict(self)}


def parse_place(text: str) -> tuple[Path, str]:
    """A published file and its table, as ``FILE`` or ``FILE:TABLE`` names them."""
    file, _, table = text.rpartition(":")
    return (Path(file), table) if file else (Path(text), "releases")


class ReconciledRelease(Protocol):
    """What is compared of a release: `dpflow.ledger.ReleaseRecord`, or a page's row."""

    @property
    def release_id(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def request(self) -> Mapping[str, Any]: ...


def reconcile(
    releases: Iterable[ReconciledRelease],
    tables: Sequence[tuple[Path, str]],
    scope: str | None = None,
    digest: Callable[[Any], Collection[str]] | None = None,
) -> Reconciliation:
    """Hold releases against their settlement and the published tables. Charges nothing.

    Args:
        releases: and sessions, all or the newest of a ledger.
        tables: published files and a table in each. Without any, only settlement is compared.
        scope: only releases of this scope and the quotas below it.
        digest: what `digest_published` may say of a settled release, nothing if its values are elsewhere; without it only ids
            are compared.

    Raises:
        TableError: a file cannot be read.
    """
    records = [r for r in releases if r.state in ("reserved", "settled", "fenced")]
    inside = [r for r in records if scope is None or f"{r.scope}/".startswith(f"{scope}/")]
    found = [
        dict.fromkeys(published_ids(*place), "") if digest is None else digest_published(*place)
        for place in tables
    ]
    shown = {name for digests in found for name in digests}
    settled = [r for r in inside if r.state == "settled"]
    due, rest = list[str](), list[str]()
    for one in settled if tables else ():
        (due if one.request.get("publish") else rest).append(one.release_id)
    compared, altered = 0, list[str]()
    for one in settled:
        digests = {by_id[one.release_id] for by_id in found if by_id.get(one.release_id)}
        expected = digest(one) if digest is not None and digests else ()
        compared += bool(expected)
        if expected and not digests <= {*expected}:
            altered.append(one.release_id)
    return Reconciliation(
        charged=len(inside),
        settled=len(settled),
        closed=sum(r.state == "fenced" for r in inside),
        orphans=tuple(r.release_id for r in inside if r.state == "reserved"),
        to_publish=len(due),
        published=sum(name in shown for name in due),
        no_table=tuple(name for name in rest if name not in shown),
        unpublished=tuple(name for name in due if name not in shown),
        compared=compared,
        by_id=sum(r.release_id in shown for r in settled) - compared,
        altered=tuple(altered),
        unknown=tuple(sorted(shown - {r.release_id for r in records if r.state == "settled"})),
    )
